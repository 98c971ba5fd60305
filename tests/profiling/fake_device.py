"""A fake accelerator with a queue of work in simulated time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tdx.profiling.passes import observer
from tdx.profiling.passes.accelerator import TraceEvent, TraceKind
from tests.profiling.fake_clock import US, FakeClock

LAUNCH_US = 2
"""Time of a launch on the host, in µs."""


@dataclass
class Mark:
    """Event in the queue of the device."""

    at_ns: int


class FakeDevice:
    """Device that processes its queue while the clock of the host advances.

    Args:
        clock: Clock of the host.
        reports: True if the device reports syncs, memory and work.
    """

    name = "fake:0"
    timing_error: str | None = None
    missing: tuple[str, ...] = ()

    def __init__(self, clock: FakeClock, reports: bool = True) -> None:
        self.clock = clock
        self.reports_syncs = self.reports_memory = self.reports_work = reports
        self.done_at_ns = self.known_ns = 0
        self.log: list[str] = []
        self.marks: list[Mark] = []
        self._on_sync: Callable[[str], None] | None = None
        self._trace: list[TraceEvent] | None = None
        self._links = 0
        self._ever = self._taken = self._peak = 0

    @property
    def is_unobserved(self) -> bool:
        """True if neither syncs nor work are recorded."""
        return self._on_sync is None and self._trace is None

    # Interface for stages

    def launch(self, us: float, kind: TraceKind = "kernel", name: str = "k", size: int = 0) -> None:
        """Queue work on the device."""
        began = self.clock.now
        self.clock.spin(LAUNCH_US)
        starts, self._links = max(self.done_at_ns, self.clock.now), self._links + 1
        self.done_at_ns = starts + round(us * US)
        if self._trace is not None:
            call = "fakeLaunchKernel" if kind == "kernel" else "fakeMemcpyAsync"
            self._trace += [
                TraceEvent("launch", call, began, LAUNCH_US * US, 1, self._links),
                TraceEvent(kind, name, starts, round(us * US), 0, self._links, size),
            ]

    def fetch(self, us: float, size: int, where: str) -> None:
        """Copy data to the host and wait for it."""
        self.launch(us, "copy", "Memcpy DtoH", size)
        if self._on_sync is not None:
            self._on_sync(where)
        self.wait()

    def wait(self) -> None:
        """Advance the clock of the host until the queue is empty."""
        self.clock.now = max(self.clock.now, self.done_at_ns)
        self.known_ns = self.clock.now

    def allocate(self, size: int) -> None:
        """Allocate memory; a negative size frees it."""
        self._ever += max(size, 0)
        self._taken += size
        self._peak = max(self._peak, self._taken)

    # Interface of Accelerator

    def mark(self) -> Mark:
        self.log.append("mark")
        self.marks.append(Mark(max(self.done_at_ns, self.clock.now)))
        return self.marks[-1]

    def elapsed_ns(self, earlier: Mark, later: Mark) -> int:
        assert later.at_ns <= self.known_ns, "read before the device came to it"
        self.log.append("read")
        return later.at_ns - earlier.at_ns

    def synchronize(self) -> None:
        self.log.append("synchronize")
        self.wait()

    def memory(self) -> tuple[int, int, int]:
        return self._ever, self._taken, self._peak

    def reset_peak(self) -> None:
        self._peak = self._taken

    @contextmanager
    def record_syncs(self, callback: Callable[[str], None]) -> Iterator[None]:
        self._on_sync = callback
        try:
            yield
        finally:
            self._on_sync = None

    @contextmanager
    def record_trace(self, events: list[TraceEvent]) -> Iterator[None]:
        self._trace = events
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                observer, "record_function", lambda name: _Range(name, self.clock, events)
            )
            try:
                yield
            finally:
                self._trace = None


class _Range:
    """Profiler range on the fake clock; entering it takes a nanosecond."""

    def __init__(self, name: str, clock: FakeClock, events: list[TraceEvent]) -> None:
        self.name, self.clock, self.events = name, clock, events

    def __enter__(self) -> None:
        self.began = self.clock.now
        self.clock.now += 1

    def __exit__(self, *error: Any) -> None:
        taken = self.clock.now - self.began
        self.events.append(TraceEvent("part", self.name, self.began, taken, 1))
