"""Passes for an accelerator, each in its own rollout.

The time of a part on the device is the time between two events in the queue of the device, inserted
when a call starts and when it ends, without waiting, and read after a synchronization at the end.
The time between two events belongs to the innermost part, so that the times of all parts add up to
the loop. All events are in the current stream; work in another stream counts where this one waits
for it, and idle time of the device counts too.

What the device does in that time, and why it is idle, is read from a trace: see
:func:`~tdx.profiling.passes.device_trace.attribute_work`.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tdx.core.meter import engine_part
from tdx.foundation.nvml import GpuState
from tdx.profiling.passes.accelerator import TorchAccelerator, record_trace
from tdx.profiling.passes.device_trace import (
    LINE_PREFIX,
    MIN_SHARE,
    START_RANGE,
    WAIT_PREFIX,
    PartWork,
    TraceEvent,
    attribute_work,
    busy_time,
    parse_part_index,
    read_trace,
)
from tdx.profiling.passes.host import MemoryLevel, PolledMemory
from tdx.profiling.passes.observer import Observer, TorchProfilerObserver
from tdx.profiling.passes.trace_file import stream_entries
from tdx.profiling.result import Bound, DeviceSummary, DeviceUse, DeviceWait, ModeProfile

WAITING_PART = engine_part("waiting for the device")
"""The host waiting for the device to finish its queue."""
_END = -1
"""Marks the end of the innermost call, in place of a part."""
_NO_USE = DeviceUse(0.0)
_CALIBRATION_CALLS, _CALIBRATION_WARMUP = 64, 16


def _summary(profile: ModeProfile, accelerator: TorchAccelerator) -> DeviceSummary:
    return profile.device or DeviceSummary(accelerator.name)


class _Mark(NamedTuple):
    """An event of the device where a part starts, or the innermost one ends (:data:`_END`).

    There is no event while a graph is captured, which it would become part of. ``at_ns`` is the
    time on the host after it was queued.
    """

    event: object | None
    at_ns: int
    place: int


class _Interval(NamedTuple):
    """The time between two neighboring events, in the innermost part; -1 between parts.

    ``starts``: it starts with a call, not with the end of one. ``ends``: it ends with the end of
    one.
    """

    place: int
    device_ns: int
    host_ns: int
    starts: bool
    ends: bool


class _EventCost(NamedTuple):
    """Time in ns that events add between the start and the end of a call, and between calls."""

    inside: float
    between: float

    def of(self, interval: _Interval) -> float:
        """Return the cost in an interval: half of each between two starts or two ends."""
        if interval.starts == interval.ends:
            return self.inside if interval.starts else self.between
        return (self.inside + self.between) / 2


class DeviceTimes(Observer):
    """Measures the time of each part between events on the device.

    Recording an event takes time on the host and on the device. Both are calibrated with an empty
    part: an idle device waits for the host to record, and a busy one does not. The cost is
    subtracted. Also, a host that records events has less of a lead over the device than without
    them, so the device would become idle later: see :func:`remove_event_costs`.
    """

    records_warmup = True

    def __init__(
        self, accelerator: TorchAccelerator, clock: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        super().__init__()
        self._accelerator = accelerator
        self._clock = clock
        self._marks: list[_Mark] = []
        self._intervals: list[_Interval] = []
        self._captured: set[int] = set()
        self._on_host = self._on_device = _EventCost(0.0, 0.0)
        self._gpu: GpuState | str = ""

    @contextmanager
    def _recorder(self) -> Iterator[None]:
        # The device is synchronized before and after the block, never inside it.
        self._accelerator.synchronize()
        self._on_host, self._on_device = self._calibrate(busy=False), self._calibrate(busy=True)
        try:
            yield
        finally:
            self._accelerator.synchronize()
            # Before the clocks of the device drop.
            self._gpu = self._accelerator.gpu()
            self._intervals = self._read()

    def discard(self) -> None:
        self._accelerator.synchronize()
        self._read()

    def _calibrate(self, busy: bool) -> _EventCost:
        """Return the cost of events on an idle or a busy device."""

        def nothing() -> None:
            pass

        empty = self.timed(engine_part("empty"), nothing)
        self._on = True
        try:
            for call in range(_CALIBRATION_WARMUP + _CALIBRATION_CALLS):
                if busy and call == _CALIBRATION_WARMUP:
                    self._accelerator.occupy()
                empty()
        finally:
            self._on = False
        self._accelerator.synchronize()
        costs = [interval.device_ns for interval in self._read()][2 * _CALIBRATION_WARMUP :]
        return _EventCost(median(costs[0::2]), median(costs[1::2]))

    def _begin(self, place: int) -> None:
        self._mark(place)

    def _end(self) -> None:
        self._mark(_END)

    def _mark(self, place: int) -> None:
        if self._accelerator.is_capturing():
            self._captured |= {place} - {_END}
            self._marks.append(_Mark(None, 0, place))
        else:
            self._marks.append(_Mark(self._accelerator.mark(), self._clock(), place))

    def _read(self) -> list[_Interval]:
        """Return the times between the events, and release them."""
        intervals: list[_Interval] = []
        open_parts: list[int] = []
        before: _Mark | None = None
        for mark in self._marks:
            if mark.event is not None:
                if before is not None:
                    # Neighboring events are near enough for the floats that torch returns.
                    taken = self._accelerator.elapsed_ns(before.event, mark.event)
                    place = open_parts[-1] if open_parts else -1
                    starts, ends = before.place != _END, mark.place == _END
                    host_ns = mark.at_ns - before.at_ns
                    intervals.append(_Interval(place, taken, host_ns, starts, ends))
                before = mark
            if mark.place == _END:
                open_parts.pop()
            else:
                open_parts.append(mark.place)
        self._accelerator.release([mark.event for mark in self._marks if mark.event is not None])
        self._marks.clear()
        return intervals

    def add_results(self, profile: ModeProfile, steps: int) -> ModeProfile:
        uses = [profile.on_device.get((part.label, part.lane), _NO_USE) for part in self.parts]
        counts = Counter(interval.place for interval in self._intervals)
        is_traced = profile.device is not None and profile.device.traced_us is not None
        # Without a trace, any part may wait, and the work of a part is unknown.
        waiting: Container[int] = range(-1, len(self.parts))
        work_ns: dict[int, float] = {}
        if is_traced:
            waiting = [at for at, use in enumerate(uses) if use.waits]
            work_ns = {
                at: use.main_stream_us * steps * 1000 / counts[at]
                for at, use in enumerate(uses)
                if counts[at]
            }
        own = remove_event_costs(self._intervals, self._on_host, self._on_device, waiting, work_ns)
        with_events = sum(interval.device_ns for interval in self._intervals if interval.place >= 0)
        times = {place: time_ns / steps / 1000 for place, time_ns in own.items() if place >= 0}

        def apply(use: DeviceUse, time_us: float) -> DeviceUse:
            use = replace(use, time_us=time_us)
            if not is_traced:
                return use
            bound, evidence = find_bound(use)
            is_late = use.launches > 0 and bound in ("launches", "the host")
            return replace(use, bound_by=bound, evidence=evidence, launch_bound=is_late)

        summary = replace(
            _summary(profile, self._accelerator),
            span_us=sum(times.values()),
            events_us=with_events / steps / 1000 - sum(times.values()),
            gpu=None if isinstance(self._gpu, str) else self._gpu,
        )
        notes = [*profile.notes, *([self._gpu] if isinstance(self._gpu, str) else ())]
        if self._captured:
            parts = (self.parts[place] for place in sorted(self._captured))
            labels = ", ".join(f"{part.label} {part.lane}" for part in parts)
            notes.append(
                f"A graph was captured during {labels}: work that is only captured takes no time "
                "on the device, and a replay counts where it is launched."
            )
        updated = self._updated(profile.on_device, times, _NO_USE, apply)
        return replace(profile, on_device=updated, device=summary, notes=tuple(notes))


def remove_event_costs(
    intervals: Iterable[_Interval],
    on_host: _EventCost,
    on_device: _EventCost,
    waiting: Container[int],
    work_ns: Mapping[int, float],
) -> dict[int, float]:
    """Return the time of each part on the device as it would be without the events, in ns.

    How far the device is behind the host follows from the times of both. If it is behind at the end
    of an interval, the interval is its own work and the cost of the event on the device. Otherwise
    it ended when the host came to it, which the events delayed: by their cost in this interval, and
    by that of the earlier ones while the device was behind. Without them, the device might still be
    behind, with the work of the interval to do.

    Args:
        intervals: Times between neighboring events.
        on_host: Cost of the events on the host.
        on_device: Cost of the events on a busy device.
        waiting: Parts that wait for the device, which makes up for the earlier delay.
        work_ns: Time that the device works in a mean interval of each part.
    """
    own: dict[int, float] = defaultdict(float)
    # By how much the device is behind, with events and without.
    lag = free_lag = 0.0
    least = on_host.inside + on_host.between
    for interval in intervals:
        was_behind, lag_before = lag > least, lag
        lag = max(0.0, lag + interval.device_ns - interval.host_ns)
        is_behind = lag > least
        free_host = max(interval.host_ns - on_host.of(interval), 0.0)
        work = work_ns.get(interval.place)
        if is_behind or interval.place in waiting:
            # A device that is not behind has recorded an event long before the next work comes.
            taken = interval.device_ns - (on_device.of(interval) if was_behind else 0.0)
            taken -= 0.0 if is_behind else on_host.of(interval)
            if work is not None and (is_behind or not was_behind):
                # A device that is further behind idles less until the work is launched.
                taken = max(taken - max(free_lag - lag_before, 0.0), min(work, taken))
            taken = max(taken, 0.0)
            free_lag = max(free_lag + taken - free_host, 0.0) if is_behind else lag
        else:
            before, free_lag = free_lag, max(lag, free_lag + (work or 0.0) - free_host)
            taken = max(free_lag + free_host - before, 0.0)
        own[interval.place] += taken
    return own


class SynchronizedTimes(Observer):
    """Measures the time of each part on the host if it waits for the device before and after."""

    def __init__(
        self, accelerator: TorchAccelerator, clock: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        super().__init__()
        self._accelerator = accelerator
        self._clock = clock
        self._open: list[int] = []
        self._before = 0
        self._own: dict[int, int] = defaultdict(int)

    def _begin(self, place: int) -> None:
        self._add_time()
        self._open.append(place)

    def _end(self) -> None:
        self._add_time()
        self._open.pop()

    def _add_time(self) -> None:
        if not self._accelerator.is_capturing():
            self._accelerator.synchronize()
        now = self._clock()
        if self._open:
            self._own[self._open[-1]] += now - self._before
        self._before = now

    def add_results(self, profile: ModeProfile, steps: int) -> ModeProfile:
        times = {place: own / steps / 1000 for place, own in self._own.items()}
        uses = self._updated(
            profile.on_device, times, _NO_USE, lambda use, time: replace(use, synchronized_us=time)
        )
        total = sum(times.values())
        summary = replace(_summary(profile, self._accelerator), synchronized_us=total)
        return replace(profile, on_device=uses, device=summary)


class Syncs(Observer):
    """Counts where the host waits for the device, by part, on devices that report no trace."""

    def __init__(self, accelerator: TorchAccelerator) -> None:
        super().__init__()
        self._accelerator = accelerator
        self._around: list[int] = []
        self._counts: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))

    def _recorder(self) -> AbstractContextManager[None]:
        def count(where: str, is_over: bool) -> AbstractContextManager[None]:
            if self._around:
                self._counts[self._around[-1]][where] += 1
            return nullcontext()

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

    def __init__(self, accelerator: TorchAccelerator) -> None:
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
        summary = replace(
            _summary(profile, self._accelerator), torch_bytes=self._accelerator.reserved_bytes()
        )
        return replace(profile, on_device=uses, device=summary)


class TraceRecorder(TorchProfilerObserver):
    """Writes a trace with a range for each call of a part and each line that waits.

    Without an accelerator, it records the host alone.
    """

    records_warmup = True

    def __init__(self, path: Path, accelerator: TorchAccelerator | None) -> None:
        super().__init__(memory=False)
        self._path = path
        self._device = accelerator

    @contextmanager
    def _recorder(self) -> Iterator[None]:
        device = self._device
        if device is None:
            with record_trace(self._path):
                yield
            return
        device.synchronize()

        def mark_line(line: str, is_over: bool) -> AbstractContextManager[object]:
            name = f"{LINE_PREFIX if is_over else WAIT_PREFIX}{line}"
            return self._range(name) if self._open else nullcontext()

        with (
            device.record_trace(self._path),
            device.record_syncs(mark_line) if device.reports_syncs else nullcontext(),
        ):
            yield

    def discard(self) -> None:
        if self._device is not None:
            # No work of the steps before may be left.
            self._device.synchronize()
        with self._range(START_RANGE):
            pass

    def add_results(self, profile: ModeProfile, steps: int) -> ModeProfile:
        return profile


class DeviceWork(TraceRecorder):
    """Reads from a trace what the device does for each part, and where the host waits for it."""

    def __init__(self, accelerator: TorchAccelerator) -> None:
        super().__init__(Path(), accelerator)
        self._accelerator = accelerator
        self._trace: list[TraceEvent] = []

    @contextmanager
    def _recorder(self) -> Iterator[None]:
        with tempfile.TemporaryDirectory() as folder:
            self._path = Path(folder, "trace.json")
            with super()._recorder():
                yield
            # Ranges of users are no parts of the rollout.
            self._trace += (
                event
                for event in read_trace(stream_entries(self._path))
                if event.kind != "part" or parse_part_index(event.name) >= 0
            )

    def add_results(self, profile: ModeProfile, steps: int) -> ModeProfile:
        scale = 1 / steps / 1000
        result = attribute_work(self._trace)

        def apply(use: DeviceUse, work: PartWork) -> DeviceUse:
            waits = [
                DeviceWait(call, line, count / steps, waited * scale)
                for (call, line), (count, waited) in work.waits.items()
            ]
            return replace(
                use,
                kernels=work.kernels / steps,
                kernel_us=work.kernel_ns * scale,
                launches=work.launches / steps,
                copy_us=work.copy_ns * scale,
                to_device_bytes=work.to_device / steps,
                to_host_bytes=work.to_host / steps,
                busy_us=busy_time(work.busy) * scale,
                main_stream_us=work.main_stream_ns * scale,
                to_device_us=work.to_device_ns * scale,
                to_host_us=work.to_host_ns * scale,
                launching_us=sum(work.launching.values()) * scale,
                launch_delay_us=work.delay_ns / work.kernels / 1000 if work.kernels else 0.0,
                waits=tuple(sorted(waits, key=lambda wait: -wait.time_us)),
                syncs={line: count / steps for line, count in sorted(work.lines.items())},
                idle_host_us=work.idle_host_ns * scale,
                idle_kernel_us=work.idle_kernel_ns * scale,
                idle_other_us=work.idle_other_ns * scale,
                traced_us=work.host_ns * scale,
            )

        uses = self._updated(profile.on_device, result.parts, _NO_USE, apply)
        everything = [*result.parts.values(), result.unattributed]
        summary = replace(
            _summary(profile, self._accelerator),
            traced_us=result.traced_ns * scale,
            busy_us=result.busy_ns * scale,
            unattributed_us=busy_time(result.unattributed.busy) * scale,
            idle_host_us=sum(work.idle_host_ns for work in everything) * scale,
            idle_kernel_us=sum(work.idle_kernel_ns for work in everything) * scale,
            idle_other_us=sum(work.idle_other_ns for work in everything) * scale,
        )
        return replace(profile, on_device=uses, device=summary)


def find_bound(use: DeviceUse) -> tuple[Bound, str]:
    """Return what takes most of the time of a part, and the figures that say so."""

    def of(time_us: float, whole_us: float) -> str:
        return f"{time_us:,.4g} of {whole_us:,.4g} µs"

    if use.wait_us and use.wait_us >= MIN_SHARE * use.traced_us:
        longest = use.waits[0]
        where = f" at {longest.line}" if longest.line else ""
        waits = f"the host waits {of(use.wait_us, use.traced_us)}"
        return "a wait", f"{waits}, mostly in {longest.call}{where}"
    busy = f"the device is busy for {of(use.busy_us, use.time_us)}"
    if use.busy_us > use.main_stream_us * 1.01:
        # The span may be shorter.
        busy = f"the device is busy for {use.busy_us:,.4g} µs, on other streams as well"
    if use.busy_us and use.busy_us >= MIN_SHARE * use.time_us:
        return "kernels", busy
    if use.launching_us and use.launching_us >= MIN_SHARE * use.traced_us:
        launching = of(use.launching_us, use.traced_us)
        return "launches", f"launching work takes {launching} on the host, {busy}"
    rest = max(use.traced_us - use.launching_us - use.wait_us, 0.0)
    text = f"the host spends {of(rest, use.traced_us)} outside of launches and waits"
    return "the host", f"{text}, {busy}" if use.busy_us else text
