"""What a profile says beside times: modes next to each other, memory, operators, the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from tdx.cli.output.terminal import UNLIMITED
from tdx.cli.output.view import Block, Cell, Column, Heading, Paragraph, Table
from tdx.cli.views.profile_columns import count, histogram, micros, number_table
from tdx.core.meter import Lane
from tdx.profiling.result import (
    DeviceUse,
    MemoryUse,
    ModeProfile,
    OperatorUse,
    Profile,
    Row,
)

Found = TypeVar("Found")
Key = tuple[str, Lane]

_BINS, _BAR = 8, 30
_DISPENSABLE = (
    *("objects kept", "objects' peak", "kernel µs", "copy µs", "added", "peak", "launches"),
    *("bytes out", "bytes in", "kernels", "bound", "lane"),
)
"""Columns that a narrow terminal goes without, the first one first."""
_TEXTS = ("part", "lane", "bound", "operator")
_DEAREST = 10
"""Operators that a terminal shows; a pipe gets all of them."""


def side_by_side(profile: Profile, width: int) -> Iterator[Block]:
    """What a step takes in each mode, in all and by part."""
    first = profile.modes[0]
    yield Heading("modes", f"µs of a step; faster than {first.mode} in brackets")
    names = {row.key: None for mode in profile.modes for row in mode.rows}
    rows = [[*_named(key), *(_of_step(mode, key) for mode in profile.modes)] for key in names]
    totals = [_total(mode, first) for mode in profile.modes]
    rates = [Cell(count(mode.frames_per_second)) for mode in profile.modes]
    noise = [Cell(f"±{mode.noise.spread:.1%}", "dim") for mode in profile.modes]
    rows.append([Cell("whole step", "name"), Cell(""), *totals])
    rows.append([Cell("frames/s", "name"), Cell(""), *rates])
    rows.append([Cell("noise", "dim"), Cell(""), *noise])
    yield number_table(
        ("part", "lane", *(mode.mode for mode in profile.modes)), rows, width, _TEXTS, _DISPENSABLE
    )


def _named(key: tuple[str, str]) -> tuple[Cell, Cell]:
    return Cell(key[0], "name"), Cell(key[1], "dim")


def _of_step(mode: ModeProfile, key: tuple[str, str]) -> Cell:
    found = next((row for row in mode.rows if row.key == key), None)
    return Cell("–", "dim") if found is None else Cell(micros(mode.step_share_us(found)))


def _total(mode: ModeProfile, first: ModeProfile) -> Cell:
    told = micros(mode.step_us)
    if mode is not first and mode.step_us and first.step_us:
        told = f"({first.step_us / mode.step_us:.2f} ×) {told}"
    return Cell(told, "name")


def histograms(rows: Sequence[Row]) -> Iterator[Block]:
    """The times of each row as bars."""
    for row in rows:
        if len(row.times_ns) < 2:
            continue
        counts, edges = histogram(row.samples_us, _BINS)
        most = max(counts)
        bars = [
            [
                Cell(f"  {micros(low)} … {micros(high)}" + (" and above" if last else ""), "dim"),
                Cell(f"{each:,}"),
                Cell("█" * -(-each * _BAR // most), "added"),
            ]
            for each, low, high, last in zip(
                counts, edges[:-1], edges[1:], [False] * (_BINS - 1) + [True], strict=True
            )
        ]
        per = "step" if row.covers_many else "call"
        yield Heading(f"{row.part.label} {row.part.lane}", f"µs of a {per}")
        yield Table([Column(fixed=True)] * 3, bars)


def details(mode: ModeProfile, width: int, rows: Sequence[Row] | None = None) -> Iterator[Block]:
    """What was measured in passes of their own, where it was.

    Args:
        mode: whose.
        width: columns of the terminal.
        rows: those that are shown; all by default.
    """
    shown = {row.key for row in rows} if rows is not None else None

    def chosen(found: Mapping[Key, Found]) -> dict[Key, Found]:
        return {key: use for key, use in found.items() if shown is None or key in shown}

    device, memory = chosen(mode.on_device), chosen(mode.memory)
    operators = chosen(mode.operators)
    if device:
        yield Heading("on the device", "in a step")
        yield _device(device, width)
        yield from _syncs(device)
    if memory:
        yield Heading("memory", "bytes in a step; the peak above what was there before a call")
        yield _memory(memory, width)
    if operators:
        yield Heading("operators", "in a step, as the slower pass for operators saw them")
        yield from _operators(operators, width)


def _device(uses: Mapping[Key, DeviceUse], width: int) -> Table:
    rows = []
    for key, use in uses.items():
        copied = (use.to_device_bytes, use.to_host_bytes)
        numbers = (use.kernels, use.launches, *copied, use.allocated_bytes, use.peak_bytes)
        rows.append(
            [
                *_named(key),
                Cell(micros(use.time_us)),
                Cell(micros(use.kernel_us)),
                Cell(micros(use.copy_us)),
                *(Cell(_few(number)) for number in numbers),
                Cell(_few(sum(use.syncs.values())), "bad" if use.syncs else ""),
                Cell("launch" if use.launch_bound else "", "changed"),
            ]
        )
    titles = (
        "µs",
        "kernel µs",
        "copy µs",
        "kernels",
        "launches",
        "bytes in",
        "bytes out",
        "added",
        "peak",
        "syncs",
        "bound",
    )
    return number_table(("part", "lane", *titles), rows, width, _TEXTS, _DISPENSABLE)


def _syncs(uses: Mapping[Key, DeviceUse]) -> Iterator[Paragraph]:
    """Where the host waits for the device."""
    for (label, lane), use in uses.items():
        for line, often in use.syncs.items():
            times = "once" if often == 1 else f"{_few(often)} times"
            told = Cell(f": waits for the device {times} a step at {line}")
            yield Paragraph([Cell(f"{label} {lane}", "name"), told], indent=2)


def _memory(uses: Mapping[Key, MemoryUse], width: int) -> Table:
    rows = [
        [
            *_named(key),
            Cell(count(use.allocated_bytes)),
            Cell(count(use.peak_bytes)),
            Cell(_few(use.kept_bytes)),
            Cell(count(use.objects_peak_bytes)),
            Cell(_few(use.objects_kept_bytes)),
        ]
        for key, use in uses.items()
    ]
    titles = ("allocated", "peak", "kept", "objects' peak", "objects kept")
    return number_table(("part", "lane", *titles), rows, width, _TEXTS, _DISPENSABLE)


def _operators(found: Mapping[Key, tuple[OperatorUse, ...]], width: int) -> Iterator[Block]:
    every = [(key, use) for key, uses in found.items() for use in uses]
    if width != UNLIMITED:
        every.sort(key=lambda each: each[1].time_us, reverse=True)
    left = 0 if width == UNLIMITED else max(0, len(every) - _DEAREST)
    rows = [
        [*_named(key), Cell(micros(use.time_us)), Cell(_few(use.calls)), Cell(use.name)]
        for key, use in every[: len(every) - left]
    ]
    yield number_table(
        ("part", "lane", "µs", "calls", "operator"), rows, width, _TEXTS, _DISPENSABLE
    )
    if left:
        told = f"{left} cheaper ones are shown where this is not a terminal, as with `| less`"
        yield Paragraph([Cell(told, "dim")], indent=2)


def _few(value: float) -> str:
    """A number that is often whole."""
    if abs(value) < 0.005:
        return "0"
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 100 else f"{value:.2f}"
