"""Messages between the Contract view and its worker: plain data that needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tdx.pipeline.model import Pipeline
from tdx.tui.backend.messages import Request

WORKER = "contract"
MAX_ELEMENTS = 64
"""Elements of a key whose values are shown."""
Status = Literal["same", "differs", "follows", "not compared"]


@dataclass(frozen=True, slots=True)
class DifferenceText:
    """A difference in words.

    Args:
        code: Code of its kind.
        kind: What differs.
        place: Stage.
        key: Key that differs first. ``None``: no value differs.
        message: The difference.
        size: Largest absolute difference of the key. ``None``: unknown.
        hint: How to correct it. ``None``: unknown.
        is_cause: False if it follows from an earlier difference.
    """

    code: str
    kind: str
    place: str
    key: str | None
    message: str
    size: float | None = None
    hint: str | None = None
    is_cause: bool = True

    @property
    def sentence(self) -> str:
        """Stage, key and difference on one line."""
        key = "" if self.key is None else f", key {self.key!r}"
        return f"{self.place}{key}: {self.message}"


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
        return next((at for at, found in enumerate(self.unequal) if found), 0)


@dataclass(frozen=True, slots=True)
class StageComparison:
    """A stage of both sides, or of one.

    Args:
        a: Stage of the contract. ``None``: it does not have it.
        b: Stage of the target. ``None``: it does not have it.
        status: What was found.
        differences: What differs here.
        keys: Compared keys.
        is_random: True if the values are excluded, because the stage does not follow the seed.
    """

    a: StageText | None
    b: StageText | None
    status: Status
    differences: tuple[DifferenceText, ...] = ()
    keys: tuple[KeyValues, ...] = ()
    is_random: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """A contract and a target side by side.

    Args:
        reference: Name of the contract or of the first target.
        target: Name of the target.
        steps: Number of reference steps.
        differences: Causes, the first one first, and then what follows from them.
        stages: The env and the stages.
        parts: Parts of the values that are compared, such as ``observation``.
        notes: What is excluded, or differs without an effect.
        coverage: How much of the contract was compared, in words.
        is_enough: False if that is too little for an answer.
    """

    reference: str
    target: str
    steps: int
    differences: tuple[DifferenceText, ...]
    stages: tuple[StageComparison, ...]
    parts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    coverage: str = ""
    is_enough: bool = True

    @property
    def is_same(self) -> bool:
        """True if enough was compared, and nothing differs."""
        return self.first is None and self.is_enough

    @property
    def first(self) -> DifferenceText | None:
        """The first difference."""
        return self.differences[0] if self.differences else None

    @property
    def causes(self) -> int:
        """Number of differences with a cause of their own."""
        return sum(each.is_cause for each in self.differences)


@dataclass(frozen=True, slots=True)
class CompareContract(Request[Comparison]):
    """Compare the chain with a contract, or with another target.

    Args:
        pipeline: The chain.
        reference: Folder of a contract, pipeline file, function or env.
        evaluation: The chain is used for evaluation: its statistics must not change.
        allow_code: Allow importing Python objects.
    """

    pipeline: Pipeline
    reference: str
    evaluation: bool = False
    allow_code: bool = False


@dataclass(frozen=True, slots=True)
class FreezeContract(Request[str]):
    """Write a contract of the chain; answered with a sentence.

    Args:
        pipeline: The chain.
        path: Folder to write.
        force: True to replace a contract.
        allow_code: Allow importing Python objects.
    """

    pipeline: Pipeline
    path: str
    force: bool = False
    allow_code: bool = False
