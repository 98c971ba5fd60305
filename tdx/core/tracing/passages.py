"""What passes each stage in a reset or step, whether the stage changed it or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdx.core.tracing.traces import Direction, Kind, StageTrace, StepTrace, ValueVersion
from tdx.foundation.keys import NestedKey

PassageId = tuple[Kind, int, Direction]


@dataclass(slots=True)
class Passage:
    """The entries after one place of a stack, in one direction.

    A trace lists what a stage wrote. Statistics over several steps need the other steps as well,
    in which the value passed through.

    Args:
        stage: The call; one without time where the trace has none, because nothing was written.
        entries: All entries after it.
        changed: The keys whose value it changed, or added; writing an equal value is no change.
    """

    stage: StageTrace
    entries: dict[NestedKey, ValueVersion] = field(default_factory=dict)
    changed: set[NestedKey] = field(default_factory=set)

    @property
    def identity(self) -> PassageId:
        """What identifies the place in all traces of a stack."""
        return self.stage.kind, self.stage.index, self.stage.direction


def list_passages(trace: StepTrace) -> list[Passage]:
    """Return the entries after each place that a reset or step reached, in order.

    Args:
        trace: The trace. The entries of a call that raised are those that it wrote.

    Example:
        >>> import gymnasium, tdx
        >>> from gymnasium.wrappers import ClipReward
        >>> env = ClipReward(gymnasium.make("Pendulum-v1"), -20.0, 20.0)
        >>> last = list_passages(tdx.trace(env).step())[-2]
        >>> last.stage.place, last.entries["reward"], last.changed
        ('3 ClipReward', reward@0, set())
    """
    return _PassageReader(trace).read()


class _PassageReader:
    def __init__(self, trace: StepTrace) -> None:
        self._trace = trace
        self._lanes: dict[Direction, dict[NestedKey, ValueVersion]]
        self._lanes = {"inverse": dict(trace.given), "forward": {}}
        self._passages: dict[PassageId, Passage] = {}
        forward = [stage for stage in trace.stages if stage.direction == "forward"]
        self._levels = {stage.index: stage for stage in forward if stage.kind in ("env", "stage")}
        self._outermost = max(self._levels, default=-1)

    def read(self) -> list[Passage]:
        trace = self._trace
        for stage in trace.stages:
            if stage.kind == "stage" and stage.direction == "inverse":
                # Outer inverses that wrote nothing passed on what this one received.
                self._pass_inverses(stage.index)
            elif stage.kind in ("env", "stage"):
                self._pass_inverses(min(self._levels, default=-1))
            has_failed = trace.error is not None and stage is trace.stages[-1]
            self._add(stage, passes=not has_failed)
        if trace.error is None:
            self._add(StageTrace("kept", -1, "kept", "forward", trace.phase, 0), passes=True)
        return list(self._passages.values())

    def _pass_inverses(self, above: int) -> None:
        """Add the inverses that wrote nothing, from the outermost stage to one above a level."""
        if self._trace.phase != "step":
            return
        for index in sorted(self._levels, reverse=True):
            if above < index <= self._outermost and self._levels[index].kind == "stage":
                name = self._levels[index].name
                self._add(StageTrace("stage", index, name, "inverse", "step", 0), passes=True)
        self._outermost = min(self._outermost, above - 1)

    def _add(self, stage: StageTrace, *, passes: bool) -> None:
        lane = self._lanes[stage.direction]
        new = Passage(stage)
        passage = self._passages.setdefault(new.identity, new)
        for key, version in stage.written.items():
            before = lane.get(key)
            if before is None or before.lost or not is_same(before.value, version.value):
                passage.changed.add(key)
        lane.update(stage.written)
        for key in stage.dropped:
            lane.pop(key, None)
        passage.entries = dict(lane) if passes else dict(stage.written)


def is_same(one: Any, other: Any) -> bool:
    """Return True if two values have the same type, dtype, shape and numbers; NaN equals NaN."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.dtype != other.dtype or one.shape != other.shape or one.device != other.device:
            return False
        if torch.equal(one, other):
            return True
        if not one.is_floating_point():
            return False
        nan = one.isnan()
        return bool(nan.any()) and bool(((one == other) | (nan & other.isnan())).all())
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    try:
        return _has_same_parts(one, other)
    except Exception:
        return False


def _has_same_parts(one: Any, other: Any) -> bool:
    """Compare objects that may contain arrays, which do not compare to one bool."""
    if isinstance(one, np.ndarray):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        if one.dtype.hasobject:
            return all(map(is_same, one.ravel().tolist(), other.ravel().tolist()))
        return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(is_same(one[name], other[name]) for name in one)
    return bool(one == other) or (isinstance(one, float) and one != one and other != other)
