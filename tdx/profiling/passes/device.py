"""The passes for an accelerator, each in a rollout of its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tdx.core.meter import TRANSFERS, Lane, Part, engine_part
from tdx.profiling.passes.accelerator import Accelerator, TraceEvent
from tdx.profiling.passes.observer import Observer, TorchProfilerObserver, parse_part_index
from tdx.profiling.result import DeviceUse, ModeProfile

WAITING_PART = engine_part("waiting for the device")
"""The host, once it has given the device all that there is."""
_MIN_BUSY_SHARE = 0.5
"""A device that works for less of its time than this waits for the host."""
_TO_DEVICE, _TO_HOST = ("htod", "m2d", "hosttodevice"), ("dtoh", "d2m", "devicetohost")
_END = -1
"""In the place of a part: the innermost call ends."""
DeviceKey = tuple[str, Lane]


class DeviceTimes(Observer):
    """How long each part takes on the device.

    Args:
        accelerator: the device.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__()
        self._accelerator = accelerator
        self._marks: list[tuple[Any, int]] = []
        self._own: dict[int, int] = defaultdict(int)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """See :class:`Observer`; waits for the device before and after the block, never in it."""
        self._accelerator.synchronize()
        self._on = True
        try:
            yield
        finally:
            self._on = False
            self._accelerator.synchronize()
            self._read()

    def _begin(self, place: int) -> None:
        self._marks.append((self._accelerator.mark(), place))

    def _end(self) -> None:
        self._marks.append((self._accelerator.mark(), _END))

    def _read(self) -> None:
        """Give the time between neighbouring marks to the part that was innermost."""
        around: list[int] = []
        # Neighbours are near enough to each other for the floats in which events tell times.
        before: Any = None
        for mark, place in self._marks:
            if around:
                self._own[around[-1]] += self._accelerator.between_ns(before, mark)
            before = mark
            if place == _END:
                around.pop()
            else:
                around.append(place)
        self._marks.clear()

    def found(self, profile: ModeProfile, steps: int) -> ModeProfile:
        """See :class:`Observer`."""
        times = {place: own / steps / 1000 for place, own in self._own.items()}
        return _update_uses(
            profile, self.parts, times, lambda use, time: replace(use, time_us=time)
        )


class Syncs(Observer):
    """Where the host waits for the device, by part.

    Args:
        accelerator: one that tells.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__()
        self._accelerator = accelerator
        self._around: list[int] = []
        self._seen: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))

    @contextmanager
    def recording(self) -> Iterator[None]:
        """See :class:`Observer`."""
        with self._accelerator.watched(self._told):
            self._on = True
            try:
                yield
            finally:
                self._on = False

    def _told(self, place: str) -> None:
        if self._around:
            self._seen[self._around[-1]][place] += 1

    def _begin(self, place: int) -> None:
        self._around.append(place)

    def _end(self) -> None:
        self._around.pop()

    def found(self, profile: ModeProfile, steps: int) -> ModeProfile:
        """See :class:`Observer`."""
        syncs = {
            place: {where: count / steps for where, count in sorted(seen.items())}
            for place, seen in self._seen.items()
        }
        return _update_uses(profile, self.parts, syncs, lambda use, each: replace(use, syncs=each))


@dataclass(slots=True)
class PartWork:
    """What a part has the device do; times in ns."""

    kernels: int = 0
    kernel_ns: int = 0
    launches: int = 0
    copy_ns: int = 0
    to_device: int = 0
    to_host: int = 0


class DeviceWork(TorchProfilerObserver):
    """Kernels, launches and copies of each part.

    Args:
        accelerator: one that tells.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__(memory=False)
        self._accelerator = accelerator
        self._trace: list[TraceEvent] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        """See :class:`Observer`."""
        self._accelerator.synchronize()
        with self._accelerator.traced(self._trace):
            self._on = True
            try:
                yield
            finally:
                self._on = False

    def found(self, profile: ModeProfile, steps: int) -> ModeProfile:
        """See :class:`Observer`."""
        work = attribute_work(self._trace)
        profile = _update_uses(
            profile, self.parts, work, lambda use, each: _apply_work(use, each, steps)
        )
        return replace(profile, on_device=_split_off_transfers(profile.on_device))


