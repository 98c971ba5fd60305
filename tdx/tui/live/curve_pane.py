"""The charts, one below the other, each with a scale of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from tdx.inspection.live.views import Curve
from tdx.tui.live.braille import braille
from tdx.tui.live.lines import cut

_COLOURS = ("a", "b", "c", "d")
_SCALE = 8


class CurvePane(Widget, can_focus=True):
    """Draws curves; a click shows the step that is there."""

    HELP = """## The charts

Reward, return of the episode so far, and any key: `c` chooses them, or `Enter` on a key among the
values. `b` zooms in to the latest traces and out again. A click shows the step that is there."""
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *(f"curve--{name}" for name in _COLOURS),
        "curve--muted",
        "curve--cursor",
    }
    DEFAULT_CSS = """
    CurvePane {
        height: 1fr;
        & > .curve--a { color: $primary; }
        & > .curve--b { color: $success; }
        & > .curve--c { color: $accent; }
        & > .curve--d { color: $secondary; }
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
        self.curves: tuple[Curve, ...] = ()
        self.cursor: int | None = None
        self._strips: list[Strip] | None = None

    def show(self, curves: Sequence[Curve]) -> None:
        """Draw these from now on."""
        self.curves = tuple(curves)
        self._outdated()

    def set_cursor(self, index: int | None) -> None:
        """Mark a trace; none where the latest is shown."""
        if index != self.cursor:
            self.cursor = index
            self._outdated()

    @property
    def plot_width(self) -> int:
        """The cells that a curve is wide."""
        return max(1, self.size.width - _SCALE - 1)

    def on_resize(self) -> None:
        self._outdated()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._strips = None

    def render_line(self, y: int) -> Strip:
        if self._strips is None:
            self._strips = list(self._all())
        if y < len(self._strips):
            return self._strips[y]
        return Strip.blank(self.size.width, self.rich_style)

    def _outdated(self) -> None:
        self._strips = None
        self.refresh()

    def _all(self) -> Iterator[Strip]:
        height = self.size.height
        shown = self.curves[: height // 3] or self.curves[: height // 2]
        for number, each in enumerate(shown):
            rows = height // len(shown) + (number < height % len(shown))
            yield from self._drawn(each, rows, _COLOURS[number % len(_COLOURS)])

    def _drawn(self, curve: Curve, height: int, colour: str) -> list[Strip]:
        width, style, muted = self.plot_width, self._part(colour), self._part("muted")
        known = [each for each in (*curve.low, *curve.high) if each is not None]
        name = cut(curve.name, self.size.width - 12)
        latest = "" if curve.latest is None else f"  {curve.latest:.4g}"
        head = Strip([Segment(name, style + Style(bold=True)), Segment(latest, muted)])
        strips = [head.adjust_cell_length(self.size.width, self.rich_style)]
        rows = height - 1
        scale = [""] * rows
        if known:
            scale[0] = f"{max(known):.3g}"
            if rows > 1 and min(known) != max(known):
                scale[-1] = f"{min(known):.3g}"
        at = self._column(curve)
        for text, mark in zip(braille(curve.low, curve.high, width, rows), scale, strict=True):
            parts = [Segment(cut(mark, _SCALE).rjust(_SCALE) + "┤", muted)]
            if at is None:
                parts.append(Segment(text, style))
            else:
                cursor = self.get_component_rich_style("curve--cursor")
                here = style + Style(bgcolor=cursor.bgcolor, reverse=cursor.reverse)
                parts += [
                    *(Segment(text[:at], style), Segment(text[at : at + 1], here)),
                    Segment(text[at + 1 :], style),
                ]
            strips.append(Strip(parts).adjust_cell_length(self.size.width, self.rich_style))
        return strips

    def _column(self, curve: Curve) -> int | None:
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

    def _part(self, name: str) -> Style:
        style = self.get_component_rich_style(f"curve--{name}")
        return self.rich_style + Style(color=style.color, bold=style.bold, dim=style.dim)
