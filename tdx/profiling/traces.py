"""The calls of a rollout: in order, as a tree, and in the formats of trace viewers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import Any

import numpy as np

from tdx import __version__
from tdx.core.meter import UNATTRIBUTED
from tdx.foundation.serialization import to_plain
from tdx.profiling.result import ModeProfile, Profile, Row

WHOLE_STEP = "whole step"


@dataclass(frozen=True, slots=True)
class TimedCall:
    """One call of one part; times since the beginning of the repeat.

    ``place`` is the index of the row in its mode, ``own_ns`` the time without the parts inside, and
    ``depth`` the number of calls around it.
    """

    row: Row
    place: int
    repeat: int
    start_ns: int
    end_ns: int
    own_ns: int
    steps: int
    depth: int


def iterate_calls(mode: ModeProfile, most: int | None = None) -> Iterator[TimedCall]:
    """Yield the calls of all repeats by start; an inner call never ends after its outer call."""
    rows = mode.rows
    counts = [len(row.times_ns) for row in rows]
    if not sum(counts):
        return
    place = np.repeat(np.arange(len(counts)), counts)
    start, span, own, steps, repeat = (
        np.concatenate([getattr(row, name) for row in rows])
        for name in ("starts_ns", "spans_ns", "times_ns", "steps", "repeats")
    )
    order = np.lexsort((-span, start, repeat))[:most]
    columns = (place, repeat, start, start + span, own, steps)
    open_ends: list[int] = []
    current_repeat = -1
    for row, number, start, end, own_time, covered in zip(
        *(column[order].tolist() for column in columns), strict=True
    ):
        if number != current_repeat:
            open_ends, current_repeat = [], number
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        clipped_end = min(end, open_ends[-1]) if open_ends else end
        yield TimedCall(
            mode.rows[row], row, number, start, clipped_end, own_time, covered, len(open_ends)
        )
        open_ends.append(clipped_end)


def count_calls(mode: ModeProfile) -> int:
    """Return the number of timed calls."""
    return sum(len(row.times_ns) for row in mode.rows)


@dataclass(slots=True)
class CallNode:
    """Time of one part inside another one, in the mean step; inner parts by first call.

    ``own_us`` excludes inner parts, ``step_us`` does not.
    """

    label: str
    lane: str
    work: str
    step_us: float = 0.0
    own_us: float = 0.0
    calls: float = 0.0
    children: dict[tuple[str, str], CallNode] = field(default_factory=dict)

    def depth(self) -> int:
        """Return the number of levels, including this one."""
        return 1 + max((child.depth() for child in self.children.values()), default=0)


def build_mean_step(mode: ModeProfile) -> CallNode:
    """Build the call tree of the mean step."""
    steps = max(int(mode.steps.sum()), 1)
    root = CallNode(WHOLE_STEP, "", "engine", mode.step_us, calls=1.0)
    stack = [root]
    for call in iterate_calls(mode):
        del stack[call.depth + 1 :]
        if call.row.part.name == UNATTRIBUTED:
            # The unattributed part contains all others: it is the step itself.
            stack.append(stack[-1])
            continue
        key, work = call.row.key, call.row.part.work
        node = stack[-1].children.setdefault(key, CallNode(*key, work))
        node.own_us += call.own_ns / steps / 1000
        node.calls += 1 / steps
        stack.append(node)
    inside = sum(_add_up(child) for child in root.children.values())
    root.own_us = max(root.step_us - inside, 0.0)
    return root


def _add_up(node: CallNode) -> float:
    """Set the time of each node to that of its parts, without the cost of the clock."""
    node.step_us = node.own_us + sum(_add_up(child) for child in node.children.values())
    return node.step_us


MAX_CALLS = 200_000
"""Maximum number of calls in a file; about 25 MiB."""
SPEEDSCOPE_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_THREAD = 1


def describe_omitted_calls(profile: Profile, most: int = MAX_CALLS) -> str | None:
    """Describe which calls a file of limited size omits; ``None`` if it holds all."""
    every = sum(count_calls(mode) for mode in profile.modes)
    kept = sum(min(count_calls(mode), _calls_per_mode(profile, most)) for mode in profile.modes)
    return f"the first {kept:,} of {every:,} calls" if kept < every else None


def _calls_per_mode(profile: Profile, most: int) -> int:
    return max(most // max(len(profile.modes), 1), 1)


def to_chrome_trace(profile: Profile, most: int = MAX_CALLS) -> dict[str, Any]:
    """Convert the calls to Chrome trace events, for Perfetto and ``chrome://tracing``.

    Each mode is a process with one thread, the rollout, with a slice per repeat.
    """
    events: list[dict[str, Any]] = []
    for number, mode in enumerate(profile.modes, start=1):
        of_process = {"ph": "M", "pid": number, "tid": _THREAD}
        events += [
            {**of_process, "name": "process_name", "args": {"name": mode.mode}},
            {**of_process, "name": "process_sort_index", "args": {"sort_index": number}},
            {**of_process, "name": "thread_name", "args": {"name": "rollout"}},
        ]
        lengths = _repeat_lengths(mode)
        for repeat, offset, calls in _iterate_repeats(mode, _calls_per_mode(profile, most)):
            whole = {"steps": int(mode.steps[repeat])}
            length = lengths[repeat]
            events.append(_slice_event(number, f"repeat {repeat}", "repeat", offset, length, whole))
            for call in calls:
                args = {"own_us": call.own_ns / 1000, "steps": call.steps}
                start, length = offset + call.start_ns, call.end_ns - call.start_ns
                work = call.row.part.work
                events.append(
                    _slice_event(number, format_slice_name(call), work, start, length, args)
                )
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {
            "exporter": f"tdx {__version__}",
            "subject": profile.subject,
            "settings": to_plain(profile.settings),
            "machine": to_plain(profile.machine),
            "cut": describe_omitted_calls(profile, most),
        },
    }


def format_slice_name(call: TimedCall) -> str:
    """Return the name of a slice: ``2 CatFrames forward``, ``env Pendulum-v1 step``."""
    part = call.row.part
    return part.label if part.work == "engine" else f"{part.label} {part.lane}"


def _slice_event(
    number: int, name: str, category: str, start_ns: int, length_ns: int, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "ts": start_ns / 1000,
        "dur": length_ns / 1000,
        "pid": number,
        "tid": _THREAD,
        "args": args,
    }


def _iterate_repeats(
    mode: ModeProfile, most: int
) -> Iterator[tuple[int, int, Iterator[TimedCall]]]:
    """Yield each repeat, its start if repeats follow each other, and its calls."""
    begins = [0, *accumulate(_repeat_lengths(mode))]
    for repeat, calls in groupby(iterate_calls(mode, most), key=lambda call: call.repeat):
        yield repeat, begins[repeat], calls


def _repeat_lengths(mode: ModeProfile) -> list[int]:
    """Return the nanoseconds of each repeat with the cost of the clock, which calls include."""
    lengths = mode.total_ns.copy()
    for row in mode.rows:
        np.maximum.at(lengths, row.repeats, row.starts_ns + row.spans_ns)
    found: list[int] = lengths.tolist()
    return found


def to_speedscope(profile: Profile, most: int = MAX_CALLS) -> dict[str, Any]:
    """Convert the calls to a file for ``www.speedscope.app`` with one profile per mode."""
    frames: dict[str, int] = {}
    note = describe_omitted_calls(profile, most)
    return {
        "$schema": SPEEDSCOPE_SCHEMA,
        "exporter": f"tdx {__version__}",
        "name": f"{profile.subject} ({note})" if note else profile.subject,
        "activeProfileIndex": 0,
        "profiles": [
            _speedscope_profile(mode, frames, _calls_per_mode(profile, most))
            for mode in profile.modes
        ],
        "shared": {"frames": [{"name": name} for name in frames]},
    }


def _speedscope_profile(mode: ModeProfile, frames: dict[str, int], most: int) -> dict[str, Any]:
    events: list[dict[str, Any]] = []
    opened: list[tuple[int, int]] = []

    def close(until: int | None) -> None:
        while opened and (until is None or opened[-1][1] <= until):
            frame, end = opened.pop()
            events.append({"type": "C", "frame": frame, "at": end})

    for _, offset, calls in _iterate_repeats(mode, most):
        for call in calls:
            start = offset + call.start_ns
            close(start)
            frame = frames.setdefault(format_slice_name(call), len(frames))
            events.append({"type": "O", "frame": frame, "at": start})
            opened.append((frame, offset + call.end_ns))
        close(None)
    return {
        "type": "evented",
        "name": mode.mode,
        "unit": "nanoseconds",
        "startValue": 0,
        "endValue": max(int(mode.total_ns.sum()), events[-1]["at"] if events else 0),
        "events": events,
    }