def attribute_work(trace: Iterable[TraceEvent]) -> dict[int, PartWork]:
    """What the device does, by the place of the part whose call has launched it.

    Args:
        trace: in any order.
    """
    events = list(trace)
    launched: dict[int, int] = {}
    found: dict[int, PartWork] = defaultdict(PartWork)
    around: dict[int, list[tuple[int, int]]] = defaultdict(list)
    host = (each for each in events if each.kind in ("part", "launch"))
    for event in sorted(host, key=lambda each: (each.start_ns, -each.duration_ns)):
        mine = around[event.thread]
        while mine and mine[-1][0] <= event.start_ns:
            mine.pop()
        if event.kind == "part":
            mine.append((event.start_ns + event.duration_ns, parse_part_index(event.name)))
        elif mine:
            place = launched[event.link] = mine[-1][1]
            found[place].launches += "launch" in event.name.lower()
    for event in events:
        place = launched.get(event.link, -1)
        if event.kind not in ("part", "launch") and place >= 0:
            _add_work(found[place], event)
    return dict(found)


def _add_work(work: PartWork, event: TraceEvent) -> None:
    if event.kind != "copy":
        work.kernels += event.kind == "kernel"
        work.kernel_ns += event.duration_ns
        return
    work.copy_ns += event.duration_ns
    direction = event.name.lower()
    if any(each in direction for each in _TO_DEVICE):
        work.to_device += event.nbytes
    elif any(each in direction for each in _TO_HOST):
        work.to_host += event.nbytes


def _apply_work(use: DeviceUse, work: PartWork, steps: int) -> DeviceUse:
    kernel_us, copy_us = work.kernel_ns / steps / 1000, work.copy_ns / steps / 1000
    return replace(
        use,
        kernels=work.kernels / steps,
        kernel_us=kernel_us,
        launches=work.launches / steps,
        copy_us=copy_us,
        to_device_bytes=work.to_device / steps,
        to_host_bytes=work.to_host / steps,
        launch_bound=work.launches > 0 and kernel_us + copy_us < _MIN_BUSY_SHARE * use.time_us,
    )


def _split_off_transfers(uses: dict[DeviceKey, DeviceUse]) -> dict[DeviceKey, DeviceUse]:
    """Take the time of copies out of the parts that make them, into a row of their own.

    The sum of all times stays; the bytes are told twice, with each part and as a whole.
    """
    row = TRANSFERS.label, TRANSFERS.lane
    moving = {
        key: min(use.copy_us, max(use.time_us, 0.0))
        for key, use in uses.items()
        if key != row and (use.to_device_bytes or use.to_host_bytes)
    }
    own = uses.get(row, DeviceUse(0.0))
    if not moving and not own.copy_us:
        return uses
    taken = {
        key: replace(use, time_us=use.time_us - moving.get(key, 0.0)) for key, use in uses.items()
    }
    taken[row] = replace(
        own,
        time_us=own.time_us + sum(moving.values()),
        copy_us=own.copy_us + sum(moving.values()),
        to_device_bytes=sum(use.to_device_bytes for use in uses.values()),
        to_host_bytes=sum(use.to_host_bytes for use in uses.values()),
    )
    return taken


def _update_uses(
    profile: ModeProfile,
    parts: list[Part],
    found: dict[int, Any],
    change: Callable[[DeviceUse, Any], DeviceUse],
) -> ModeProfile:
    """The profile, with what was found put into the parts' uses of the device."""
    uses = dict(profile.on_device)
    for place, each in found.items():
        key = parts[place].label, parts[place].lane
        uses[key] = change(uses.get(key, DeviceUse(0.0)), each)
    return replace(profile, on_device=uses)
