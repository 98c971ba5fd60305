"""Passes on the host: memory and operators of each part."""

from __future__ import annotations

import re
import tracemalloc
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

from tdx.core.meter import Lane, Part
from tdx.profiling.passes.accelerator import Accelerator
from tdx.profiling.passes.observer import MEMORY_EVENT, HostEvent, Observer, TorchProfilerObserver
from tdx.profiling.result import DeviceUse, MemoryUse, ModeProfile, OperatorUse


class MemoryLevel(NamedTuple):
    """How full a memory is, in bytes.

    Args:
        allocated: all that was ever taken.
        current: what is taken now.
        peak: the most that was, since :meth:`MemoryLedger` was last told otherwise.
    """

    allocated: int
    current: int
    peak: int


@dataclass(slots=True)
class MemoryTotals:
    """What the calls of one part took, in bytes."""

    allocated: int = 0
    peak: int = 0
    kept: int = 0


@dataclass(slots=True)
class _OpenCall:
    place: int
    began: MemoryLevel
    most: int
    inner_allocated: int = 0
    inner_kept: int = 0


class MemoryLedger:
    """Keeps the books of calls inside each other.

    The peak in a :class:`MemoryLevel` is the one since the last call of :meth:`begin` or :meth:`end`.
    """

    def __init__(self) -> None:
        self.taken: dict[int, MemoryTotals] = defaultdict(MemoryTotals)
        self._calls: list[_OpenCall] = []

    def begin(self, place: int, level: MemoryLevel) -> None:
        """A call of a part begins."""
        if self._calls:
            self._calls[-1].most = max(self._calls[-1].most, level.peak)
        self._calls.append(_OpenCall(place, level, level.current))

    def end(self, level: MemoryLevel) -> None:
        """The innermost call ends."""
        call = self._calls.pop()
        allocated = level.allocated - call.began.allocated
        kept = level.current - call.began.current
        most = max(call.most, level.peak)
        mine = self.taken[call.place]
        mine.allocated += allocated - call.inner_allocated
        mine.kept += kept - call.inner_kept
        mine.peak = max(mine.peak, most - call.began.current)
        if self._calls:
            outer = self._calls[-1]
            outer.most = max(outer.most, most)
            outer.inner_allocated += allocated
            outer.inner_kept += kept


class TensorMemory(TorchProfilerObserver):
    """What torch allocates on the host."""

    def __init__(self) -> None:
        super().__init__(memory=True)

    def found(self, profile: ModeProfile, steps: int) -> ModeProfile:
        """See :class:`Observer`."""
        taken = compute_memory(self.events)
        uses = dict(profile.memory)
        for key, each in _iterate_totals(self.parts, taken):
            before = uses.get(key, MemoryUse(0.0, 0, 0.0))
            uses[key] = replace(
                before,
                allocated_bytes=each.allocated / steps,
                peak_bytes=each.peak,
                kept_bytes=each.kept / steps,
            )
        return replace(profile, memory=uses)


def compute_memory(events: Iterable[HostEvent]) -> dict[int, MemoryTotals]:
    """What was allocated on the host, by the place of the part.

    Args:
        events: in the order in which they began.
    """
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
    return ledger.taken


class _PolledMemory(Observer):
    """A memory that is asked at the begin and the end of each call how full it is."""

    def __init__(self) -> None:
        super().__init__()
        self._ledger = MemoryLedger()

    @abstractmethod
    def _level(self) -> MemoryLevel:
        """How full it is; the peak is the one since this was last asked."""

    def _begin(self, place: int) -> None:
        self._ledger.begin(place, self._level())

    def _end(self) -> None:
        self._ledger.end(self._level())


