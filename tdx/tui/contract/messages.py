"""What the worker returns to the Contract view: plain data that needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tdx.compare.report import ContractReport, Difference, RowStatus

MAX_ELEMENTS = 64
"""Elements of a key whose values are shown."""


@dataclass(frozen=True, slots=True)
class StageText:
    """A stage of one side."""

    index: int
    name: str
    arguments: Mapping[str, str] = field(default_factory=dict)  # its arguments as text
    # Specs as text: of the keys that it changes, and of the compared ones if both sides have
    # the stage
    specs: Mapping[str, str] = field(default_factory=dict)
    state: Mapping[str, str] = field(default_factory=dict)  # its statistics and buffers as text
    unlisted: tuple[str, ...] = ()  # keys that it writes and the contract does not compare

    @property
    def title(self) -> str:
        """Index and name."""
        return f"env {self.name}" if self.index < 0 else f"{self.index} {self.name}"


Records = tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True, slots=True)
class KeyValues:
    """Values of a key after a stage, on both sides."""

    key: str  # name of the key; an inverse one is marked by the interface
    is_inverse: bool  # true for actions on their way to the env
    left: str | None  # shape and dtype in the contract; ``None``: it does not write the key
    right: str | None  # the same in the target
    steps: tuple[str, ...] = ()  # name of each reference step
    labels: tuple[str, ...] = ()  # name of each element
    a: Records = ()  # elements of each step in the contract; empty if it has none
    b: Records = ()  # the same in the target
    unequal: tuple[frozenset[int], ...] = ()  # places of the elements that differ, by step
    note: str = ""  # which elements are left out
    reason: str = ""  # why the values of both sides are not compared; empty if they are

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
    """A stage of both sides, or of one."""

    a: StageText | None  # stage of the contract; ``None``: it does not have it
    b: StageText | None  # stage of the target; ``None``: it does not have it
    status: RowStatus  # whether it differs
    differences: tuple[Difference, ...] = ()  # what differs here
    keys: tuple[KeyValues, ...] = ()  # compared keys
    # True if the values are excluded, because the stage does not follow the seed
    is_random: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """A contract and a target side by side."""

    report: ContractReport
    stages: tuple[StageComparison, ...]
