"""Result of a comparison with a contract."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from tdx.errors import ExitCode
from tdx.serialization import Entries, Result

Kind = Literal[
    "missing stage",
    "order",
    "argument",
    "spec",
    "feature order",
    "scale",
    "dtype",
    "state missing",
    "state fresh",
    "state still learning",
    "value",
]

CODES: dict[Kind, str] = {
    "missing stage": "TDX501",
    "order": "TDX502",
    "argument": "TDX503",
    "spec": "TDX504",
    "feature order": "TDX505",
    "scale": "TDX506",
    "dtype": "TDX507",
    "state missing": "TDX508",
    "state fresh": "TDX509",
    "state still learning": "TDX510",
    "value": "TDX511",
}
"""Code of each kind of difference; see :mod:`tdx.inspection.contract_codes`."""
FRAME_STACK, FRAME_SHAPE = "TDX512", "TDX513"


@dataclass(frozen=True, slots=True)
class Difference(Result):
    """One difference between a contract and a target.

    Args:
        kind: What differs.
        stage: Index of the stage in the target; ``None`` if the target does not have it. -1 is the
            env inside.
        reference_stage: Index of the stage in the contract; ``None`` if it does not have it.
        name: Class name of the stage.
        key: Key that differs first; ``None`` if no value differs.
        message: The difference in words.
        size: Largest absolute difference of the values of the key; ``None`` if it is not known.
        hint: How to correct it.
        special_code: Code of a special case of the kind. ``None``: there is none.
    """

    json_entries: ClassVar[Entries] = (
        *("code", "kind", "stage", "reference_stage", "name", "key", "message", "size", "hint"),
    )

    kind: Kind
    stage: int | None
    reference_stage: int | None
    name: str
    key: str | None
    message: str
    size: float | None = None
    hint: str | None = None
    special_code: str | None = None

    @property
    def code(self) -> str:
        """Stable code of the kind, or of its special case."""
        return self.special_code or CODES[self.kind]

    @property
    def place(self) -> str:
        """Display name of the stage."""
        if self.stage is None:
            return f"stage {self.reference_stage} ({self.name}) of the contract"
        return f"the env ({self.name})" if self.stage < 0 else f"stage {self.stage} ({self.name})"

    @property
    def sentence(self) -> str:
        """Stage, key and difference on one line."""
        key = "" if self.key is None else f", key {self.key!r}"
        return f"{self.place}{key}: {self.message}"


@dataclass(frozen=True, slots=True)
class ContractReport(Result):
    """Differences between a contract and a target.

    Args:
        reference: Name of the contract, or of the first target.
        target: Name of the target.
        stages: Number of stages of the target.
        steps: Number of golden steps.
        differences: Differences with a cause of their own, in the order of the data flow.
        follows: Differences that follow from them.
        excluded: Stages whose values are not compared, each with the reason.
        notes: What else differs without an effect, and what is not compared.
    """

    json_entries: ClassVar[Entries] = (
        *("reference", "target", "same", "stages", "steps", "differences", "follows"),
        *("excluded", "notes"),
    )

    reference: str
    target: str
    stages: int
    steps: int
    differences: tuple[Difference, ...]
    follows: tuple[Difference, ...] = ()
    excluded: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """True if nothing differs."""
        return not self.differences

    @property
    def first(self) -> Difference | None:
        """The first difference in the order of the data flow."""
        return self.differences[0] if self.differences else None

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of a process that reports it."""
        return ExitCode.OK if self.same else ExitCode.FINDINGS
