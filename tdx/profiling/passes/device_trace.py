"""A trace of an accelerator: its events, and what they say about the parts of a rollout."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

RANGE_PREFIX = "tdx part "
"""Name of the range of a part, before its index, which may be followed by its label."""
LINE_PREFIX, WAIT_PREFIX = "tdx line ", "tdx wait "
"""Names of the ranges of a line that waits for the device, before ``file:line``: after the wait, or
around it."""
START_RANGE = "tdx start"
"""Name of the range after the steps that warm the profiler up."""

TraceKind = Literal["part", "line", "wait", "start", "operator", "call", "kernel", "copy", "fill"]
_TRACE_KINDS: dict[str, TraceKind] = {
    "user_annotation": "part",
    "cpu_op": "operator",
    "cuda_runtime": "call",
    "cuda_driver": "call",
    "xpu_runtime": "call",
    "xpu_driver": "call",
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "gpu_memset": "fill",
}


class TraceEvent(NamedTuple):
    """An event on the host or the device.

    On the host, a call of a part, of an operator or of the driver; a line after its waits or around
    them, named ``file:line``; the start of the measurement. On the device, a kernel, a copy or a
    fill. ``thread`` is that of the host, or the stream of the device. ``link`` is shared by a call
    of the driver and its work on the device; -1 for none.
    """

    kind: TraceKind
    name: str
    start_ns: int
    duration_ns: int
    thread: int = 0
    link: int = -1
    nbytes: int = 0
    device: int = 0


def parse_part_index(name: str) -> int:
    """Return the index of the part that a range is named after; -1 for other names."""
    index = name.removeprefix(RANGE_PREFIX).partition(" ")[0]
    # A user's range may have such a name too.
    return int(index) if name.startswith(RANGE_PREFIX) and index.isdecimal() else -1


def read_trace(entries: Iterable[Mapping[str, Any]]) -> Iterator[TraceEvent]:
    """Convert the relevant entries of a Chrome trace written by torch.

    Ranges of users keep their name as parts; :func:`attribute_work` needs those of tdx.
    """
    for entry in entries:
        kind = _TRACE_KINDS.get(entry.get("cat", ""))
        if kind is None or entry.get("ph") != "X":
            continue
        # A trace has millions of events, and few names.
        name = sys.intern(entry["name"])
        if kind in ("part", "operator"):
            # torch writes a range as one or the other, depending on how it was opened.
            if parse_part_index(name) >= 0:
                kind = "part"
            elif name == START_RANGE:
                kind = "start"
            elif name.startswith(LINE_PREFIX):
                kind, name = "line", name.removeprefix(LINE_PREFIX)
            elif name.startswith(WAIT_PREFIX):
                kind, name = "wait", name.removeprefix(WAIT_PREFIX)
        args = entry.get("args", {})
        yield TraceEvent(
            kind,
            name,
            round(entry["ts"] * 1000),
            round(entry.get("dur", 0) * 1000),
            int(entry["tid"]),
            int(args.get("correlation", -1)),
            int(args.get("bytes", 0)),
            int(args.get("device", 0)),
        )


_TO_DEVICE, _TO_HOST = ("htod", "m2d", "hosttodevice"), ("dtoh", "d2m", "devicetohost")
_SYNC_CALLS = frozenset(
    {
        *("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize"),
        *("cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize"),
        *("hipDeviceSynchronize", "hipStreamSynchronize", "hipEventSynchronize"),
    }
)
CONSECUTIVE_NS = 30_000
"""Idle time between kernels below which it comes from starting the next one.

