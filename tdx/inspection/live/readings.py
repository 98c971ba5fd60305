"""What each stage of a chain does while the env is stepped."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tdx.core.tracing.passages import Passage, is_same
from tdx.foundation.keys import NestedKey, format_key
from tdx.inspection.live.views import STUCK_STEPS, ReadingWarning, StageNumbers, StageReading

if TYPE_CHECKING:
    from tdx.core.tracing import StepTrace, TraceChecker, ValueVersion
    from tdx.core.tracing.traces import Direction

MAX_STEPS = 5
"""Number of latest steps in a reading."""
_MAX_SAMPLED = 4096
"""Maximum number of elements that are compared with the bounds."""
_SATURATED_STEPS = 20
_SATURATED_SHARE = 0.95
"""Share of the elements at a bound of the spec, over some steps, that is reported."""
_Lane = Mapping[NestedKey, "ValueVersion"]


@dataclass(slots=True)
class _StageHistory:
    """The latest steps of one stage.

    Args:
        key: The key that the numbers belong to; one that the stage changes.
        at_bound: Share of its elements at a bound of the spec, in the latest steps.
        given: The key before the stage in the latest step; ``None`` if there was none.
        stuck: Number of steps in which that changed, since the output last did.
    """

    key: NestedKey
    direction: Direction
    outputs: deque[object] = field(default_factory=lambda: deque(maxlen=MAX_STEPS))
    at_bound: deque[float] = field(default_factory=lambda: deque(maxlen=_SATURATED_STEPS))
    given: object = None
    received: tuple[object, ...] = ()
    stuck: int = 0


class ReadingRecorder:
    """Keeps the latest steps of each stage of a chain.

    A stage is described by one key that it changes: a reward, else the first key of floating-point
    numbers, else the first one.
    """

    def __init__(self, promises: TraceChecker) -> None:
        self._promises = promises
        self._histories: dict[int, _StageHistory] = {}
        self._latest: dict[int, tuple[int, bool]] = {}
        self._at_fault: Set[int] = frozenset()

    def add(self, trace: StepTrace, passages: list[Passage], at_fault: Set[int]) -> None:
        """Add a step.

        ``at_fault`` are the stages whose output is outside of its spec, or not finite.
        """
        self._at_fault = at_fault
        received: dict[str, _Lane] = {"inverse": trace.given, "forward": {}}
        # A wrapper of Gymnasium has one time for both directions.
        times: Counter[int] = Counter()
        for each in trace.stages:
            if each.kind == "stage":
                times[each.index] += each.time_ns
        self._latest.clear()
        for passage in passages:
            if passage.stage.kind == "stage":
                time_ns = times[passage.stage.index]
                self._add_passage(passage, received[passage.stage.direction], trace, time_ns)
            received[passage.stage.direction] = passage.entries

    def _add_passage(
        self,
        passage: Passage,
        received: _Lane,
        trace: StepTrace,
        time_ns: int,
    ) -> None:
        index, direction = passage.stage.index, passage.stage.direction
        history = self._histories.get(index)
        candidates = passage.changed & passage.entries.keys()
        if history is None and candidates:
            key = self._main_key(candidates, passage.entries)
            history = self._histories[index] = _StageHistory(key, direction)
        if history is None:
            self._latest[index] = time_ns, False
            return
        # A stage may change both directions; it is described by the one that it changed first.
        if history.direction != direction or history.key not in passage.entries:
            return
        output = passage.entries[history.key].value
        before = received.get(history.key)
        given = None if before is None else before.value
        read = tuple(version.value for version in passage.stage.read) or (given,)
        if not history.outputs or not is_same(history.outputs[-1], output):
            history.stuck = 0
        elif not all(map(is_same, history.received, read)):
            history.stuck += 1
        history.given, history.received = given, read
        history.outputs.append(output)
        history.at_bound.append(self._share_at_bound(passage, history.key, trace))
        self._latest[index] = time_ns, history.key in passage.changed

    def _main_key(self, candidates: Set[NestedKey], entries: _Lane) -> NestedKey:
        def rank(key: NestedKey) -> tuple[bool, bool, str]:
            value = entries[key].value
            is_float = isinstance(value, Tensor) and value.is_floating_point()
            name = format_key(key)
            return not name.rpartition(".")[2].startswith("reward"), not is_float, name

        return min(candidates, key=rank)

    def _share_at_bound(self, passage: Passage, key: NestedKey, trace: StepTrace) -> float:
        """Return the share of elements at a bound of a spec of floating-point numbers."""
        value = passage.entries[key].value
        if not isinstance(value, Tensor) or not value.is_floating_point() or not value.numel():
            return 0.0
        spec = self._promises.specs_for(passage.stage, trace.tensordict).get(key, None)
        low, high = getattr(spec, "low", None), getattr(spec, "high", None)
        if not isinstance(low, Tensor) or not isinstance(high, Tensor) or low.shape != value.shape:
            return 0.0
        if value.numel() > _MAX_SAMPLED and value.ndim > 1:
            step = math.ceil(math.sqrt(value.numel() / _MAX_SAMPLED))
            value, low, high = (each[..., ::step, ::step] for each in (value, low, high))
        return float(((value == low) | (value == high)).float().mean())

    def readings(self, numbers: StageNumbers) -> tuple[StageReading, ...]:
        """Return a reading of each stage that the user sees, after the latest step."""
        return tuple(
            self._read(index, numbers.number(index), *latest)
            for index, latest in self._latest.items()
            if numbers.number(index) >= 0
        )

    def _read(self, index: int, number: int, time_ns: int, is_changed: bool) -> StageReading:
        history = self._histories.get(index)
        if history is None:
            return StageReading(number, time_ns)
        # Computed when somebody looks: the means of images take as long as a step.
        numbers = tuple(map(_mean, history.outputs))
        before = None if history.given is None else _mean(history.given)
        is_saturated = (
            len(history.at_bound) == _SATURATED_STEPS
            and sum(history.at_bound) >= _SATURATED_SHARE * _SATURATED_STEPS
        )
        warning: ReadingWarning = ""
        if not math.isfinite(numbers[-1]):
            warning = "NaN" if math.isnan(numbers[-1]) else "infinite"
        elif index in self._at_fault:
            warning = "outside its spec"
        elif history.stuck >= STUCK_STEPS:
            warning = "constant"
        elif is_saturated:
            warning = "at a bound"
        return StageReading(
            number, time_ns, format_key(history.key), numbers, before, is_changed, warning
        )


def _mean(value: object) -> float:
    """Return the mean of the numbers of a value; NaN if one is, or there are none."""
    if not isinstance(value, Tensor) or not value.numel() or value.is_complex():
        return math.nan
    return float(value.mean(dtype=torch.float64))
