"""Passes for an accelerator, each in its own rollout.

The device time of a part is the time between two events in the queue of the device, inserted when a
call starts and when it ends, without waiting, and read after a synchronization at the end. The time
between two events belongs to the innermost part, so that the times of all parts add up to the loop.
All events are in the current stream; work in another stream counts where this one waits for it.
Idle time of a device that waits for the host counts too: :attr:`DeviceUse.launch_bound` shows
where.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tdx.core.meter import TRANSFERS, engine_part
from tdx.profiling.passes.accelerator import Accelerator, TraceEvent
from tdx.profiling.passes.host import MemoryLevel, PolledMemory
from tdx.profiling.passes.observer import (
    Observer,
    RowKey,
    TorchProfilerObserver,
    parse_part_index,
)
from tdx.profiling.result import DeviceUse, ModeProfile

WAITING_PART = engine_part("waiting for the device")
"""The host waiting for the device to finish its queue."""
_MIN_BUSY_SHARE = 0.5
"""A device that is busy for a smaller share of its time waits for the host."""
_TO_DEVICE, _TO_HOST = ("htod", "m2d", "hosttodevice"), ("dtoh", "d2m", "devicetohost")
_END = -1
"""Marks the end of the innermost call, in place of a part."""
_NO_USE = DeviceUse(0.0)


class DeviceTimes(Observer):
    """Measures the device time of each part."""

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__()
        self._accelerator = accelerator
        self._marks: list[tuple[Any, int]] = []
        self._own: dict[int, int] = defaultdict(int)

    @contextmanager
    def _recorder(self) -> Iterator[None]:
        # The device is synchronized before and after the block, never inside it.
        self._accelerator.synchronize()
        try:
            yield
        finally:
            self._accelerator.synchronize()
            self._read()

    def _begin(self, place: int) -> None:
        self._marks.append((self._accelerator.mark(), place))

    def _end(self) -> None:
        self._marks.append((self._accelerator.mark(), _END))

    def _read(self) -> None:
        """Add the time between neighboring events to the innermost part."""
        open_parts: list[int] = []
        # Differences of neighboring events are exact enough in the floats that torch returns.
        before: Any = None
        for mark, place in self._marks:
            if open_parts:
                self._own[open_parts[-1]] += self._accelerator.elapsed_ns(before, mark)
            before = mark
            if place == _END:
                open_parts.pop()
            else:
                open_parts.append(place)
        self._marks.clear()

    def add_results(self, profile: ModeProfile, steps: int) -> ModeProfile:
        times = {place: own / steps / 1000 for place, own in self._own.items()}
        uses = self._updated(
            profile.on_device, times, _NO_USE, lambda use, time: replace(use, time_us=time)
        )
        return replace(profile, on_device=uses)


class Syncs(Observer):
    """Counts where the host waits for the device, by part."""

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__()
        self._accelerator = accelerator
        self._around: list[int] = []
        self._counts: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))

    def _recorder(self) -> AbstractContextManager[None]:
        def count(where: str) -> None:
            if self._around:
                self._counts[self._around[-1]][where] += 1

        return self._accelerator.record_syncs(count)

    def _begin(self, place: int) -> None:
        self._around.append(place)

    def _end(self) -> None:
        self._around.pop()

    def add_results(self, profile: ModeProfile, steps: int) -> ModeProfile:
        syncs = {
            place: {where: count / steps for where, count in sorted(counts.items())}
            for place, counts in self._counts.items()
        }
        uses = self._updated(
            profile.on_device, syncs, _NO_USE, lambda use, counts: replace(use, syncs=counts)
        )
        return replace(profile, on_device=uses)


class DeviceMemory(PolledMemory):
    """Observes memory allocated on an accelerator."""

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__()
        self._accelerator = accelerator

    def _level(self) -> MemoryLevel:
        level = MemoryLevel(*self._accelerator.memory())
        self._accelerator.reset_peak()
        return level

    def add_results(self, profile: ModeProfile, steps: int) -> ModeProfile:
        uses = self._updated(
            profile.on_device,
            self._ledger.totals,
            _NO_USE,
            lambda use, totals: replace(
                use,
                allocated_bytes=totals.allocated / steps,
                peak_bytes=totals.peak,
                kept_bytes=totals.kept / steps,
            ),
        )
        return replace(profile, on_device=uses)


@dataclass(slots=True)
class PartWork:
    """Work of a part on the device; times in ns."""

    kernels: int = 0
    kernel_ns: int = 0
    launches: int = 0
    copy_ns: int = 0
    to_device: int = 0
    to_host: int = 0


class DeviceWork(TorchProfilerObserver):
    """Counts kernels, launches and copies of each part."""

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__(memory=False)
        self._accelerator = accelerator
        self._trace: list[TraceEvent] = []

    @contextmanager
    def _recorder(self) -> Iterator[None]:
        self._accelerator.synchronize()
        with self._accelerator.record_trace(self._trace):
            yield

    def add_results(self, profile: ModeProfile, steps: int) -> ModeProfile:

        def apply(use: DeviceUse, work: PartWork) -> DeviceUse:
            kernel_us, copy_us = work.kernel_ns / steps / 1000, work.copy_ns / steps / 1000
            is_idle = kernel_us + copy_us < _MIN_BUSY_SHARE * use.time_us
            return replace(
                use,
                kernels=work.kernels / steps,
                kernel_us=kernel_us,
                launches=work.launches / steps,
                copy_us=copy_us,
                to_device_bytes=work.to_device / steps,
                to_host_bytes=work.to_host / steps,
                launch_bound=work.launches > 0 and is_idle,
            )

        work = attribute_work(self._trace)
        uses = self._updated(profile.on_device, work, _NO_USE, apply)
        return replace(profile, on_device=_split_off_transfers(uses))


def attribute_work(trace: Iterable[TraceEvent]) -> dict[int, PartWork]:
    """Attribute the work of the device to the parts whose calls launched it, by index."""
    events = list(trace)
    launched: dict[int, int] = {}
    results: dict[int, PartWork] = defaultdict(PartWork)
    open_parts: dict[int, list[tuple[int, int]]] = defaultdict(list)
    host = (event for event in events if event.kind in ("part", "launch"))
    for event in sorted(host, key=lambda event: (event.start_ns, -event.duration_ns)):
        mine = open_parts[event.thread]
        while mine and mine[-1][0] <= event.start_ns:
            mine.pop()
        if event.kind == "part":
            mine.append((event.start_ns + event.duration_ns, parse_part_index(event.name)))
        elif mine:
            place = launched[event.link] = mine[-1][1]
            results[place].launches += "launch" in event.name.lower()
    for event in events:
        place = launched.get(event.link, -1)
        if event.kind in ("part", "launch") or place < 0:
            continue
        work = results[place]
        if event.kind != "copy":
            work.kernels += event.kind == "kernel"
            work.kernel_ns += event.duration_ns
            continue
        work.copy_ns += event.duration_ns
        direction = event.name.lower()
        if any(name in direction for name in _TO_DEVICE):
            work.to_device += event.nbytes
        elif any(name in direction for name in _TO_HOST):
            work.to_host += event.nbytes
    return dict(results)


def _split_off_transfers(uses: dict[RowKey, DeviceUse]) -> dict[RowKey, DeviceUse]:
    """Move the time of copies from the parts that make them to a separate row.

    The sum of all times is unchanged; bytes are listed with each part and in the separate row.
    """
    row = TRANSFERS.label, TRANSFERS.lane
    moving = {
        key: min(use.copy_us, max(use.time_us, 0.0))
        for key, use in uses.items()
        if key != row and (use.to_device_bytes or use.to_host_bytes)
    }
    transfers = uses.get(row, _NO_USE)
    if not moving and not transfers.copy_us:
        return uses
    split = {
        key: replace(use, time_us=use.time_us - moving.get(key, 0.0)) for key, use in uses.items()
    }
    split[row] = replace(
        transfers,
        time_us=transfers.time_us + sum(moving.values()),
        copy_us=transfers.copy_us + sum(moving.values()),
        to_device_bytes=sum(use.to_device_bytes for use in uses.values()),
        to_host_bytes=sum(use.to_host_bytes for use in uses.values()),
    )
    return split