The limit of HolisticTraceAnalysis, which compares 30 with times in µs.
"""
MIN_SHARE = 0.5
"""What takes at least this share of the time of a part is what bounds it."""

Intervals = list[tuple[int, int]]
"""Start and end of each interval, in ns."""


def busy_time(intervals: Intervals) -> int:
    """Return the time that intervals cover; where they overlap, it counts once.

    Example:
        >>> busy_time([(0, 4), (2, 5), (9, 10)])
        6
    """
    total = until = 0
    for start, end in sorted(intervals):
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total


@dataclass(slots=True)
class PartWork:
    """Work of a part on the device; times in ns.

    Args:
        main_stream_ns: Time of the work on the stream with the most work.
        host_ns: Time on the host, without the parts inside.
        launching: Time of each operator that launches work, or of the call without an operator, by
            its start.
        delay_ns: Total time from the ends of the launches to the starts of the kernels.
        waits: Number and time of waits, by function and line.
        lines: Number of waits that torch reports, by line.
        busy: Start and end of all work.
    """

    kernels: int = 0
    kernel_ns: int = 0
    launches: int = 0
    copy_ns: int = 0
    to_device: int = 0
    to_host: int = 0
    to_device_ns: int = 0
    to_host_ns: int = 0
    main_stream_ns: int = 0
    host_ns: int = 0
    delay_ns: int = 0
    idle_host_ns: int = 0
    idle_kernel_ns: int = 0
    idle_other_ns: int = 0
    launching: dict[int, int] = field(default_factory=dict)
    waits: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    busy: Intervals = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TraceWork:
    """Work in a trace, by index of the part; times in ns.

    The work that no part launched, and idle time outside of parts, is unattributed. ``traced_ns``
    is from the start of the first part to the end of the last part or work.
    """

    parts: dict[int, PartWork]
    unattributed: PartWork
    traced_ns: int
    busy_ns: int


class _Call(NamedTuple):
    """A call of the driver, by the innermost part and the line that it belongs to."""

    place: int
    event: TraceEvent
    line: str


def attribute_work(trace: Iterable[TraceEvent]) -> TraceWork:
    """Attribute the work of the device, its idle time and waits of the host to parts.

    - Work belongs to the innermost part whose thread launched it.
    - A wait is the time in a function that synchronizes, or in a copy that does not return before
      the device has made it.
    - If the device is idle because nothing was launched, the time until the next launch belongs to
      the parts that the host is in meanwhile, and the time from the launch on to the part that
      launches.
    - Other idle time belongs to the part of the work that follows.
    """
    events = sorted(trace, key=lambda event: (event.start_ns, -event.duration_ns))
    # The device has finished all work of earlier steps by then.
    measured_from = max((event.start_ns for event in events if event.kind == "start"), default=0)
    events = [event for event in events if event.start_ns >= measured_from]
    parts: dict[int, PartWork] = defaultdict(PartWork)
    calls = _attribute_calls(events, parts)
    unattributed = PartWork()
    by_link = {call.event.link: call for call in calls if call.event.link >= 0}
    work_events = [event for event in events if event.kind in ("kernel", "copy", "fill")]
    by_stream: Counter[int] = Counter()
    for event in work_events:
        by_stream[event.thread] += event.duration_ns
    main_stream = max(by_stream, key=by_stream.__getitem__, default=0)
    # When copies that may block are done; copies of pinned memory never do.
    copied_at: dict[int, int] = {}
    for event in work_events:
        end = event.start_ns + event.duration_ns
        call = by_link.get(event.link)
        work = unattributed if call is None else parts[call.place]
        work.busy.append((event.start_ns, end))
        work.main_stream_ns += event.duration_ns if event.thread == main_stream else 0
        direction = event.name.lower()
        if event.kind != "copy":
            work.kernels += event.kind == "kernel"
            work.kernel_ns += event.duration_ns
            if event.kind == "kernel" and call is not None:
                # A kernel may start before the call that launched it returns.
                launched = call.event.start_ns + call.event.duration_ns
                work.delay_ns += max(event.start_ns - launched, 0)
            continue
        work.copy_ns += event.duration_ns
        if any(name in direction for name in _TO_DEVICE):
            work.to_device += event.nbytes
            work.to_device_ns += event.duration_ns
        elif any(name in direction for name in _TO_HOST):
            work.to_host += event.nbytes
            work.to_host_ns += event.duration_ns
        else:
            continue
        if call is not None and ("pinned" not in direction or "Async" not in call.event.name):
            copied_at[event.link] = end
    for call in calls:
        event, end = call.event, call.event.start_ns + call.event.duration_ns
        if event.name in _SYNC_CALLS or end >= copied_at.get(event.link, end + 1):
            waits = parts[call.place].waits
            count, waited = waits.get((event.name, call.line), (0, 0))
            waits[event.name, call.line] = count + 1, waited + event.duration_ns
    host_parts = _host_parts(events)
    if not host_parts:
        return TraceWork(dict(parts), unattributed, 0, 0)
    for start, end, place in host_parts:
        parts[place].host_ns += end - start
    everything = [interval for work in (*parts.values(), unattributed) for interval in work.busy]
    first, last = host_parts[0][0], max([host_parts[-1][1], *(end for _, end in everything)])
    if work_events:
        _attribute_idle(work_events, by_link, host_parts, (first, last), parts, unattributed)
    return TraceWork(dict(parts), unattributed, last - first, busy_time(everything))


def _attribute_calls(events: Sequence[TraceEvent], parts: dict[int, PartWork]) -> list[_Call]:
    """Return the calls of the driver inside parts, and count launches and lines that wait."""
    calls: list[_Call] = []
    open_events: dict[int, list[tuple[int, TraceEvent]]] = defaultdict(list)
    # The calls on a thread since the last line, each with the operator around it.
    recent: dict[int, list[tuple[int, TraceEvent | None]]] = defaultdict(list)
    for event in events:
        if event.kind not in ("part", "operator", "call", "line", "wait"):
            continue
        around = open_events[event.thread]
        while around and around[-1][0] <= event.start_ns:
            around.pop()
        if event.kind in ("part", "operator", "wait"):
            around.append((event.start_ns + event.duration_ns, event))
        if event.kind in ("part", "operator"):
            continue
        inner: list[TraceEvent] = []
        for _, outer in reversed(around):
            if outer.kind == "part":
                break
            inner.append(outer)
        else:
            continue
        place = parse_part_index(outer.name)
        work = parts[place]
        if event.kind in ("line", "wait"):
            work.lines[event.name] = work.lines.get(event.name, 0) + 1
        operator = next((each for each in reversed(inner) if each.kind == "operator"), None)
        if event.kind == "call":
            line = next((each.name for each in inner if each.kind == "wait"), "")
            recent[event.thread].append((len(calls), operator))
            calls.append(_Call(place, event, line))
            name = event.name.lower()
            work.launches += "launch" in name
            if any(word in name for word in ("launch", "memcpy", "memset")):
                launching = operator or event
                work.launching[launching.start_ns] = launching.duration_ns
        elif event.kind == "line":
            # It explains all waits of the last operator, such as a copy and what follows it, or the
            # last wait without an operator.
            before = recent.pop(event.thread, [])
            waits = [at for at, _ in before if calls[at].event.name in _SYNC_CALLS]
            explained = waits[-1:]
            if before and before[-1][1] is not None:
                explained = [at for at, operator in before if operator is before[-1][1]]
            for at in explained:
                if not calls[at].line and calls[at].place == place:
                    calls[at] = calls[at]._replace(line=event.name)
    return calls


def _host_parts(events: Sequence[TraceEvent]) -> list[tuple[int, int, int]]:
    """Return when the host is in which innermost part: start, end and index, by start.

    Of several threads, that with the first part is followed.
    """
    found: list[tuple[int, int, int]] = []
    around: list[tuple[int, int]] = []
    thread: int | None = None
    at = 0

    def advance(until: int) -> None:
        nonlocal at
        if around and until > at:
            found.append((at, until, around[-1][1]))
        at = max(at, until)

    for event in events:
        if event.kind != "part" or thread not in (None, event.thread):
            continue
        thread = event.thread
        while around and around[-1][0] <= event.start_ns:
            advance(around[-1][0])
            around.pop()
        advance(event.start_ns)
        around.append((event.start_ns + event.duration_ns, parse_part_index(event.name)))
    while around:
        advance(around[-1][0])
        around.pop()
    return found


def _attribute_idle(
    work_events: Sequence[TraceEvent],
    by_link: dict[int, _Call],
    host_parts: Sequence[tuple[int, int, int]],
    window: tuple[int, int],
    parts: dict[int, PartWork],
    unattributed: PartWork,
) -> None:
    """Add the idle time of the device in a window to the parts that it is due to."""
    starts = [start for start, _, _ in host_parts]

    def add_host_time(start: int, end: int) -> None:
        index = max(bisect_right(starts, start) - 1, 0)
        covered = 0
        while index < len(host_parts) and host_parts[index][0] < end:
            part_start, part_end, place = host_parts[index]
            length = max(0, min(end, part_end) - max(start, part_start))
            parts[place].idle_host_ns += length
            covered += length
            index += 1
        unattributed.idle_host_ns += end - start - covered

    idle_from, last = window
    for event in work_events:
        gap = event.start_ns - idle_from
        if gap > 0:
            call = by_link.get(event.link)
            if call is None:
                if gap < CONSECUTIVE_NS:
                    unattributed.idle_kernel_ns += gap
                else:
                    unattributed.idle_other_ns += gap
            elif call.event.start_ns > idle_from:
                launched = min(call.event.start_ns, event.start_ns)
                add_host_time(idle_from, launched)
                parts[call.place].idle_host_ns += event.start_ns - launched
            elif gap < CONSECUTIVE_NS:
                parts[call.place].idle_kernel_ns += gap
            else:
                parts[call.place].idle_other_ns += gap
        idle_from = max(idle_from, event.start_ns + event.duration_ns)
    if last > idle_from:
        add_host_time(idle_from, last)
