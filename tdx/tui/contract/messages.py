"""What the worker returns to the Contract view: plain data that needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tdx.compare.report import ContractReport, Difference, RowStatus

MAX_ELEMENTS = 64
"""Elements of a key whose values are shown."""


@dataclass(frozen=True, slots=True)
class StageText:
    """A stage of one side.

    Args:
        index: Its index; -1 is the env inside.
        name: Its class.
        arguments: Its arguments as text.
        specs: Specs as text: of the keys that it changes, and of the compared ones if both sides
            have the stage.
        state: Its statistics and buffers as text.
        unlisted: Keys that it writes and the contract does not compare.
    """

    index: int
    name: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    specs: Mapping[str, str] = field(default_factory=dict)
    state: Mapping[str, str] = field(default_factory=dict)
    unlisted: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Index and name."""
        return f"env {self.name}" if self.index < 0 else f"{self.index} {self.name}"


Records = tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True, slots=True)
class KeyValues:
    """Values of a key after a stage, on both sides.

    Args:
        key: Name of the key; an inverse one is marked by the interface.
        is_inverse: True for actions on their way to the env.
        left: Shape and dtype in the contract. ``None``: it does not write the key.
        right: The same in the target.
        steps: Name of each reference step.
        labels: Name of each element.
        a: Elements of each step in the contract; empty if it has none.
        b: The same in the target.
        unequal: Places of the elements that differ, by step.
        note: Which elements are left out.
        reason: Why the values of both sides are not compared; empty if they are.
    """

    key: str
    is_inverse: bool
    left: str | None
    right: str | None
    steps: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    a: Records = ()
    b: Records = ()
    unequal: tuple[frozenset[int], ...] = ()
    note: str = ""
    reason: str = ""

    @property
    def differs(self) -> bool:
        """True if a value differs, or one side has none."""
        return self.left != self.right or any(self.unequal)

    @property
    def first_step(self) -> int:
        """First step with a difference; 0 if there is none."""
        return next((at for at, places in enumerate(self.unequal) if places), 0)


@dataclass(frozen=True, slots=True)
class StageComparison:
    """A stage of both sides, or of one.

    Args:
        a: Stage of the contract. ``None``: it does not have it.
        b: Stage of the target. ``None``: it does not have it.
        status: Whether it differs.
        differences: What differs here.
        keys: Compared keys.
        is_random: True if the values are excluded, because the stage does not follow the seed.
    """

    a: StageText | None
    b: StageText | None
    status: RowStatus
    differences: tuple[Difference, ...] = ()
    keys: tuple[KeyValues, ...] = ()
    is_random: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """A contract and a target side by side."""

    report: ContractReport
    stages: tuple[StageComparison, ...]
