"""What was found to differ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from tdx.inspection.spec_report import KeyChange

StageStatus = Literal["same", "changed", "moved", "added", "removed"]
ValueStatus = Literal["same", "different", "shape", "only_a", "only_b"]


@dataclass(frozen=True, slots=True)
class EnvChange:
    """One setting of the env, or of the pipeline as a whole, that differs.

    Args:
        name: the setting.
        a: its value on the first side, as text.
        b: its value on the second.
    """

    name: str
    a: str
    b: str

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {"name": self.name, "a": self.a, "b": self.b}


@dataclass(frozen=True, slots=True)
class StageChange:
    """One stage on both sides.

    Args:
        status: what became of it.
        a_index: its place on the first side; none where it is not there.
        b_index: its place on the second.
        a: the stage as the text of ``--t``.
        b: the same on the second side.
        arguments: the arguments that differ, with both values as text.
    """

    status: StageStatus
    a_index: int | None
    b_index: int | None
    a: str | None
    b: str | None
    arguments: tuple[EnvChange, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "status": self.status,
            "a_index": self.a_index,
            "b_index": self.b_index,
            "a": self.a,
            "b": self.b,
            "arguments": [each.to_dict() for each in self.arguments],
        }


@dataclass(frozen=True, slots=True)
class ValueChange:
    """The values of one key in both rollouts.

    Args:
        key: the key, its parts with dots between.
        status: whether they differ, and how.
        largest: the largest absolute difference; none where there is no number for it.
        first_step: the first step at which they differ, from 0.
        note: both shapes, or both dtypes, where they differ.
    """

    key: str
    status: ValueStatus
    largest: float | None = None
    first_step: int | None = None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        finite = self.largest is None or math.isfinite(self.largest)
        return {
            "key": self.key,
            "status": self.status,
            "largest": self.largest if finite else str(self.largest),
            "first_step": self.first_step,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class DiffReport:
    """All that differs between two sides.

    Args:
        a: name of the first side.
        b: name of the second.
        env: settings of the env that differ.
        stages: every stage, in the order of the second side with those removed in their places.
        env_specs: the specs of both envs without their chains.
        chain_specs: the specs with them.
        steps: how many steps were compared; none where none were.
        seed: the seed of the rollouts.
        values: every key of the rollouts.
    """

    a: str
    b: str
    env: tuple[EnvChange, ...]
    stages: tuple[StageChange, ...]
    env_specs: tuple[KeyChange, ...]
    chain_specs: tuple[KeyChange, ...]
    steps: int | None = None
    seed: int | None = None
    values: tuple[ValueChange, ...] = ()

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        specs = (*self.env_specs, *self.chain_specs)
        return (
            not self.env
            and all(stage.status == "same" for stage in self.stages)
            and all(change.change == "same" for change in specs)
            and all(value.status == "same" for value in self.values)
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "a": self.a,
            "b": self.b,
            "same": self.same,
            "env": [change.to_dict() for change in self.env],
            "stages": [stage.to_dict() for stage in self.stages],
            "env_specs": [change.to_dict() for change in self.env_specs],
            "chain_specs": [change.to_dict() for change in self.chain_specs],
            "steps": self.steps,
            "seed": self.seed,
            "values": [value.to_dict() for value in self.values],
        }
