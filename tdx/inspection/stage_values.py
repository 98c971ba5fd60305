"""What a stage wrote in one phase, and the promises that were not kept, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tdx.inspection.leaf import LeafSpec
from tdx.inspection.value_stats import ValueStats
from tdx.keys import NestedKey, format_key

Phase = Literal["reset", "step"]
Kind = Literal["env", "stage", "policy", "given", "kept"]


@dataclass(frozen=True, slots=True)
class StageValues:
    """What one stage wrote in one direction, over all resets or all steps.

    Args:
        kind: ``env`` for the env inside, ``stage``, ``policy``; ``kept`` for what a partial reset
            puts back into the rows that it leaves alone.
        index: place in the chain, from 0; none for what is no stage.
        name: class name.
        direction: ``forward``, or ``inverse`` on the way in.
        values: the keys it wrote.
        dropped: the keys that ended here.
        undeclared: those of its keys that its out-keys do not name.
    """

    kind: Kind
    index: int | None
    name: str
    direction: Literal["forward", "inverse"]
    values: tuple[ValueStats, ...]
    dropped: tuple[NestedKey, ...]
    undeclared: tuple[NestedKey, ...]

    @property
    def place(self) -> str:
        """As people read it: ``0 StepCounter``, ``env``."""
        return f"{self.index} {self.name}" if self.kind == "stage" else self.kind

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "kind": self.kind,
            "stage": self.index,
            "name": self.name,
            "direction": self.direction,
            "values": [value.to_dict() for value in self.values],
            "dropped": [format_key(key) for key in self.dropped],
            "undeclared": [format_key(key) for key in self.undeclared],
        }


@dataclass(frozen=True, slots=True)
class PhaseValues:
    """All that was written in the resets, in the steps, or in one of them.

    Args:
        phase: which of both.
        first: the first step that is in it, from 0; a reset has that of the step after it.
        count: how many resets or steps it is.
        stages: what each stage wrote, in the order in which they ran.
    """

    phase: Phase
    first: int
    count: int
    stages: tuple[StageValues, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "phase": self.phase,
            "first": self.first,
            "count": self.count,
            "stages": [stage.to_dict() for stage in self.stages],
        }


@dataclass(frozen=True, slots=True)
class ValueLie:
    """A promise that a stage did not keep.

    Args:
        phase: where it was seen first.
        step: the step of that, from 0.
        count: in how many resets and steps it was seen.
        kind: whether the stage, the env or the policy lies.
        index: the stage's place in the chain; none for what is no stage.
        name: its class name.
        key: the key; none where it is the whole TensorDict.
        code: what kind of promise is broken, such as ``"bounds"``.
        message: what came, and what was promised.
        hint: what to do about it.
        spec: what the spec says of the key, where it speaks of it.
    """

    phase: Phase
    step: int
    count: int
    kind: Kind
    index: int | None
    name: str
    key: NestedKey | None
    code: str
    message: str
    hint: str | None
    spec: LeafSpec | None

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "phase": self.phase,
            "step": self.step,
            "count": self.count,
            "kind": self.kind,
            "stage": self.index,
            "name": self.name,
            "key": None if self.key is None else format_key(self.key),
            "lie": self.code,
            "message": self.message,
            "hint": self.hint,
            "spec": None if self.spec is None else self.spec.to_dict(),
        }
