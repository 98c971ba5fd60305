"""The columns of a table of costs, and which of them a narrow terminal goes without."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tdx.cli.output.terminal import table_width
from tdx.cli.output.view import Cell, Column, Style, Table
from tdx.profiling.result import ModeProfile, Numbers, Row, Statistics, compute_statistics

_BAR, _BINS = 12, 12
_HEIGHTS = "▁▂▃▄▅▆▇█"
_NEVER = 99
MARK = "*"
"""Behind the name of what ran many steps in a call, where there is no room for a column."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table.

    Args:
        name: of the part.
        lane: which of its calls.
        statistics: of those; none where only the sum is known.
        samples: in µs, float64 ``[n]``.
        step_us: what it takes of a mean step; none for what is not part of one.
        share: of the whole, 0 to 1; none for what is not part of it.
        frames_per_second: how many there would be if nothing else took time.
        per: what one sample is of.
        device_us: what its work on the accelerator takes of a mean step.
        style: how its name is shown.
    """

    name: str
    lane: str
    statistics: Statistics | None
    samples: Numbers | None
    step_us: float | None
    share: float | None
    frames_per_second: float | None
    per: str = "call"
    device_us: float | None = None
    style: Style = "name"


def line_of(mode: ModeProfile, row: Row) -> Line:
    """The line of one part."""
    step_us, use = mode.step_share_us(row), mode.on_device.get(row.key)
    return Line(
        name=row.part.label,
        lane=row.part.lane,
        statistics=row.statistics,
        samples=row.samples_us,
        step_us=step_us,
        share=mode.share(row),
        frames_per_second=_rate(mode, step_us),
        per="step" if row.covers_many else "call",
        device_us=None if use is None else use.time_us,
        style="dim" if row.part.work == "engine" else "name",
    )


def others_line(mode: ModeProfile, rows: Sequence[Row]) -> Line:
    """Parts that are not shown by themselves, as one line."""
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
    """The whole step: one sample a repeat."""
    made = mode.steps > 0
    samples = mode.total_ns[made] / mode.steps[made] / 1000
    device = sum(use.time_us for use in mode.on_device.values())
    return Line(
        name="whole step",
        lane="",
        statistics=compute_statistics(samples) if len(samples) else None,
        samples=None,
        step_us=mode.step_us,
        share=1.0,
        frames_per_second=mode.frames_per_second,
        per="repeat",
        device_us=device if mode.on_device else None,
    )


def specs_line(mode: ModeProfile) -> Line:
    """Computing the specs of the chain, which happens once and not in a step."""
    samples = mode.specs_ns / 1000
    return Line(
        "spec building", "once", compute_statistics(samples), samples, None, None, None, style="dim"
    )


def _rate(mode: ModeProfile, step_us: float) -> float | None:
    steps = int(mode.steps.sum())
    return int(mode.frames.sum()) / steps / step_us * 1e6 if steps and step_us else None


Shown = Callable[[Line], Cell]


def cost_table(lines: Sequence[Line], width: int) -> Table:
    """The lines under as many columns as there is room for.

    Args:
        lines: what to show.
        width: columns of the terminal.
    """
    columns = list(_columns(lines))
    while True:
        table = _table(columns, lines)
        least = min(columns, key=lambda column: column[1])
        if table_width(table) <= width or least[1] == _NEVER:
            return table
        columns.remove(least)
        if least[0] == "per":
            columns[0] = ("part", _NEVER, _marked)


def _marked(line: Line) -> Cell:
    return Cell(f"{line.name} {MARK}" if line.per == "step" else line.name, line.style)


def _columns(lines: Sequence[Line]) -> Iterator[tuple[str, float, Shown]]:
    """The title of each, how important it is, and what it shows."""
    most = max((line.share or 0.0 for line in lines if line.name != "whole step"), default=0.0)
    yield "part", _NEVER, lambda line: Cell(line.name, line.style)
    yield "lane", 12, lambda line: Cell(line.lane, "dim")
    yield "n", 4, _statistic("n")
    if any(line.per == "step" for line in lines):
        yield "per", 9.5, lambda line: Cell(line.per if line.statistics else "", "dim")
    yield "mean", 10, _statistic("mean")
    for name, weight in (("p50", 6), ("p90", 2), ("p95", 9), ("p99", 3), ("max", 5)):
        yield name, weight, _statistic(name)
    yield "IQR", 1, _statistic("iqr")
    yield "µs/step", 11, lambda line: Cell(micros(line.step_us))
    if any(line.device_us is not None for line in lines):
        yield "device", 11.5, lambda line: Cell(micros(line.device_us))
    yield "share", _NEVER, lambda line: Cell("" if line.share is None else f"{line.share:.1%}")
    yield "", 8, lambda line: Cell(_bar(line, most), "added")
    yield "frames/s", 1.5, lambda line: Cell(count(line.frames_per_second))
    yield "histogram", 0, lambda line: Cell(_times(line.samples))


def _statistic(name: str) -> Shown:
    def shown(line: Line) -> Cell:
        if line.statistics is None:
            return Cell("")
        value = getattr(line.statistics, name)
        return Cell(f"{value:,}" if name == "n" else micros(value))

    return shown


_LEFT = ("part", "lane", "per", "", "histogram")


def _table(columns: Sequence[tuple[str, float, Shown]], lines: Sequence[Line]) -> Table:
    cells = {title: [show(line) for line in lines] for title, _, show in columns}
    titles = {title: title for title in cells}
    for title, column in cells.items():
        if title not in _LEFT:
            titles[title], cells[title] = right_aligned(title, column)
    return Table(
        [Column(titles[title], fixed=True) for title in cells],
        [list(row) for row in zip(*cells.values(), strict=True)],
    )


def right_aligned(title: str, cells: Sequence[Cell]) -> tuple[str, list[Cell]]:
    """A column of numbers, with their last digits under each other."""
    room = max(len(title), *(len(cell.text) for cell in cells)) if cells else len(title)
    return title.rjust(room), [Cell(cell.text.rjust(room), cell.style) for cell in cells]


def number_table(
    titles: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    width: int,
    texts: Sequence[str],
    dispensable: Sequence[str],
) -> Table:
    """A table of names and numbers, without some of its columns where room is short.

    Args:
        titles: of the columns.
        rows: a cell for each column.
        width: columns of the terminal.
        texts: the titles of those that are no numbers.
        dispensable: the titles of those that a narrow terminal goes without, the first one first.
    """
    columns = {}
    for place, title in enumerate(titles):
        cells = [row[place] for row in rows]
        columns[title] = (title, cells) if title in texts else right_aligned(title, cells)
    for dropped in (None, *dispensable):
        columns.pop(dropped or "no column", None)
        lines = zip(*(cells for _, cells in columns.values()), strict=True)
        heads = [Column(title, fixed=True) for title, _ in columns.values()]
        table = Table(heads, [list(line) for line in lines])
        if table_width(table) <= width:
            break
    return table


def micros(value: float | None) -> str:
    """A time in µs with three digits that count."""
    if value is None:
        return ""
    if not value:
        return "0"
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def count(value: float | None) -> str:
    """A large number without its fractions."""
    return "" if value is None else f"{value:,.0f}"


def _bar(line: Line, most: float) -> str:
    if line.share is None or not most or line.name == "whole step":
        return ""
    halves = round(line.share / most * _BAR * 2)
    return "█" * (halves // 2) + "▌" * (halves % 2)


def _times(samples: Numbers | None) -> str:
    """How often which time was taken, from the shortest to the longest but one in a hundred."""
    if samples is None or len(samples) < 2:
        return ""
    return sparkline(histogram(samples, _BINS)[0])


def sparkline(heights: Sequence[float]) -> str:
    """Heights as signs, the largest as a full one and those of 0 as spaces."""
    most = max(heights, default=0)
    signs = (math.ceil(each / most * len(_HEIGHTS)) - 1 if each else None for each in heights)
    return "".join(" " if sign is None else _HEIGHTS[sign] for sign in signs)


def histogram(samples: Numbers, bins: int) -> tuple[list[int], list[float]]:
    """How many samples are in each of some bins; what is above the 99th percentile is in the last.

    Args:
        samples: in µs, float64 ``[n]``.
        bins: how many.

    Returns:
        The counts, and the ``bins + 1`` edges between them.
    """
    low, high = float(samples.min()), float(np.quantile(samples, 0.99, method="higher"))
    edges = np.linspace(low, high if high > low else low + 1e-3, bins + 1)
    counts, _ = np.histogram(np.minimum(samples, edges[-1]), edges)
    return counts.tolist(), edges.tolist()
