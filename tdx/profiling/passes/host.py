"""Passes on the host: memory and operators of each part.

Memory is measured in two places, each in its own rollout:

- torch's memory, as its allocator reports it to torch's profiler, byte by byte. Other threads and
  processes are not included.
- NumPy arrays and Python objects, by :mod:`tracemalloc`: the peak and what is kept, but not memory
  that is allocated and freed in between, nor earlier memory that is freed.

Allocated and kept bytes of a part exclude the parts inside it, so that all parts add up to the
rollout; peaks include them.
"""

from __future__ import annotations

import re
import tracemalloc
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

from tdx.profiling.passes.observer import MEMORY_EVENT, HostEvent, Observer, TorchProfilerObserver
from tdx.profiling.plain import OperatorUse
from tdx.profiling.result import MemoryUse, ModeProfile


class MemoryLevel(NamedTuple):
    """Use of a memory, in bytes: all allocations so far, those in use, and the peak.

    The peak is the maximum of ``current`` since the last event of the :class:`MemoryLedger`.
    """

    allocated: int
    current: int
    peak: int


@dataclass(slots=True)
class MemoryTotals:
    """Memory used by the calls of one part, in bytes."""

    allocated: int = 0
    peak: int = 0
    kept: int = 0


@dataclass(slots=True)
class _OpenCall:
    place: int
    start_level: MemoryLevel
    peak: int
    inner_allocated: int = 0
    inner_kept: int = 0


class MemoryLedger:
    """Attributes memory to nested calls."""

    def __init__(self) -> None:
        self.totals: dict[int, MemoryTotals] = defaultdict(MemoryTotals)
        self._calls: list[_OpenCall] = []

    def begin(self, place: int, level: MemoryLevel) -> None:
        """Start a call of a part."""
        if self._calls:
            self._calls[-1].peak = max(self._calls[-1].peak, level.peak)
        self._calls.append(_OpenCall(place, level, level.current))

    def end(self, level: MemoryLevel) -> None:
        """End the innermost call."""
        call = self._calls.pop()
        allocated = level.allocated - call.start_level.allocated
        kept = level.current - call.start_level.current
        peak = max(call.peak, level.peak)
        own_totals = self.totals[call.place]
        own_totals.allocated += allocated - call.inner_allocated
        own_totals.kept += kept - call.inner_kept
        own_totals.peak = max(own_totals.peak, peak - call.start_level.current)
        if self._calls:
            outer = self._calls[-1]
            outer.peak = max(outer.peak, peak)
            outer.inner_allocated += allocated
            outer.inner_kept += kept


class TensorMemory(TorchProfilerObserver):
    """Observes memory that torch allocates on the host."""

    def __init__(self) -> None:
        super().__init__(memory=True)

    def add_results(self, profile: ModeProfile, steps: int) -> ModeProfile:
        uses = self._updated(
            profile.memory,
            compute_memory(self.events),
            MemoryUse(0.0, 0, 0.0),
            lambda use, totals: replace(
                use,
                allocated_bytes=totals.allocated / steps,
                peak_bytes=totals.peak,
                kept_bytes=totals.kept / steps,
            ),
        )
        return replace(profile, memory=uses)


def compute_memory(events: Iterable[HostEvent]) -> dict[int, MemoryTotals]:
    """Compute the memory allocated on the host, by index of the part, of events sorted by start."""
    ledger, ends = MemoryLedger(), list[int]()
    allocated = current = peak = 0
    for event in events:
        while ends and ends[-1] <= event.start_ns:
            ends.pop()
            ledger.end(MemoryLevel(allocated, current, peak))
            peak = current
        if event.place >= 0:
            ends.append(event.end_ns)
            ledger.begin(event.place, MemoryLevel(allocated, current, peak))
            peak = current
        elif event.name == MEMORY_EVENT:
            allocated += max(event.nbytes, 0)
            current += event.nbytes
            peak = max(peak, current)
    for _ in ends:
        ledger.end(MemoryLevel(allocated, current, peak))
        peak = current
    return ledger.totals


class PolledMemory(Observer):
    """Observes a memory by reading its level at the start and the end of each call."""

    def __init__(self) -> None:
        super().__init__()
        self._ledger = MemoryLedger()

    @abstractmethod
    def _level(self) -> MemoryLevel:
        """Return the current level; the peak is the one since the last call."""

    def _begin(self, place: int) -> None:
        self._ledger.begin(place, self._level())

    def _end(self) -> None:
        self._ledger.end(self._level())


class ObjectMemory(PolledMemory):
    """Observes memory of NumPy arrays and Python objects on the host."""

    @contextmanager
    def _recorder(self) -> Iterator[None]:
        was_on = tracemalloc.is_tracing()
        if not was_on:
            tracemalloc.start()
        try:
            yield
        finally:
            if not was_on:
                tracemalloc.stop()

    def _level(self) -> MemoryLevel:
        current, peak = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        return MemoryLevel(0, current, peak)

    def add_results(self, profile: ModeProfile, steps: int) -> ModeProfile:
        uses = self._updated(
            profile.memory,
            self._ledger.totals,
            MemoryUse(0.0, 0, 0.0),
            lambda use, totals: replace(
                use, objects_peak_bytes=totals.peak, objects_kept_bytes=totals.kept / steps
            ),
        )
        return replace(profile, memory=uses)


SLOWDOWN_NOTE = (
    "The times of operators are from a separate pass, which torch's profiler slows down: "
    "compare them with each other, not with the other columns."
)

_COMPILED_GRAPH = re.compile(r"## Call CompiledFxGraph \w+ ##")
"""Name of a compiled graph, with a hash of its code."""


@dataclass(slots=True)
class _OperatorCount:
    calls: int = 0
    own_ns: int = 0


@dataclass(slots=True)
class _OpenEvent:
    """An event that has started; ``count`` is ``None`` for a part."""

    end_ns: int
    place: int
    count: _OperatorCount | None


class Operators(TorchProfilerObserver):
    """Counts the operators that each part calls itself, including operators inside operators."""

    def __init__(self) -> None:
        super().__init__(memory=False)

    def add_results(self, profile: ModeProfile, steps: int) -> ModeProfile:
        uses = dict(profile.operators)
        for place, counts in count_operators(self.events).items():
            part = self.parts[place]
            uses[part.label, part.lane] = tuple(
                OperatorUse(name, count.calls / steps, count.own_ns / steps / 1000)
                for name, count in sorted(counts.items(), key=lambda item: -item[1].own_ns)
            )
        return replace(profile, operators=uses, notes=(*profile.notes, SLOWDOWN_NOTE))


def count_operators(events: Iterable[HostEvent]) -> dict[int, dict[str, _OperatorCount]]:
    """Count calls and own time of each operator, by the part around it, in sorted events."""
    results: dict[int, dict[str, _OperatorCount]] = defaultdict(lambda: defaultdict(_OperatorCount))
    around: list[_OpenEvent] = []
    for event in events:
        while around and around[-1].end_ns <= event.start_ns:
            around.pop()
        if event.name == MEMORY_EVENT or (not around and event.place < 0):
            continue
        totals = event.end_ns - event.start_ns
        if around and around[-1].count is not None:
            around[-1].count.own_ns -= totals
        if event.place >= 0:
            around.append(_OpenEvent(event.end_ns, event.place, None))
            continue
        place = around[-1].place
        count = results[place][_COMPILED_GRAPH.sub("CompiledFxGraph", event.name)]
        count.calls += 1
        count.own_ns += totals
        around.append(_OpenEvent(event.end_ns, place, count))
    return {place: dict(counts) for place, counts in results.items()}
