"""Plots drawn in braille characters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message

from tdx.inspection.live.views import PlotView
from tdx.tui.chain_status import truncate_middle
from tdx.tui.line_widgets import RowWidget

_LEFT, _RIGHT = (0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08)


def _bits(four: int, dots: Sequence[int]) -> int:
    return sum(dot for n, dot in enumerate(dots) if four >> n & 1)


_CELLS = [chr(0x2800 + _bits(both >> 4, _LEFT) + _bits(both & 15, _RIGHT)) for both in range(256)]
_PlotColumn = Sequence[float | None]


def draw_braille(
    lows: _PlotColumn,
    highs: _PlotColumn,
    width: int,
    height: int,
    bounds: tuple[float, float] | None = None,
) -> list[str]:
    """Draw a band between two curves as lines of braille characters.

    A cell is two dots wide and four dots high. ``bounds`` are the numbers at the bottom and at the
    top, by default the smallest and the largest; a point that is ``None`` is left out.

    Example:
        >>> draw_braille([0, 1, 2, 3], [0, 1, 2, 3], 2, 1)
        ['⡠⠊']
    """
    known = [number for number in (*lows, *highs) if number is not None]
    if not known or width < 1 or height < 1:
        return [" " * width for _ in range(height)]
    least, most = bounds or (min(known), max(known))
    tall = height * 4 - 1
    scale = tall / (most - least) if most > least else 0.0
    middle = 0 if scale else tall // 2
    columns: list[int] = []
    before: tuple[int, int] | None = None
    for x in range(width * 2):
        at = x * len(lows) // (width * 2)
        low, high = lows[at], highs[at]
        if low is None or high is None:
            before = None
            columns.append(0)
            continue
        bottom = round((low - least) * scale) + middle
        top = round((high - least) * scale) + middle
        first, last = bottom, top
        if before is not None and before[1] < bottom:
            first = before[1] + 1  # touch the previous column
        elif before is not None and before[0] > top:
            last = before[0] - 1
        columns.append((1 << last + 1) - (1 << first) if last >= first else 0)
        before = bottom, top
    # The lowest bit of a column is its lowest dot.
    pairs = list(zip(columns[::2], columns[1::2], strict=True))
    return [
        "".join(_CELLS[(left >> up & 15) << 4 | right >> up & 15] for left, right in pairs)
        for up in reversed(range(0, 4 * height, 4))
    ]


_COLORS = ("a", "b", "c", "d")
_SCALE_WIDTH = 8
_MIN_VARYING_HEIGHT, _VARYING_HEIGHT, _MAX_WANTED_HEIGHT = 2, 6, 13
PlotRow = tuple[tuple[str, str, str], ...]
"""Parts of a line: text, style, and what it is: ``cursor``, ``band``, ``name`` or nothing."""
_NAME = Style(bold=True)


class PlotPane(RowWidget[PlotRow], can_focus=True):
    """Draws plots; a click shows the step at that point."""

    HELP = """## Plots

