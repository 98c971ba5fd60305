"""Profiles in the formats of programs that draw time lines and flame charts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from typing import Any

from tdx import __version__
from tdx.profiling.calls import Call, call_count, calls_of
from tdx.profiling.result import ModeProfile, Profile

MOST = 200_000
"""Calls that a file holds; about 25 MiB."""
SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_THREAD = 1


def cut_note(profile: Profile, most: int = MOST) -> str | None:
    """What is left out of a file that holds so many calls; none where all fit.

    Args:
        profile: what the file is of.
        most: calls that it holds.
    """
    every = sum(call_count(mode) for mode in profile.modes)
    kept = sum(min(call_count(mode), _each(profile, most)) for mode in profile.modes)
    return f"the first {kept:,} of {every:,} calls" if kept < every else None


def _each(profile: Profile, most: int) -> int:
    return max(most // max(len(profile.modes), 1), 1)


def chrome_trace(profile: Profile, most: int = MOST) -> dict[str, Any]:
    """The calls as Chrome's trace events, which Perfetto and ``chrome://tracing`` open.

    A process for each mode, and in it one thread, the rollout, with a slice for each repeat.

    Args:
        profile: what was measured.
        most: calls that it holds.
    """
    events: list[dict[str, Any]] = []
    for number, mode in enumerate(profile.modes, start=1):
        events += _names(number, mode)
        for repeat, offset, calls in _repeats(mode, _each(profile, most)):
            whole = {"steps": int(mode.steps[repeat])}
            length = int(mode.total_ns[repeat])
            events.append(_slice(number, f"repeat {repeat}", "repeat", offset, length, whole))
            for call in calls:
                args = {"own_us": call.own_ns / 1000, "steps": call.steps}
                begun, length = offset + call.start_ns, call.end_ns - call.start_ns
                work = call.row.part.work
                events.append(_slice(number, name_of(call), work, begun, length, args))
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {
            "exporter": f"tdx {__version__}",
            "subject": profile.subject,
            "settings": asdict(profile.settings),
            "machine": asdict(profile.machine),
            "cut": cut_note(profile, most),
        },
    }


def name_of(call: Call) -> str:
    """What a slice is called: ``2 CatFrames forward``, ``env Pendulum-v1 step``."""
    part = call.row.part
    return part.label if part.work == "engine" else f"{part.label} {part.lane}"


def _names(number: int, mode: ModeProfile) -> Iterator[dict[str, Any]]:
    place = {"ph": "M", "pid": number, "tid": _THREAD}
    yield {**place, "name": "process_name", "args": {"name": mode.mode}}
    yield {**place, "name": "process_sort_index", "args": {"sort_index": number}}
    yield {**place, "name": "thread_name", "args": {"name": "rollout"}}


def _slice(
    number: int, name: str, category: str, begun_ns: int, length_ns: int, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "ts": begun_ns / 1000,
        "dur": length_ns / 1000,
        "pid": number,
        "tid": _THREAD,
        "args": args,
    }


def _repeats(mode: ModeProfile, most: int) -> Iterator[tuple[int, int, Iterator[Call]]]:
    """Each repeat, when it begins if they follow each other, and its calls."""
    begins = [0, *mode.total_ns.cumsum().tolist()]
    for repeat, calls in groupby(calls_of(mode, most), key=lambda call: call.repeat):
        yield repeat, begins[repeat], calls


def speedscope(profile: Profile, most: int = MOST) -> dict[str, Any]:
    """The calls as a file of ``www.speedscope.app``: a profile for each mode.

    Args:
        profile: what was measured.
        most: calls that it holds.
    """
    frames: dict[str, int] = {}
    note = cut_note(profile, most)
    return {
        "$schema": SCHEMA,
        "exporter": f"tdx {__version__}",
        "name": f"{profile.subject} ({note})" if note else profile.subject,
        "activeProfileIndex": 0,
        "profiles": [_evented(mode, frames, _each(profile, most)) for mode in profile.modes],
        "shared": {"frames": [{"name": name} for name in frames]},
    }


def _evented(mode: ModeProfile, frames: dict[str, int], most: int) -> dict[str, Any]:
    events: list[dict[str, Any]] = []
    opened: list[tuple[int, int]] = []

    def close(until: int | None) -> None:
        while opened and (until is None or opened[-1][1] <= until):
            frame, end = opened.pop()
            events.append({"type": "C", "frame": frame, "at": end})

    for _, offset, calls in _repeats(mode, most):
        for call in calls:
            begun = offset + call.start_ns
            close(begun)
            frame = frames.setdefault(name_of(call), len(frames))
            events.append({"type": "O", "frame": frame, "at": begun})
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
