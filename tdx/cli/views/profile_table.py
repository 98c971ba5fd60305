"""Tables of costs, which drop columns to fit into narrow terminals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tdx.cli.views import Cell, Column, Style, Table, micros, sparkline
from tdx.profiling.result import (
    FloatArray,
    ModeProfile,
    Row,
    Statistics,
    compute_statistics,
    histogram,
)

_BAR_WIDTH, _BINS = 12, 12
_TEXT_TITLES = ("part", "lane", "", "histogram")
PER_CALL = "µs/call"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a cost table.

    Args:
        samples: Time of each call in µs, float64 ``[n]``.
        step_us: Time per mean step. ``None``: not part of a step.
        share: Share of the total time, 0 to 1. ``None``: not part of it.
        steps_per_call: Number of steps for each call. ``None``: it is not called for steps.
    """

    name: str
    lane: str
    statistics: Statistics | None
    samples: FloatArray | None
    step_us: float | None
    share: float | None
    frames_per_second: float | None
    steps_per_call: float | None = None
    device_us: float | None = None
    style: Style = "name"


def line_of(mode: ModeProfile, row: Row) -> Line:
    """Return the line of a part."""
    step_us, use = mode.step_share_us(row), mode.on_device.get(row.key)
    return Line(
        name=row.part.label,
        lane=row.part.lane,
        statistics=row.statistics,
        samples=row.samples_us,
        step_us=step_us,
        share=mode.share(row),
        frames_per_second=_rate(mode, step_us),
        steps_per_call=mode.steps_per_call(row),
        device_us=None if use is None else use.time_us,
        style="dim" if row.part.work == "engine" else "name",
    )


def others_line(mode: ModeProfile, rows: Sequence[Row]) -> Line:
    """Return one line for the parts that are not shown separately."""
    step_us = sum(mode.step_share_us(row) for row in rows)
    uses = [mode.on_device[row.key].time_us for row in rows if row.key in mode.on_device]
    return Line(
        name=f"{len(rows)} other rows",
        lane="",
        statistics=None,
        samples=None,
        step_us=step_us,
        share=sum(mode.share(row) for row in rows),
        frames_per_second=_rate(mode, step_us),
        device_us=sum(uses) if uses else None,
        style="dim",
    )


def total_line(mode: ModeProfile) -> Line:
    """Return the line of the whole step, of which there is no single call."""
    device = sum(use.time_us for use in mode.on_device.values())
    return Line(
        name="whole step",
        lane="",
        statistics=None,
        samples=None,
        step_us=mode.step_us,
        share=1.0,
        frames_per_second=mode.frames_per_second,
        device_us=device if mode.on_device else None,
    )


def specs_line(mode: ModeProfile) -> Line:
    """Return the line of computing the specs of the chain, which happens once."""
    samples = mode.specs_ns / 1000
    return Line(
        "spec building", "once", compute_statistics(samples), samples, None, None, None, style="dim"
    )


def _rate(mode: ModeProfile, step_us: float) -> float | None:
    steps = int(mode.steps.sum())
    return int(mode.frames.sum()) / steps / step_us * 1e6 if steps and step_us else None


CellOf = Callable[[Line], Cell]


def cost_table(lines: Sequence[Line]) -> Table:
    """Return a table of lines."""
    columns = list(_columns(lines))
    return Table(
        [
            Column(title, fixed=True, is_number=title not in _TEXT_TITLES, importance=importance)
            for title, importance, _ in columns
        ],
        [[show(line) for _, _, show in columns] for line in lines],
    )


def _columns(lines: Sequence[Line]) -> Iterator[tuple[str, float, CellOf]]:
    """Yield title, importance and content of each column."""
    largest = max((line.share or 0.0 for line in lines if line.name != "whole step"), default=0.0)
    yield "part", math.inf, lambda line: Cell(line.name, line.style)
    yield "lane", 12, lambda line: Cell(line.lane, "dim")
    yield "n", 4, _statistic("n")
    yield "steps/call", 5.5, lambda line: Cell(steps_per_call(line.steps_per_call), "dim")
    yield PER_CALL, 10, _statistic("mean")
    for name, importance in (("p50", 6), ("p90", 2), ("p95", 9), ("p99", 3), ("max", 5)):
        yield name, importance, _statistic(name)
    yield "IQR", 1, _statistic("iqr")
    yield "µs/step", 11, lambda line: Cell(micros(line.step_us))
    if any(line.device_us is not None for line in lines):
        yield "device", 11.5, lambda line: Cell(micros(line.device_us))
    yield "share", math.inf, lambda line: Cell("" if line.share is None else f"{line.share:.1%}")
    yield "", 8, lambda line: Cell(_line_bar(line, largest), "added")
    yield "frames/s", 1.5, lambda line: Cell(whole_number(line.frames_per_second))
    yield "histogram", 0, lambda line: Cell(_histogram(line.samples))


def _statistic(name: str) -> CellOf:
    def show(line: Line) -> Cell:
        if line.statistics is None:
            return Cell("")
        value = getattr(line.statistics, name)
        return Cell(f"{value:,}" if name == "n" else micros(value))

    return show


def number_table(
    titles: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    text_columns: Sequence[str],
    optional_columns: Sequence[str],
) -> Table:
    """Return a table of names and numbers.

    A narrow terminal may lack the optional columns, the first one first.
    """
    numbers = set(titles).difference(text_columns)
    return Table.of(titles, rows, fixed=True, numbers=numbers, optional=optional_columns)


def steps_per_call(value: float | None) -> str:
    """Return how many steps there are for each call.

    Example:
        >>> steps_per_call(1.0), steps_per_call(0.25), steps_per_call(12.5), steps_per_call(1000.0)
        ('1', '0.25', '12.5', '1,000')
    """
    if not value:
        return ""
    return f"{value:,.0f}" if value >= 99.5 or value == round(value) else f"{value:.3g}"


def whole_number(value: float | None) -> str:
    """Return a large number without decimals."""
    return "" if value is None else f"{value:,.0f}"


def _line_bar(line: Line, largest: float) -> str:
    return "" if line.share is None or line.name == "whole step" else share_bar(line.share, largest)


def share_bar(share: float, largest: float) -> str:
    """Return a bar for a share; the largest share fills it."""
    halves = round(share / largest * _BAR_WIDTH * 2) if largest else 0
    return "█" * (halves // 2) + "▌" * (halves % 2)


def _histogram(samples: FloatArray | None) -> str:
    if samples is None or len(samples) < 2:
        return ""
    return sparkline(histogram(samples, _BINS)[0])