Reward, return of the current episode, and other keys: choose them with `c`, or with `Enter` on a
key in the values. `b` zooms to the latest traces. A click shows the step at that point. After an
edit, the earlier rollout is gray, with a band behind the steps that differ."""
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *(f"plot--{name}" for name in _COLORS),
        "plot--muted",
        "plot--cursor",
        "plot--band",
    }
    DEFAULT_CSS = """
    PlotPane {
        height: 1fr;
        & > .plot--a { color: $primary; }
        & > .plot--b { color: $success; }
        & > .plot--c { color: $accent; }
        & > .plot--d { color: $secondary; }
        & > .plot--muted { color: $text-muted; }
        & > .plot--cursor { background: $panel-lighten-2; }
        & > .plot--band { background: $warning 20%; }
    }
    """

    @dataclass
    class Picked(Message):
        """A point of a plot was clicked."""

        index: int

    def __init__(self) -> None:
        super().__init__(id="live-plots")
        self.border_title = "plots"
        self.curves: tuple[PlotView, ...] = ()
        self.cursor: int | None = None

    def show(self, curves: Sequence[PlotView]) -> bool:
        """Replace the plots; return True if they need another height."""
        before = self.wanted_height
        self.curves = tuple(curves)
        self.invalidate()
        return self.wanted_height != before

    @property
    def is_flat(self) -> bool:
        """True if all plots are constant."""
        return all(map(_is_flat, self.curves))

    @property
    def wanted_height(self) -> int:
        """Height with the border that shows the plots."""
        heights = (1 if _is_flat(curve) else _VARYING_HEIGHT for curve in self.curves)
        return min(max(2, sum(heights)), _MAX_WANTED_HEIGHT) + 1

    def set_cursor(self, index: int | None) -> None:
        """Mark a trace. ``None``: the latest one is shown."""
        if index != self.cursor:
            self.cursor = index
            self.invalidate()

    @property
    def plot_width(self) -> int:
        """Width of a plot in cells."""
        return max(1, self.size.width - _SCALE_WIDTH - 1)

    def row_parts(self, row: PlotRow) -> Sequence[Segment]:
        styled = ((text, self.part(f"plot--{name}"), back) for text, name, back in row)
        return [
            Segment(text, style + (_NAME if back == "name" else self.back(f"plot--{back}")))
            if back
            else Segment(text, style)
            for text, style, back in styled
        ]

    def all_rows(self) -> Iterator[PlotRow]:
        height, shown = self.size.height, list(self.curves)
        while sum(1 if _is_flat(curve) else _MIN_VARYING_HEIGHT for curve in shown) > height:
            del shown[-1]
        for number, (plot, rows) in enumerate(zip(shown, plot_heights(shown, height), strict=True)):
            yield from self._plot_rows(plot, rows, _COLORS[number % len(_COLORS)])

    def _plot_rows(self, curve: PlotView, height: int, color: str) -> Iterator[PlotRow]:
        earlier = curve.earlier
        both = (curve,) if earlier is None else (curve, earlier)
        known = _known_numbers(curve)
        latest = "" if curve.latest is None else f"  {curve.latest:.4g}"
        if curve.latest is not None and earlier is not None and earlier.latest is not None:
            latest = f"  {curve.latest:.3g}  earlier {earlier.latest:.3g}"
        name = truncate_middle(curve.name, max(6, self.size.width - max(12, len(latest))))
        yield ((name, color, "name"), (latest if known else "  no values yet", "muted", ""))
        rows = height - 1
        if not known:
            return
        scale = [""] * rows
        if rows:
            scale[0] = _scale_text(max(known))
            if rows > 1:
                scale[-1] = _scale_text(min(known))
        bounds = min(known), max(known)
        drawn = [draw_braille(plot.low, plot.high, self.plot_width, rows, bounds) for plot in both]
        backs = self._backgrounds(curve)
        for number, mark in enumerate(scale):
            axis = "┤" if mark else "│"
            head = (mark.rjust(_SCALE_WIDTH) + axis, "muted", "")
            yield head, *_overlay([lines[number] for lines in drawn], (color, "muted"), backs)

    def _backgrounds(self, curve: PlotView) -> list[str]:
        """Return the background of each column: at the shown trace, or where the curves differ."""
        parts, width = len(curve.low), self.plot_width
        backs = [""] * width
        if curve.earlier is not None:
            rows = zip(curve.low, curve.earlier.low, curve.high, curve.earlier.high, strict=True)
            is_other = [
                None not in row and row[::2] != row[1::2] for row in rows
            ]  # a number of one rollout only is not a difference
            backs = ["band" if is_other[x * parts // width] else "" for x in range(width)]
        if self.cursor is not None and curve.first <= self.cursor <= curve.last:
            part = (self.cursor - curve.first) * parts // (curve.last - curve.first + 1)
            backs[part * width // parts] = "cursor"
        return backs

    def on_click(self, event: events.Click) -> None:
        column = event.get_content_offset(self)
        if column is None or not self.curves:
            return
        plot = self.curves[0]
        parts, x = len(plot.low), column.x - _SCALE_WIDTH - 1
        if x < 0 or not parts:
            return
        part = min(x * parts // self.plot_width, parts - 1)
        span = plot.last - plot.first + 1
        self.post_message(self.Picked(plot.first + part * span // parts))


def _scale_text(number: float) -> str:
    """Format a number for the scale.

    Example:
        >>> _scale_text(-0.000271), _scale_text(0.866)
        ('-2.7e-04', '0.866')
    """
    text = f"{number:.3g}"
    return text if len(text) <= _SCALE_WIDTH else f"{number:.1e}"


def _known_numbers(curve: PlotView) -> list[float]:
    both = (curve,) if curve.earlier is None else (curve, curve.earlier)
    return [n for plot in both for n in (*plot.low, *plot.high) if n is not None]


def _is_flat(curve: PlotView) -> bool:
    return len(set(_known_numbers(curve))) < 2


def plot_heights(curves: Sequence[PlotView], height: int) -> list[int]:
    """Distribute lines over plots: one for a constant, whose number says all, else the rest."""
    is_flat = list(map(_is_flat, curves))
    varying = is_flat.count(False)
    left = height - is_flat.count(True)
    share = [left // varying + (number < left % varying) for number in range(varying)]
    return [1 if flat else share.pop(0) for flat in is_flat]


def _overlay(
    lines: Sequence[str], colors: Sequence[str], backs: Sequence[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield the parts of a line that several plots share; the first plot is on top."""

    def style(column: int) -> tuple[str, str]:
        drawn = (n for n, line in enumerate(lines) if line[column] not in _BLANK)
        return colors[next(drawn, 0)], backs[column]

    for (color, back), columns in groupby(range(len(lines[0])), style):
        line = lines[colors.index(color)]
        yield "".join(line[column] for column in columns), color, back


_BLANK = (" ", "\u2800")
