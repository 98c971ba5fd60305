"""The charts, one below the other, each with a scale of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.message import Message

from tdx.inspection.live.views import PlotView
from tdx.tui.live.braille import braille
from tdx.tui.live.line_widget import RowWidget
from tdx.tui.live.lines import cut

_COLOURS = ("a", "b", "c", "d")
_SCALE = 8
Row = tuple[tuple[str, str, bool], ...]
"""Parts of a line: a text, its style, and whether the trace that is shown stands there."""


class CurvePane(RowWidget[Row], can_focus=True):
    """Draws curves; a click shows the step that is there."""

    HELP = """## The charts

Reward, return of the episode so far, and any key: `c` chooses them, or `Enter` on a key among the
values. `b` zooms in to the latest traces and out again. A click shows the step that is there."""
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *(f"curve--{name}" for name in _COLOURS),
        *(f"curve--{name}-name" for name in _COLOURS),
        "curve--muted",
        "curve--cursor",
    }
    DEFAULT_CSS = """
    CurvePane {
        height: 1fr;
        & > .curve--a { color: $primary; }
        & > .curve--a-name { color: $primary; text-style: bold; }
        & > .curve--b { color: $success; }
        & > .curve--b-name { color: $success; text-style: bold; }
        & > .curve--c { color: $accent; }
        & > .curve--c-name { color: $accent; text-style: bold; }
        & > .curve--d { color: $secondary; }
        & > .curve--d-name { color: $secondary; text-style: bold; }
        & > .curve--muted { color: $text-muted; }
        & > .curve--cursor { background: $panel-lighten-2; }
    }
    """

    class Picked(Message):
        """A place on a curve was clicked."""

        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

    def __init__(self) -> None:
        super().__init__(id="live-curves")
        self.border_title = "charts"
        self.curves: tuple[PlotView, ...] = ()
        self.cursor: int | None = None

    def show(self, curves: Sequence[PlotView]) -> None:
        """Draw these from now on."""
        self.curves = tuple(curves)
        self.outdated()

    def set_cursor(self, index: int | None) -> None:
        """Mark a trace; none where the latest is shown."""
        if index != self.cursor:
            self.cursor = index
            self.outdated()

    @property
    def plot_width(self) -> int:
        """The cells that a curve is wide."""
        return max(1, self.size.width - _SCALE - 1)

    def row_parts(self, row: Row) -> Sequence[Segment]:
        here = self.back("curve--cursor")
        styled = ((text, self.part(f"curve--{name}"), is_here) for text, name, is_here in row)
        return [
            Segment(text, style + here if is_here else style) for text, style, is_here in styled
        ]

    def all_rows(self) -> Iterator[Row]:
        height = self.size.height
        shown = self.curves[: height // 3] or self.curves[: height // 2]
        for number, each in enumerate(shown):
            rows = height // len(shown) + (number < height % len(shown))
            yield from self._chart(each, rows, _COLOURS[number % len(_COLOURS)])

    def _chart(self, curve: PlotView, height: int, colour: str) -> Iterator[Row]:
        known = [each for each in (*curve.low, *curve.high) if each is not None]
        name = cut(curve.name, self.size.width - 12)
        latest = "" if curve.latest is None else f"  {curve.latest:.4g}"
        yield (name, f"{colour}-name", False), (latest, "muted", False)
        rows = height - 1
        scale = [""] * rows
        if known and rows:
            flat = min(known) == max(known)
            scale[rows // 2 if flat else 0] = f"{max(known):.3g}"
            if rows > 1 and not flat:
                scale[-1] = f"{min(known):.3g}"
        at = self._column(curve)
        texts = braille(curve.low, curve.high, self.plot_width, rows)
        for text, mark in zip(texts, scale, strict=True):
            head = (cut(mark, _SCALE).rjust(_SCALE) + "┤", "muted", False)
            if at is None:
                yield head, (text, colour, False)
            else:
                left, here, right = text[:at], text[at : at + 1], text[at + 1 :]
                yield head, (left, colour, False), (here, colour, True), (right, colour, False)

    def _column(self, curve: PlotView) -> int | None:
        """Where the trace stands that is shown."""
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
        parts, x = len(each.low), column.x - _SCALE - 1
        if x < 0 or not parts:
            return
        part = min(x * parts // self.plot_width, parts - 1)
        span = each.last - each.first + 1
        self.post_message(self.Picked(each.first + part * span // parts))