class ObjectMemory(_PolledMemory):
    """What NumPy's arrays and Python's objects take on the host."""

    @contextmanager
    def recording(self) -> Iterator[None]:
        """See :class:`Observer`."""
        was_on = tracemalloc.is_tracing()
        if not was_on:
            tracemalloc.start()
        self._on = True
        try:
            yield
        finally:
            self._on = False
            if not was_on:
                tracemalloc.stop()

    def _level(self) -> MemoryLevel:
        current, peak = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        return MemoryLevel(0, current, peak)

    def found(self, profile: ModeProfile, steps: int) -> ModeProfile:
        """See :class:`Observer`."""
        uses = dict(profile.memory)
        for key, each in _iterate_totals(self.parts, self._ledger.taken):
            before = uses.get(key, MemoryUse(0.0, 0, 0.0))
            uses[key] = replace(
                before, objects_peak_bytes=each.peak, objects_kept_bytes=each.kept / steps
            )
        return replace(profile, memory=uses)


class DeviceMemory(_PolledMemory):
    """What is allocated on an accelerator.

    Args:
        accelerator: one that can tell.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__()
        self._accelerator = accelerator

    @contextmanager
    def recording(self) -> Iterator[None]:
        """See :class:`Observer`."""
        self._on = True
        try:
            yield
        finally:
            self._on = False

    def _level(self) -> MemoryLevel:
        level = MemoryLevel(*self._accelerator.memory())
        self._accelerator.forget_peak()
        return level

    def found(self, profile: ModeProfile, steps: int) -> ModeProfile:
        """See :class:`Observer`."""
        uses = dict(profile.on_device)
        for key, each in _iterate_totals(self.parts, self._ledger.taken):
            uses[key] = replace(
                uses.get(key, DeviceUse(0.0)),
                allocated_bytes=each.allocated / steps,
                peak_bytes=each.peak,
                kept_bytes=each.kept / steps,
            )
        return replace(profile, on_device=uses)


def _iterate_totals(
    parts: list[Part], taken: dict[int, MemoryTotals]
) -> Iterator[tuple[tuple[str, Lane], MemoryTotals]]:
    for place, each in taken.items():
        yield (parts[place].label, parts[place].lane), each


SLOWDOWN_NOTE = (
    "The times of operators are from a pass of their own, which torch's profiler slows down: "
    "they compare with each other, not with the other columns."
)

_COMPILED_GRAPH = re.compile(r"## Call CompiledFxGraph \w+ ##")
"""What a compiled graph is called, with a hash of its code in it."""


@dataclass(slots=True)
class _OperatorCount:
    calls: int = 0
    own_ns: int = 0


@dataclass(slots=True)
class _OpenEvent:
    """Something that has begun; ``count`` is none for a part."""

    end_ns: int
    place: int
    count: _OperatorCount | None


class Operators(TorchProfilerObserver):
    """Counts the operators that each part calls itself, those inside other operators too."""

    def __init__(self) -> None:
        super().__init__(memory=False)

    def found(self, profile: ModeProfile, steps: int) -> ModeProfile:
        """See :class:`Observer`."""
        uses = dict(profile.operators)
        for place, counts in count_operators(self.events).items():
            part = self.parts[place]
            uses[part.label, part.lane] = tuple(
                OperatorUse(name, count.calls / steps, count.own_ns / steps / 1000)
                for name, count in sorted(counts.items(), key=lambda item: -item[1].own_ns)
            )
        return replace(profile, operators=uses, notes=(*profile.notes, SLOWDOWN_NOTE))


def count_operators(events: Iterable[HostEvent]) -> dict[int, dict[str, _OperatorCount]]:
    """Calls and own time of each operator, by the place of the part around it.

    Args:
        events: in the order in which they began.
    """
    found: dict[int, dict[str, _OperatorCount]] = defaultdict(lambda: defaultdict(_OperatorCount))
    around: list[_OpenEvent] = []
    for event in events:
        while around and around[-1].end_ns <= event.start_ns:
            around.pop()
        if event.name == MEMORY_EVENT or (not around and event.place < 0):
            continue
        taken = event.end_ns - event.start_ns
        if around and around[-1].count is not None:
            around[-1].count.own_ns -= taken
        if event.place >= 0:
            around.append(_OpenEvent(event.end_ns, event.place, None))
            continue
        place = around[-1].place
        count = found[place][_COMPILED_GRAPH.sub("CompiledFxGraph", event.name)]
        count.calls += 1
        count.own_ns += taken
        around.append(_OpenEvent(event.end_ns, place, count))
    return {place: dict(counts) for place, counts in found.items()}
