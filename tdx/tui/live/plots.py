"""Line plots in braille characters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.message import Message

from tdx.inspection.live.views import PlotView
from tdx.tui.live.line_widgets import RowWidget, truncate

_LEFT, _RIGHT = (0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08)


def _bits(four: int, dots: Sequence[int]) -> int:
    return sum(dot for n, dot in enumerate(dots) if four >> n & 1)


_CELLS = [chr(0x2800 + _bits(both >> 4, _LEFT) + _bits(both & 15, _RIGHT)) for both in range(256)]
_Numbers = Sequence[float | None]


def draw_braille(lows: _Numbers, highs: _Numbers, width: int, height: int) -> list[str]:
    """Draw a band between two curves as lines of braille characters.

    Args:
        lows: Smallest number of each point; ``None`` if there is none.
        highs: Largest number of each point.
        width: Width in cells; a cell is two dots wide.
        height: Height in cells; a cell is four dots high.

    Example:
        >>> draw_braille([0, 1, 2, 3], [0, 1, 2, 3], 2, 1)
        ['⡠⠊']
    """
    known = [each for each in (*lows, *highs) if each is not None]
    if not known or width < 1 or height < 1:
        return [" " * width for _ in range(height)]
    least, most = min(known), max(known)
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
        first, last = _connect(bottom, top, before)
        columns.append((1 << last + 1) - (1 << first) if last >= first else 0)
        before = bottom, top
    return [_braille_row(columns, 4 * up) for up in reversed(range(height))]


def _connect(bottom: int, top: int, before: tuple[int, int] | None) -> tuple[int, int]:
    """Extend a column of dots so that it touches the previous one."""
    if before is not None:
        if before[1] < bottom:
            bottom = before[1] + 1
        elif before[0] > top:
            top = before[0] - 1
    return bottom, top


def _braille_row(columns: Sequence[int], bottom: int) -> str:
    """Return a line of cells; the lowest bit of a column is its lowest dot."""
    pairs = zip(columns[::2], columns[1::2], strict=True)
    return "".join(
        _CELLS[(left >> bottom & 15) << 4 | right >> bottom & 15] for left, right in pairs
    )


_COLORS = ("a", "b", "c", "d")
_SCALE_WIDTH = 8
PlotRow = tuple[tuple[str, str, bool], ...]
"""Parts of a line: text, style, and whether it is at the shown trace."""


class PlotPane(RowWidget[PlotRow], can_focus=True):
    """Draws plots; a click shows the step at that point."""

    HELP = """## Plots

Reward, return of the current episode, and other keys: choose them with `c`, or with `Enter` on a
key in the values. `b` zooms to the latest traces. A click shows the step at that point."""
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *(f"plot--{name}" for name in _COLORS),
        *(f"plot--{name}-name" for name in _COLORS),
        "plot--muted",
        "plot--cursor",
    }
    DEFAULT_CSS = """
    PlotPane {
        height: 1fr;
        & > .plot--a { color: $primary; }
        & > .plot--a-name { color: $primary; text-style: bold; }
        & > .plot--b { color: $success; }
        & > .plot--b-name { color: $success; text-style: bold; }
        & > .plot--c { color: $accent; }
        & > .plot--c-name { color: $accent; text-style: bold; }
        & > .plot--d { color: $secondary; }
        & > .plot--d-name { color: $secondary; text-style: bold; }
        & > .plot--muted { color: $text-muted; }
        & > .plot--cursor { background: $panel-lighten-2; }
    }
    """

    class Picked(Message):
        """A point of a plot was clicked."""

        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

    def __init__(self) -> None:
        super().__init__(id="live-plots")
        self.border_title = "plots"
        self.curves: tuple[PlotView, ...] = ()
        self.cursor: int | None = None

    def show(self, curves: Sequence[PlotView]) -> None:
        """Replace the plots."""
        self.curves = tuple(curves)
        self.outdated()

    def set_cursor(self, index: int | None) -> None:
        """Mark a trace. ``None``: the latest one is shown."""
        if index != self.cursor:
            self.cursor = index
            self.outdated()

    @property
    def plot_width(self) -> int:
        """Width of a plot in cells."""
        return max(1, self.size.width - _SCALE_WIDTH - 1)

    def row_parts(self, row: PlotRow) -> Sequence[Segment]:
        here = self.back("plot--cursor")
        styled = ((text, self.part(f"plot--{name}"), is_here) for text, name, is_here in row)
        return [
            Segment(text, style + here if is_here else style) for text, style, is_here in styled
        ]

    def all_rows(self) -> Iterator[PlotRow]:
        height = self.size.height
        shown = self.curves[: height // 3] or self.curves[: height // 2]
        for number, each in enumerate(shown):
            rows = height // len(shown) + (number < height % len(shown))
            yield from self._plot_rows(each, rows, _COLORS[number % len(_COLORS)])

    def _plot_rows(self, curve: PlotView, height: int, color: str) -> Iterator[PlotRow]:
        known = [each for each in (*curve.low, *curve.high) if each is not None]
        name = truncate(curve.name, self.size.width - 12)
        latest = "" if curve.latest is None else f"  {curve.latest:.4g}"
        yield (name, f"{color}-name", False), (latest, "muted", False)
        rows = height - 1
        scale = [""] * rows
        if known and rows:
            flat = min(known) == max(known)
            scale[rows // 2 if flat else 0] = f"{max(known):.3g}"
            if rows > 1 and not flat:
                scale[-1] = f"{min(known):.3g}"
        at = self._column(curve)
        texts = draw_braille(curve.low, curve.high, self.plot_width, rows)
        for text, mark in zip(texts, scale, strict=True):
            head = (truncate(mark, _SCALE_WIDTH).rjust(_SCALE_WIDTH) + "┤", "muted", False)
            if at is None:
                yield head, (text, color, False)
            else:
                left, here, right = text[:at], text[at : at + 1], text[at + 1 :]
                yield head, (left, color, False), (here, color, True), (right, color, False)

    def _column(self, curve: PlotView) -> int | None:
        """Return the column of the shown trace."""
        if self.cursor is None or not curve.first <= self.cursor <= curve.last:
            return None
        parts, span = len(curve.low), curve.last - curve.first + 1
        part = (self.cursor - curve.first) * parts // span
        return part * self.plot_width // parts

    def on_click(self, event: events.Click) -> None:
        column = event.get_content_offset(self)
        if column is None or not self.curves:
            return
        each = self.curves[0]
        parts, x = len(each.low), column.x - _SCALE_WIDTH - 1
        if x < 0 or not parts:
            return
        part = min(x * parts // self.plot_width, parts - 1)
        span = each.last - each.first + 1
        self.post_message(self.Picked(each.first + part * span // parts))
