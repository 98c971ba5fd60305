"""The passes for memory: what each part allocates, at most holds, and leaves behind.

Three places are looked at, each in a rollout of its own:

- torch's memory on the host, by what its allocator tells torch's profiler, byte by byte. What
  other threads and processes take is not seen.
- NumPy's arrays and Python's objects, by :mod:`tracemalloc`: the most that was there and what
  stays, but not how much was taken and given back in between, nor what is given back that was
  there before.
- an accelerator's memory, by its allocator's own counts.

What a part takes and keeps is without the parts inside it, so that all parts together are the
rollout; the peak is with them.
"""

from __future__ import annotations

import tracemalloc
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

from tdx.core.meter import Lane, Part
from tdx.profiling.passes.accelerator import Accelerator
from tdx.profiling.passes.observer import Observer
from tdx.profiling.passes.ranges import MEMORY, HostEvent, Ranges
from tdx.profiling.result import DeviceUse, MemoryUse, ModeProfile


class Level(NamedTuple):
    """How full a memory is, in bytes.

    Args:
        allocated: all that was ever taken.
        current: what is taken now.
        peak: the most that was, since :meth:`Ledger` was last told otherwise.
    """

    allocated: int
    current: int
    peak: int


@dataclass(slots=True)
class Taken:
    """What the calls of one part took, in bytes."""

    allocated: int = 0
    peak: int = 0
    kept: int = 0


@dataclass(slots=True)
class _Call:
    place: int
    began: Level
    most: int
    inner_allocated: int = 0
    inner_kept: int = 0


class Ledger:
    """Keeps the books of calls inside each other.

    The peak in a :class:`Level` is the one since the last call of :meth:`begin` or :meth:`end`.
    """

    def __init__(self) -> None:
        self.taken: dict[int, Taken] = defaultdict(Taken)
        self._calls: list[_Call] = []

    def begin(self, place: int, level: Level) -> None:
        """A call of a part begins."""
        if self._calls:
            self._calls[-1].most = max(self._calls[-1].most, level.peak)
        self._calls.append(_Call(place, level, level.current))

    def end(self, level: Level) -> None:
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


class TensorMemory(Ranges):
    """What torch allocates on the host."""

    def __init__(self) -> None:
        super().__init__(memory=True)

    def found(self, profile: ModeProfile, steps: int) -> ModeProfile:
        """See :class:`Observer`."""
        taken = memory_by_part(self.events)
        uses = dict(profile.memory)
        for key, each in _by_key(self.parts, taken):
            before = uses.get(key, MemoryUse(0.0, 0, 0.0))
            uses[key] = replace(
                before,
                allocated_bytes=each.allocated / steps,
                peak_bytes=each.peak,
                kept_bytes=each.kept / steps,
            )
        return replace(profile, memory=uses)


def memory_by_part(events: Iterable[HostEvent]) -> dict[int, Taken]:
    """What was allocated on the host, by the place of the part.

    Args:
        events: in the order in which they began.
    """
    ledger, ends = Ledger(), list[int]()
    allocated = current = peak = 0
    for event in events:
        while ends and ends[-1] <= event.start_ns:
            ends.pop()
            ledger.end(Level(allocated, current, peak))
            peak = current
        if event.place >= 0:
            ends.append(event.end_ns)
            ledger.begin(event.place, Level(allocated, current, peak))
            peak = current
        elif event.name == MEMORY:
            allocated += max(event.nbytes, 0)
            current += event.nbytes
            peak = max(peak, current)
    for _ in ends:
        ledger.end(Level(allocated, current, peak))
        peak = current
    return ledger.taken


class _Counted(Observer):
    """A memory that is asked at the begin and the end of each call how full it is."""

    def __init__(self) -> None:
        super().__init__()
        self._ledger = Ledger()

    @abstractmethod
    def _level(self) -> Level:
        """How full it is; the peak is the one since this was last asked."""

    def _begin(self, place: int) -> None:
        self._ledger.begin(place, self._level())

    def _end(self) -> None:
        self._ledger.end(self._level())


class ObjectMemory(_Counted):
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

    def _level(self) -> Level:
        current, peak = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        return Level(0, current, peak)

    def found(self, profile: ModeProfile, steps: int) -> ModeProfile:
        """See :class:`Observer`."""
        uses = dict(profile.memory)
        for key, each in _by_key(self.parts, self._ledger.taken):
            before = uses.get(key, MemoryUse(0.0, 0, 0.0))
            uses[key] = replace(
                before, objects_peak_bytes=each.peak, objects_kept_bytes=each.kept / steps
            )
        return replace(profile, memory=uses)


class DeviceMemory(_Counted):
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

    def _level(self) -> Level:
        level = Level(*self._accelerator.memory())
        self._accelerator.forget_peak()
        return level

    def found(self, profile: ModeProfile, steps: int) -> ModeProfile:
        """See :class:`Observer`."""
        uses = dict(profile.on_device)
        for key, each in _by_key(self.parts, self._ledger.taken):
            uses[key] = replace(
                uses.get(key, DeviceUse(0.0)),
                allocated_bytes=each.allocated / steps,
                peak_bytes=each.peak,
                kept_bytes=each.kept / steps,
            )
        return replace(profile, on_device=uses)


def _by_key(parts: list[Part], taken: dict[int, Taken]) -> Iterator[tuple[tuple[str, Lane], Taken]]:
    for place, each in taken.items():
        yield (parts[place].label, parts[place].lane), each
