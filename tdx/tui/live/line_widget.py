"""Widgets that draw whole lines, quickly: many times a second something of them changes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

Row = TypeVar("Row", bound=Hashable)
_MOST = 2_000


class LineWidget(Widget):
    """Draws the lines of its content itself, and remembers what it has drawn.

    What a style sheet could add to a line (padding, tint, opacity, a border at its sides) is left
    out, and each style is looked up once: that takes several times as long as the line itself.
    A subclass says what a line depends on and what it is, and calls :meth:`forget` where something
    else has changed; it comes after other widgets among the bases of a class.
    """

    def __init__(self, *children: Widget, **options: Any) -> None:
        super().__init__(*children, **options)
        self._known: dict[str, Style] = {}
        self._drawn: dict[Hashable, Strip] = {}
        self._width = 0

    def line_key(self, y: int) -> Hashable:
        """All that a line depends on, besides the width and the styles."""
        raise NotImplementedError

    def line_parts(self, y: int) -> Sequence[Segment]:
        """A line, counted from the top of what is in sight."""
        raise NotImplementedError

    def forget(self) -> None:
        """Draw every line anew."""
        self._known.clear()
        self._drawn.clear()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self.forget()

    @property
    def base(self) -> Style:
        """The style of what has none of its own."""
        if "" not in self._known:
            self._known[""] = self.rich_style
        return self._known[""]

    def part(self, name: str) -> Style:
        """The style of a component class on the widget's own background."""
        if name not in self._known:
            own = self.get_component_rich_style(name)
            plain = Style(color=own.color, bold=own.bold, dim=own.dim, reverse=own.reverse)
            self._known[name] = self.base + plain
        return self._known[name]

    def back(self, name: str) -> Style:
        """The background of a component class alone."""
        known = f"on {name}"
        if known not in self._known:
            own = self.get_component_rich_style(name)
            self._known[known] = Style(bgcolor=own.bgcolor, reverse=own.reverse)
        return self._known[known]

    def render_line(self, y: int) -> Strip:
        return self._strip(y, self.outer_size.width)

    def render_lines(self, crop: Region) -> list[Strip]:
        gutter, width = self.styles.gutter, self.outer_size.width
        if crop.x or crop.width != width or gutter.right or gutter.left or gutter.bottom:
            return super().render_lines(crop)
        above = max(0, min(crop.bottom, gutter.top) - crop.y)
        head = super().render_lines(Region(0, crop.y, width, above)) if above else []
        lines = range(crop.y + above - gutter.top, crop.bottom - gutter.top)
        return [*head, *(self._strip(y, width) for y in lines)]

    def _strip(self, y: int, width: int) -> Strip:
        if width != self._width:
            self._drawn.clear()
            self._width = width
        key = self.line_key(y)
        strip = self._drawn.get(key)
        if strip is None:
            if len(self._drawn) >= _MOST:
                self._drawn.clear()
            strip = Strip(self.line_parts(y)).adjust_cell_length(width, self.base)
            for each in self.get_line_filters():
                strip = strip.apply_filter(each, self.background_colors[1])
            self._drawn[key] = strip
        return strip


class RowWidget(LineWidget, Generic[Row]):
    """A widget whose lines are made at once; those that stay as they are are not drawn anew."""

    def __init__(self, *children: Widget, **options: Any) -> None:
        super().__init__(*children, **options)
        self._rows: list[Row] | None = None

    def all_rows(self) -> Iterable[Row]:
        """What each line shows."""
        raise NotImplementedError

    def row_parts(self, row: Row) -> Sequence[Segment]:
        """A line that shows this."""
        raise NotImplementedError

    def line_key(self, y: int) -> Row | None:
        if self._rows is None:
            self._rows = list(self.all_rows())
        return self._rows[y] if y < len(self._rows) else None

    def line_parts(self, y: int) -> Sequence[Segment]:
        row = self.line_key(y)
        return () if row is None else self.row_parts(row)

    def on_resize(self) -> None:
        self._rows = None
        self.refresh()

    def outdated(self) -> None:
        """Make the lines anew, and draw those that are others."""
        if self._rows is None or not self.size:
            self.on_resize()
            return
        before, self._rows = self._rows, list(self.all_rows())
        least, most = sorted((len(before), len(self._rows)))
        lines = [y for y in range(least) if before[y] != self._rows[y]]
        if lines or least < most:
            lines += range(least, most)
            self.refresh(*(Region(0, y, self.size.width, 1) for y in lines))
