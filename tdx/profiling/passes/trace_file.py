"""Traces recorded by torch, also elsewhere: streamed from files, and summarized by range."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, ClassVar

from tdx.foundation.errors import ArgumentError, TdxError, explain_os_error
from tdx.foundation.serialization import Entries, Result
from tdx.profiling.passes.device_trace import (
    CONSECUTIVE_NS,
    MIN_SHARE,
    RANGE_PREFIX,
    PartWork,
    TraceEvent,
    attribute_work,
    busy_time,
    parse_part_index,
    read_trace,
)

_CHUNK = 1 << 20
_LONGEST_VALUE = 1 << 26
"""Characters after which a value without an end is not JSON; an event has a few hundred."""
_OUTSIDE = "outside of ranges"


def _parse_fraction(text: str) -> Decimal | float:
    """Parse a number exactly: floats of µs since 1970 have steps of 0.25 µs."""
    # The integer of a decimal with an exponent can have any size.
    is_short = len(text) < 32 and "e" not in text and "E" not in text
    return Decimal(text) if is_short else float(text)


class _JsonStream:
    """Parses JSON values one after the other, of which it holds only one."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._buffer = ""
        self._at = 0
        # Names of kernels and paths may have raw control characters.
        self._decode = json.JSONDecoder(strict=False, parse_float=_parse_fraction).raw_decode

    def peek(self) -> str:
        """Return the next character that is no white space, without consuming it."""
        while True:
            while self._at < len(self._buffer) and self._buffer[self._at].isspace():
                self._at += 1
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            self._read(_CHUNK)

    def skip(self, characters: str) -> str:
        """Consume the next character, which must be one of these."""
        character = self.peek()
        if character not in characters:
            raise ValueError(f"{character!r} instead of {characters[0]!r}")
        self._at += 1
        return character

    def value(self) -> Any:
        self.peek()
        while True:
            pending = len(self._buffer) - self._at
            try:
                value, end = self._decode(self._buffer, self._at)
            except json.JSONDecodeError:
                if pending > _LONGEST_VALUE:
                    raise
            else:
                # A number may go on in the next chunk.
                if end < len(self._buffer):
                    self._at = end
                    return value
            # Doubling keeps the cost of long values linear.
            self._read(max(_CHUNK, pending))

    def _read(self, size: int) -> None:
        chunk = self._file.read(size)
        if not chunk:
            raise EOFError
        self._buffer = self._buffer[self._at :] + chunk
        self._at = 0


