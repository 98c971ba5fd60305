"""Widgets that draw whole lines and cache them, because they change many times a second."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Static

Row = TypeVar("Row", bound=Hashable)
_MAX_CACHED_LINES = 400


class LineWidget(Widget):
    """Draws its lines itself and caches them.

    It ignores padding, tint, opacity and side borders, and looks up each style once, because these
    lookups take several times as long as drawing a line. A subclass defines what a line depends on
    and its segments, and calls :meth:`forget` when anything else changes. It comes after other
    widgets in the bases of a class.
    """

    def __init__(self, *children: Widget, **options: Any) -> None:
        super().__init__(*children, **options)
        self._known: dict[str, Style] = {}
        self._drawn: dict[Hashable, Strip] = {}
        self._width = 0

    def line_key(self, y: int) -> Hashable:
        """Return everything that a line depends on, except width and styles."""
        raise NotImplementedError

    def line_parts(self, y: int) -> Sequence[Segment]:
        """Return the segments of a line, counted from the top of the visible part."""
        raise NotImplementedError

    def forget(self) -> None:
        """Clear the caches, so that every line is drawn again."""
        self._known.clear()
        self._drawn.clear()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self.forget()

    @property
    def base(self) -> Style:
        """Default style of the widget."""
        if "" not in self._known:
            self._known[""] = self.rich_style
        return self._known[""]

    def part(self, name: str) -> Style:
        """Return the style of a component class on the background of the widget."""
        if name not in self._known:
            own = self.get_component_rich_style(name)
            self._known[name] = self.base + Style(
                color=own.color,
                bold=own.bold,
                dim=own.dim,
                underline=own.underline,
                reverse=own.reverse,
            )
        return self._known[name]

    def back(self, name: str) -> Style:
        """Return the background of a component class."""
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
            if len(self._drawn) >= _MAX_CACHED_LINES:
                self._drawn.clear()
            strip = Strip(self.line_parts(y)).adjust_cell_length(width, self.base)
            for line_filter in self.get_line_filters():
                strip = strip.apply_filter(line_filter, self.background_colors[1])
            self._drawn[key] = strip
        return strip


class ElidedStatic(Static):
    """Text whose last visible line ends with an ellipsis if more lines follow."""

    def render_line(self, y: int) -> Strip:
        strip, style, (width, height) = super().render_line(y), self.rich_style, self.size
        if y != height - 1 or self.get_content_height(self.size, self.size, width) <= height:
            return strip
        start = strip.crop(0, min(cell_len(strip.text.rstrip()), width - 1))
        return Strip([*start, Segment("…", style)]).extend_cell_length(width, style)


class RowWidget(LineWidget, Generic[Row]):
    """A widget that computes all rows at once and redraws the changed ones."""

    def __init__(self, *children: Widget, **options: Any) -> None:
        super().__init__(*children, **options)
        self._rows: list[Row] | None = None

    def all_rows(self) -> Iterable[Row]:
        """Return what each line shows."""
        raise NotImplementedError

    def row_parts(self, row: Row) -> Sequence[Segment]:
        """Return the segments of a row."""
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

    def invalidate(self) -> None:
        """Compute the rows again and redraw the changed ones."""
        if self._rows is None or not self.size:
            RowWidget.on_resize(self)
            return
        before, self._rows = self._rows, list(self.all_rows())
        least, most = sorted((len(before), len(self._rows)))
        lines = [y for y in range(least) if before[y] != self._rows[y]]
        if lines or least < most:
            lines += range(least, most)
            self.refresh(*(Region(0, y, self.size.width, 1) for y in lines))


LINE_BINDINGS = (
    Binding("up", "walk(-1)", "up", id="values.up", show=False),
    Binding("down", "walk(1)", "down", id="values.down", show=False),
    Binding("pageup", "walk(-10)", "page up", id="values.page_up", show=False),
    Binding("pagedown", "walk(10)", "page down", id="values.page_down", show=False),
    Binding("enter", "open", "open", id="values.open", show=False),
)
KINDS = ("plain", "muted", "bold", "primary", "secondary", "accent", "good", "warn", "bad")
TextLine = tuple[tuple[str, str], ...]
"""Parts of a line: text and one of ``KINDS``."""


class LineList(ScrollView, LineWidget, can_focus=True):
    """A scrollable list of lines with a cursor."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {*(f"line--{kind}" for kind in KINDS), "line--cursor"}
    BINDINGS = [*LINE_BINDINGS]
    DEFAULT_CSS = """
    LineList {
        height: 1fr;
        background: transparent;
        scrollbar-size-vertical: 1;
        overflow-x: hidden;
        & > .line--plain { color: $foreground; }
        & > .line--muted { color: $text-muted; }
        & > .line--bold { color: $foreground; text-style: bold; }
        & > .line--primary { color: $text-primary; text-style: bold; }
        & > .line--secondary { color: $text-secondary; }
        & > .line--accent { color: $text-accent; }
        & > .line--good { color: $text-success; }
        & > .line--warn { color: $text-warning; }
        & > .line--bad { color: $text-error; text-style: bold; }
        & > .line--cursor { background: $panel; }
        &:focus > .line--cursor { background: $primary 30%; }
    }
    """

    @dataclass
    class Opened(Message):
        """A line was opened, with Enter or a double click."""

        lines: LineList
        at: int

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.lines: Sequence[TextLine] = ()
        self.cursor = 0
        self.first = 0
        """The first line that the cursor goes to; those above it say what the columns are."""

    def show(self, lines: Sequence[TextLine]) -> None:
        """Replace the lines; redraw the changed ones."""
        before, self.lines = self.lines, lines
        if len(before) != len(lines):
            self._resize()
            self.cursor = self._inside(self.cursor)
            self.refresh()
            return
        top = int(self.scroll_offset.y)
        seen = range(top, min(top + self.size.height, len(lines)))
        self._again(*(at for at in seen if before[at] != lines[at]))

    def on_resize(self) -> None:
        self._resize()

    def _resize(self) -> None:
        """Update the scrollable size; lay out the screen only if the scroll bar changes."""
        size = Size(self.size.width, len(self.lines))
        height = self.styles.height
        follows = height is not None and height.is_auto
        if follows or (size.height > self.size.height) != self.show_vertical_scrollbar:
            self.virtual_size = size
            return
        self.set_reactive(LineList.virtual_size, size)
        if self.show_vertical_scrollbar:
            self.vertical_scrollbar.window_virtual_size = size.height
        self.scroll_y = min(self.scroll_y, self.max_scroll_y)

    def _inside(self, at: int) -> int:
        return max(0, min(max(at, self.first), len(self.lines) - 1))

    def _again(self, *lines: int) -> None:
        """Redraw lines, counted from the first line of the list."""
        top, height = int(self.scroll_offset.y), self.size.height
        seen = [at - top for at in lines if top <= at < top + height]
        if seen:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in seen))

    def line_key(self, y: int) -> Hashable:
        at = y + int(self.scroll_offset.y)
        return (self.lines[at] if at < len(self.lines) else None), at == self.cursor

    def line_parts(self, y: int) -> Sequence[Segment]:
        at, width = y + int(self.scroll_offset.y), self.outer_size.width
        if at >= len(self.lines):
            return [Segment(" " * width, self.base)]
        line = self.lines[at]
        parts = [Segment(text, self.part(f"line--{kind}")) for text, kind in line]
        if at != self.cursor:
            return parts
        if self.app.native_ansi_color:
            # The ANSI background may have the color of the text.
            text = "".join(part for part, _ in line)
            return [Segment(text.ljust(width)[:width], Style(reverse=self.has_focus))]
        room = max(0, width - sum(part.cell_length for part in parts))
        back = self.back("line--cursor")
        return [
            Segment(part.text, (part.style or self.base) + back)
            for part in (*parts, Segment(" " * room, self.base))
        ]

    def action_walk(self, by: int) -> None:
        self.go_to_line(self.cursor + by)

    def action_open(self) -> None:
        if self.lines:
            self.post_message(self.Opened(self, self.cursor))

    @property
    def cursor_line(self) -> int:
        """Line of the cursor."""
        return self.cursor

    def go_to_line(self, line: int) -> None:
        """Move the cursor and scroll to it."""
        before, self.cursor = self.cursor, self._inside(line)
        top, height = int(self.scroll_offset.y), self.size.height
        # Forced, because new lines may need a scroll bar that the next layout displays.
        if self.cursor == self.first:
            self.scroll_to(y=0, animate=False, force=True)
        elif height and not top <= self.cursor < top + height:
            to = self.cursor - (0 if self.cursor < top else height - 1)
            self.scroll_to(y=to, animate=False, force=True)
        self._again(before, self.cursor)

    def on_click(self, event: events.Click) -> None:
        inside = event.get_content_offset(self)
        if inside is None:
            return
        at = inside.y + int(self.scroll_offset.y)
        if at < len(self.lines):
            self.go_to_line(at)
            if event.chain == 2:
                self.action_open()
