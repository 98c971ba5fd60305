"""A fake accelerator with a queue of work in simulated time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tdx.foundation.nvml import GpuState
from tdx.profiling.passes import observer
from tdx.profiling.passes.accelerator import OnSync, TorchAccelerator
from tdx.profiling.passes.device_trace import TraceEvent, TraceKind
from tests.profiling.fake_clock import US, FakeClock

LAUNCH_US = 2
"""Time of a launch on the host, in µs."""
MARK_US, MARK_DEVICE_US = 3, 1
"""Time to record an event, on the host and on the device, in µs."""
SLOW_LAUNCHES, SLOW_US = 5, 400
"""The first launches that a trace records take longer, in µs."""
GPU = GpuState("Example GPU", "570.1", 80 << 30, 3 << 30, 2 << 30, 1980, 1980, 2619)


@dataclass
class Mark:
    """Event in the queue of the device."""

    at_ns: int


class FakeDevice(TorchAccelerator):
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
        self.done_ns = {0: 0}
        """When each stream is done; events are in stream 0."""
        self.known_ns = 0
        self.capturing = False
        self.log: list[str] = []
        self.marks: list[Mark] = []
        self.created = 0
        self._free: list[Mark] = []
        self._on_sync: OnSync | None = None
        self._trace: list[TraceEvent] | None = None
        self._slow_launches = self._links = 0
        self._ever = self._taken = self._peak = 0

    @property
    def is_unobserved(self) -> bool:
        """True if neither syncs nor work are recorded."""
        return self._on_sync is None and self._trace is None

    # Interface for stages

    def launch(
        self,
        us: float,
        kind: TraceKind = "kernel",
        name: str = "k",
        size: int = 0,
        stream: int = 0,
        after_us: float = 0,
        blocking: bool = False,
    ) -> None:
        """Queue work on the device.

        Args:
            us: Time of the work.
            kind: Kernel, copy or fill.
            name: Name of the work.
            size: Copied bytes.
            stream: Stream of the work.
            after_us: Time that the device does nothing before the work.
            blocking: True if the call returns when the work is done.
        """
        began = self.clock.now
        if self._trace is not None and self._slow_launches:
            self._slow_launches -= 1
            self.clock.spin(SLOW_US)
        self.clock.spin(LAUNCH_US)
        starts = max(self.done_ns.get(stream, 0), self.clock.now) + round(after_us * US)
        self._links += 1
        self.done_ns[stream] = starts + round(us * US)
        if blocking:
            self.clock.now = self.done_ns[stream]
        if self._trace is not None:
            call = "cudaLaunchKernel" if kind == "kernel" else "cudaMemcpyAsync"
            self._trace += [
                TraceEvent("call", call, began, self.clock.now - began, 1, self._links),
                TraceEvent(kind, name, starts, round(us * US), stream, self._links, size),
            ]

    def follow(self, stream: int, other: int) -> None:
        """Make a stream wait for the work of another one."""
        self.done_ns[stream] = max(self.done_ns.get(stream, 0), self.done_ns.get(other, 0))

    @contextmanager
    def operator(self, us: float, name: str = "aten::add") -> Iterator[None]:
        """Take time on the host, in an operator around the block."""
        began = self.clock.now
        self.clock.spin(us)
        yield
        if self._trace is not None:
            self._trace.append(TraceEvent("operator", name, began, self.clock.now - began, 1))

    def fetch(self, us: float, size: int, where: str) -> None:
        """Copy data to the host and wait for it."""
        self.launch(us, "copy", "Memcpy DtoH", size)
        self.stop(where)

    def stop(self, where: str, call: str = "cudaStreamSynchronize") -> None:
        """Wait on a line for all work, in a function of the driver.

        Torch warns after most functions that wait; the line of others is a range around them.
        """
        with ExitStack() as ranges:
            if self._on_sync is not None and call != "cudaStreamSynchronize":
                ranges.enter_context(self._on_sync(where, False))
            began = self.clock.now
            self.wait()
            if self._trace is not None:
                taken = self.clock.now - began
                self._trace.append(TraceEvent("call", call, began, taken, 1))
        if self._on_sync is not None and call == "cudaStreamSynchronize":
            with self._on_sync(where, True):
                pass

    def wait(self) -> None:
        """Advance the clock of the host until the queue is empty."""
        self.clock.now = max(self.clock.now, *self.done_ns.values())
        self.known_ns = self.clock.now

    def allocate(self, size: int) -> None:
        """Allocate memory; a negative size frees it."""
        self._ever += max(size, 0)
        self._taken += size
        self._peak = max(self._peak, self._taken)

    # What a device of torch does

    def mark(self) -> Mark:
        assert not self.capturing, "an event would become part of the graph"
        self.log.append("mark")
        if self._free:
            mark = self._free.pop()
        else:
            mark = Mark(0)
            self.created += 1
        self.clock.spin(MARK_US)
        mark.at_ns = max(self.done_ns[0], self.clock.now)
        self.done_ns[0] = mark.at_ns + MARK_DEVICE_US * US
        self.marks.append(mark)
        return mark

    def release(self, events: list[Mark]) -> None:
        self._free += events

    def is_capturing(self) -> bool:
        return self.capturing

    def occupy(self) -> None:
        self.launch(5000)

    def gpu(self) -> GpuState | str:
        return GPU

    def elapsed_ns(self, earlier: Mark, later: Mark) -> int:
        assert later.at_ns <= self.known_ns, "read before the device came to it"
        self.log.append("read")
        return later.at_ns - earlier.at_ns

    def synchronize(self) -> None:
        assert not self.capturing, "a wait ends the capture with an error"
        self.log.append("synchronize")
        self.wait()

    def memory(self) -> tuple[int, int, int]:
        return self._ever, self._taken, self._peak

    def reserved_bytes(self) -> int:
        return 1 << 30

    def reset_peak(self) -> None:
        self._peak = self._taken

    @contextmanager
    def record_syncs(self, callback: OnSync) -> Iterator[None]:
        self._on_sync = callback
        try:
            yield
        finally:
            self._on_sync = None

    @contextmanager
    def record_trace(self, path: Path) -> Iterator[None]:
        events: list[TraceEvent] = []
        self._trace, self._slow_launches = events, SLOW_LAUNCHES
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                observer, "record_function", lambda name: _Range(name, self.clock, events)
            )
            try:
                yield
            finally:
                self._trace = None
                path.write_text(json.dumps([_entry(event) for event in events]))


_CATEGORIES = {
    **{"part": "user_annotation", "operator": "cpu_op", "call": "cuda_runtime"},
    **{"kernel": "kernel", "copy": "gpu_memcpy", "fill": "gpu_memset"},
}


def _entry(event: TraceEvent) -> dict[str, Any]:
    """Return an event as torch writes it."""
    args = {"correlation": event.link, "bytes": event.nbytes, "device": event.device}
    return {
        **{"ph": "X", "cat": _CATEGORIES[event.kind], "name": event.name, "args": args},
        **{"ts": event.start_ns / 1000, "dur": event.duration_ns / 1000, "tid": event.thread},
    }


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