def stream_entries(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of a Chrome trace, plain or compressed by gzip, in bounded memory.

    Raises:
        ArgumentError: The file cannot be read, is cut off or no trace.
    """
    try:
        with open(path, "rb") as raw:
            opener = gzip.open if raw.read(2) == b"\x1f\x8b" else open
        with opener(path, "rt", encoding="utf-8", errors="replace") as file:
            stream = _JsonStream(file)
            if stream.skip("{[") == "{":
                while stream.value() != "traceEvents":
                    stream.skip(":")
                    stream.value()
                    stream.skip(",")
                stream.skip(":")
                stream.skip("[")
            while stream.peek() != "]":
                entry = stream.value()
                if not isinstance(entry, dict):
                    raise TypeError(f"an event is {repr(entry)[:40]}")
                yield entry
                if stream.peek() != "]":
                    stream.skip(",")
    except EOFError:
        raise ArgumentError(f"{path} is cut off", hint="record the trace again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise ArgumentError(f"{path} is damaged: {error}", hint="copy the trace again") from None
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"{path} is no trace of torch: {error}",
            hint="write one with torch.profiler.profile.export_chrome_trace",
        ) from None
    except OSError as error:
        raise ArgumentError(f"cannot read {path}: {explain_os_error(error)}") from None


@dataclass(frozen=True, slots=True)
class RangeWork(Result):
    """What a range of a trace costs; times in µs.

    Args:
        label: Name of the range; of one that tdx recorded, the part of the rollout.
        calls: How often it was entered.
        busy_us: Time in which the device works for it.
        host_us: Time of the host in it, without ranges inside.
        kernels: Number of kernels.
        kernel_us: Total time of kernels and fills.
        copy_us: Total time of copies.
        to_device_bytes: Bytes copied from the host.
        to_host_bytes: Bytes copied to the host.
        waits: Number of waits of the host for the device.
        wait_us: Total time of these waits.
        idle_host_us: Time in which the device is idle since nothing was launched.
        idle_kernel_us: Time between a kernel and the next one, which was already launched.
        idle_other_us: Time in which it is idle for other reasons.
        delay_us: Mean time from the end of a launch to the start of its kernel.
        bound_by: What takes at least half of its time: ``a wait`` on the host, ``kernels`` on the
            device; otherwise ``the host``, launches included. Empty if the host was never in it.
    """

    json_entries: ClassVar[Entries] = (
        *("label", "calls", "busy_us", "host_us", "kernels", "kernel_us", "copy_us"),
        *("to_device_bytes", "to_host_bytes", "waits", "wait_us", "idle_host_us"),
        *("idle_kernel_us", "idle_other_us", "delay_us", "bound_by"),
    )

    label: str
    calls: int
    busy_us: float
    host_us: float
    kernels: int
    kernel_us: float
    copy_us: float
    to_device_bytes: int
    to_host_bytes: int
    waits: int
    wait_us: float
    idle_host_us: float
    idle_kernel_us: float
    idle_other_us: float
    delay_us: float
    bound_by: str


@dataclass(frozen=True, slots=True)
class RangeWait(Result):
    """Waits of a range in one function; time in µs.

    Args:
        label: Name of the range.
        call: Function of the driver that waits.
        line: Line of code, ``file:line``; empty unless tdx recorded the trace.
        count: Number of waits.
        wait_us: Total time.
    """

    json_entries: ClassVar[Entries] = ("label", "call", "line", "count", "wait_us")

    label: str
    call: str
    line: str
    count: int
    wait_us: float


@dataclass(frozen=True, slots=True)
class StreamWork(Result):
    """Work and idle time between the first and the last work of a stream; times in µs.

    Args:
        device: Index of the device.
        stream: Number of the stream.
        busy_us: Time in which it works.
        idle_host_us: Idle time before work that was launched after the work before it was done.
        idle_kernel_us: Other idle time of less than 30 µs.
        idle_other_us: Other idle time.
    """

    json_entries: ClassVar[Entries] = (
        *("device", "stream", "busy_us", "idle_host_us", "idle_kernel_us", "idle_other_us"),
    )

    device: int
    stream: int
    busy_us: float
    idle_host_us: float
    idle_kernel_us: float
    idle_other_us: float


@dataclass(frozen=True, slots=True)
class TraceSummary(Result):
    """Work of the device in a trace, by range.

    Args:
        source: File.
        traced_us: From the first to the last event.
        busy_us: Time in which the device works.
        unattributed: Share of the busy time of all ranges that no range launched.
        devices: Number of devices; 0 in a trace of the host alone. Several are taken as one: it
            works while any of them works.
        ranges: By busy time, the longest first; without a device, by time on the host.
        waits: Waits of the host for the device, the longest first.
        streams: By busy time, the longest first.
    """

    json_entries: ClassVar[Entries] = (
        *("source", "traced_us", "busy_us", "unattributed", "devices", "ranges", "waits"),
        "streams",
    )

    source: str
    traced_us: float
    busy_us: float
    unattributed: float
    devices: int
    ranges: tuple[RangeWork, ...]
    waits: tuple[RangeWait, ...]
    streams: tuple[StreamWork, ...]


def summarize_trace(path: str | Path) -> TraceSummary:
    """Summarize a trace of torch by the ranges of ``record_function``, or by the parts of tdx.

    Raises:
        ArgumentError: The file cannot be read, or it has neither work of a device nor ranges.
    """
    labels = [_OUTSIDE]
    index_of: dict[str, int] = {}
    events: list[TraceEvent] = []
    calls: Counter[int] = Counter()
    try:
        for event in read_trace(stream_entries(path)):
            # Most events are operators, which the summary does not need.
            if event.kind == "operator":
                continue
            if event.kind == "start":
                # The steps before warmed the profiler up.
                events.clear()
                calls.clear()
            if event.kind == "part":
                # The schedule of torch's profiler numbers its steps.
                label = event.name.partition("#")[0] or event.name
                if parse_part_index(event.name) >= 0:
                    label = event.name.removeprefix(RANGE_PREFIX).partition(" ")[2] or event.name
                index = index_of.setdefault(label, len(labels))
                labels += [label] if index == len(labels) else []
                calls[index] += 1
                event = event._replace(name=f"{RANGE_PREFIX}{index}")
            events.append(event)
    except TdxError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ArgumentError(
            f"{path} is no trace of torch: an event has a wrong entry: {error}"
        ) from None
    work_events = [event for event in events if event.kind in ("kernel", "copy", "fill")]
    if not work_events and not index_of:
        raise ArgumentError(
            f"{path} has neither work of a device nor ranges",
            hint="record it with ProfilerActivity.CUDA among the activities, or name parts of the "
            "program by torch.profiler.record_function",
        )
    # Work outside of all ranges needs a cause of its idle time too: a range around each thread.
    first = min(event.start_ns for event in events)
    last = max(event.start_ns + event.duration_ns for event in events)
    hosts: Counter[int] = Counter()
    for event in events:
        if event.kind in ("part", "call"):
            hosts[event.thread] += 1 if event.kind == "call" else len(events)
    # The first thread is that whose ranges get the idle time, so it is one with ranges. A trace of
    # the device alone has no thread.
    around = [
        TraceEvent("part", f"{RANGE_PREFIX}0", first, last - first, thread)
        for thread, _ in hosts.most_common() or [(0, 0)]
    ]
    work = attribute_work(around + events)
    outside = work.parts.pop(0, PartWork())
    ranges = [_range_work(labels[at], calls[at], part) for at, part in work.parts.items()]
    ranges.sort(key=lambda part: (-part.busy_us, -part.host_us, part.label))
    outside_work = _range_work(_OUTSIDE, 0, outside)
    unknown = _range_work("unattributed", 0, work.unattributed)
    ranges += [part for part in (outside_work, unknown) if part.busy_us or part.idle_host_us]
    total = sum(part.busy_us for part in ranges)
    waits = [
        RangeWait(labels[at], call, line, count, waited / 1000)
        for at, part in [*work.parts.items(), (0, outside)]
        for (call, line), (count, waited) in part.waits.items()
    ]
    launched_at = {
        event.link: event.start_ns for event in events if event.kind == "call" and event.link >= 0
    }
    streams: dict[tuple[int, int], list[TraceEvent]] = defaultdict(list)
    for event in work_events:
        streams[event.device, event.thread].append(event)
    stream_work = [
        _stream_work(device, stream, on_stream, launched_at)
        for (device, stream), on_stream in streams.items()
    ]
    return TraceSummary(
        str(path),
        work.traced_ns / 1000,
        work.busy_ns / 1000,
        (outside_work.busy_us + unknown.busy_us) / total if total else 0.0,
        len({event.device for event in work_events}),
        tuple(ranges),
        tuple(sorted(waits, key=lambda wait: -wait.wait_us)),
        tuple(sorted(stream_work, key=lambda each: (-each.busy_us, each.device, each.stream))),
    )


def _stream_work(
    device: int, stream: int, work: list[TraceEvent], launched_at: Mapping[int, int]
) -> StreamWork:
    """Return the work of one stream, and its idle time by cause."""
    idle = {"host": 0, "kernel": 0, "other": 0}
    work.sort(key=lambda event: event.start_ns)
    for before, event in pairwise(work):
        end = before.start_ns + before.duration_ns
        gap = event.start_ns - end
        if launched_at.get(event.link, 0) > end:
            idle["host"] += gap
        else:
            idle["kernel" if gap < CONSECUTIVE_NS else "other"] += gap
    busy = busy_time([(event.start_ns, event.start_ns + event.duration_ns) for event in work])
    return StreamWork(device, stream, busy / 1000, *(time_ns / 1000 for time_ns in idle.values()))


def _range_work(label: str, calls: int, work: PartWork) -> RangeWork:
    busy_ns = busy_time(work.busy)
    wait_ns = sum(waited for _, waited in work.waits.values())
    idle_ns = work.idle_host_ns + work.idle_kernel_ns + work.idle_other_ns
    if not work.host_ns or not (busy_ns or idle_ns or wait_ns):
        bound = ""
    elif wait_ns >= MIN_SHARE * work.host_ns:
        bound = "a wait"
    else:
        bound = "kernels" if busy_ns >= MIN_SHARE * (busy_ns + idle_ns) else "the host"
    return RangeWork(
        label,
        calls,
        busy_ns / 1000,
        work.host_ns / 1000,
        work.kernels,
        work.kernel_ns / 1000,
        work.copy_ns / 1000,
        work.to_device,
        work.to_host,
        sum(count for count, _ in work.waits.values()),
        wait_ns / 1000,
        work.idle_host_ns / 1000,
        work.idle_kernel_ns / 1000,
        work.idle_other_ns / 1000,
        work.delay_ns / work.kernels / 1000 if work.kernels else 0.0,
        bound,
    )
