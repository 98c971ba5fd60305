"""What torch's own profiler sees on the host, by part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.autograd.profiler import profile, record_function

from tdx.profiling.passes.observer import Observer

MEMORY = "[memory]"
BUSY = "torch's profiler is running already, so the passes that use it were left out."
_PREFIX = "tdx part "


class HostEvent(NamedTuple):
    """Something that torch's profiler has noted on the thread of the rollout.

    Args:
        name: of an operator, or :data:`MEMORY`.
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


class Ranges(Observer):
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
        return BUSY if torch._C._autograd._profiler_enabled() else None

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
                self.events += host_events(profiler.kineto_results.events())

    def _begin(self, place: int) -> None:
        opened = record_function(f"{_PREFIX}{place}")
        opened.__enter__()
        self._open.append(opened)

    def _end(self) -> None:
        self._open.pop().__exit__(None, None, None)


def host_events(noted: Iterable[Any]) -> list[HostEvent]:
    """The events on the thread that parts ran on, in the order in which they began.

    Args:
        noted: torch's own.
    """
    found, threads = [], set()
    for each in noted:
        name = each.name()
        place = part_place(name)
        if place >= 0:
            threads.add(each.start_thread_id())
        start, nbytes = each.start_ns(), 0
        if name == MEMORY:
            if each.device_type() != torch.profiler.DeviceType.CPU:
                continue
            nbytes = each.nbytes()
        event = HostEvent(name, place, start, start + each.duration_ns(), nbytes)
        found.append((each.start_thread_id(), event))
    kept = [event for thread, event in found if thread in threads]
    return sorted(kept, key=lambda event: (event.start_ns, -event.end_ns))


def part_place(name: str) -> int:
    """The place of the part that a range is named after; -1 for another name."""
    return int(name[len(_PREFIX) :]) if name.startswith(_PREFIX) else -1


def range_name(place: int) -> str:
    """What the range of a part is named."""
    return f"{_PREFIX}{place}"
