"""Observers of calls in passes that measure something other than time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch.autograd.profiler import profile, record_function

from tdx.core.meter import AnyFunction, Part
from tdx.profiling.result import ModeProfile


class Observer(ABC):
    """A meter of something beside time; see :class:`~tdx.core.meter.Meter`.

    It looks on only while :meth:`recording`, in a rollout of its own: to look on takes time.
    """

    def __init__(self) -> None:
        self.parts: list[Part] = []
        """Whose calls there were; the others name a part by its place in here."""
        self._places: dict[Part, int] = {}
        self._on = False

    def timed(
        self, part: Part, function: AnyFunction, steps: Callable[..., int] | None = None
    ) -> AnyFunction:
        """See :class:`~tdx.core.meter.Meter`; what is found is counted for all steps."""
        if getattr(function, "is_timed", False):
            return function
        place = self._place(part)

        def run(*args: Any, **kwargs: Any) -> Any:
            if not self._on:
                return function(*args, **kwargs)
            self._begin(place)
            try:
                return function(*args, **kwargs)
            finally:
                self._end()

        made: Any = run
        made.is_timed = True
        return cast(AnyFunction, made)

    def in_turn(self, functions: Sequence[AnyFunction]) -> Sequence[AnyFunction]:
        """See :class:`~tdx.core.meter.Meter`."""
        return functions

    def hindrance(self) -> str | None:
        """Why it cannot look on now, as a sentence; ``None`` where it can."""
        return None

    @abstractmethod
    def recording(self) -> AbstractContextManager[None]:
        """Look on while the block runs; what is set for the whole process is as before after it."""

    @abstractmethod
    def found(self, profile: ModeProfile, steps: int) -> ModeProfile:
        """The profile, with what was seen.

        Args:
            profile: what is known so far.
            steps: how many were made in all blocks, at least one.
        """

    @abstractmethod
    def _begin(self, place: int) -> None:
        """A call of a part begins."""

    @abstractmethod
    def _end(self) -> None:
        """The last call that has begun, and not ended, ends."""

    def _place(self, part: Part) -> int:
        if part not in self._places:
            self._places[part] = len(self.parts)
            self.parts.append(part)
        return self._places[part]


MEMORY_EVENT = "[memory]"
PROFILER_BUSY = "torch's profiler is running already, so the passes that use it were left out."
_RANGE_PREFIX = "tdx part "


class HostEvent(NamedTuple):
    """Something that torch's profiler has noted on the thread of the rollout.

    Args:
        name: of an operator, or :data:`MEMORY_EVENT`.
        place: that of the part whose call it is; -1 for what is no part.
        start_ns: when it began.
        end_ns: when it ended.
        nbytes: how much memory was taken, negative where it was given back.
    """

    name: str
    place: int
    start_ns: int
    end_ns: int
    nbytes: int = 0


class TorchProfilerObserver(Observer):
    """Runs torch's profiler, with a range for each call.

    Args:
        memory: whether it notes what torch allocates.
    """

    def __init__(self, memory: bool) -> None:
        super().__init__()
        self._memory = memory
        self._open: list[Any] = []
        self.events: list[HostEvent] = []

    def hindrance(self) -> str | None:
        """See :class:`Observer`; torch has one profiler at a time."""
        return PROFILER_BUSY if torch._C._autograd._profiler_enabled() else None

    @contextmanager
    def recording(self) -> Iterator[None]:
        """See :class:`Observer`."""
        profiler: Any = profile(profile_memory=self._memory)
        try:
            with profiler:
                self._on = True
                yield
        finally:
            self._on = False
            if profiler.kineto_results is not None:
                self.events += collect_host_events(profiler.kineto_results.events())

    def _begin(self, place: int) -> None:
        opened = record_function(f"{_RANGE_PREFIX}{place}")
        opened.__enter__()
        self._open.append(opened)

    def _end(self) -> None:
        self._open.pop().__exit__(None, None, None)


def collect_host_events(noted: Iterable[Any]) -> list[HostEvent]:
    """The events on the thread that parts ran on, in the order in which they began.

    Args:
        noted: torch's own.
    """
    found, threads = [], set()
    for each in noted:
        name = each.name()
        place = parse_part_index(name)
        if place >= 0:
            threads.add(each.start_thread_id())
        start, nbytes = each.start_ns(), 0
        if name == MEMORY_EVENT:
            if each.device_type() != torch.profiler.DeviceType.CPU:
                continue
            nbytes = each.nbytes()
        event = HostEvent(name, place, start, start + each.duration_ns(), nbytes)
        found.append((each.start_thread_id(), event))
    kept = [event for thread, event in found if thread in threads]
    return sorted(kept, key=lambda event: (event.start_ns, -event.end_ns))


def parse_part_index(name: str) -> int:
    """The place of the part that a range is named after; -1 for another name."""
    return int(name[len(_RANGE_PREFIX) :]) if name.startswith(_RANGE_PREFIX) else -1


def format_range_name(place: int) -> str:
    """What the range of a part is named."""
    return f"{_RANGE_PREFIX}{place}"
