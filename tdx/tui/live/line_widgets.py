"""Widgets that draw whole lines and cache them, because they change many times a second."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

Row = TypeVar("Row", bound=Hashable)
_MAX_CACHED_LINES = 2_000


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
            if len(self._drawn) >= _MAX_CACHED_LINES:
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


LINE_BINDINGS = (
    Binding("up", "walk(-1)", "up", id="values.up", show=False),
    Binding("down", "walk(1)", "down", id="values.down", show=False),
    Binding("pageup", "walk(-10)", "page up", id="values.page_up", show=False),
    Binding("pagedown", "walk(10)", "page down", id="values.page_down", show=False),
    Binding("enter", "open", "open", id="values.open", show=False),
)
KINDS = ("plain", "muted", "bold", "primary", "secondary", "accent", "good", "warn", "bad")
TextLine = tuple[tuple[str, str], ...]
"""Parts of a line: a text, and which of ``KINDS`` it is."""


class LineList(ScrollView, LineWidget, can_focus=True):
    """Draws lines; a subclass says what they are and what opening one does."""

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

    class Opened(Message):
        """A line was opened, by Enter or a double click."""

        def __init__(self, lines: LineList, at: int) -> None:
            super().__init__()
            self.lines = lines
            self.at = at

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.lines: Sequence[TextLine] = ()
        self.cursor = 0
        self.first = 0
        """The first line that the cursor goes to; those above it say what the columns are."""

    def show(self, lines: Sequence[TextLine]) -> None:
        """Draw these lines from now on; those that stay as they are are not drawn anew."""
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
        """Take note of how many lines there are; the screen is laid out only for a scroll bar."""
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
        """Draw lines anew, counted from the first of all."""
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
            # The colors of the terminal may be those of the text on it.
            text = "".join(part for part, _ in line)
            return [Segment(text.ljust(width)[:width], Style(reverse=self.has_focus))]
        room = max(0, width - sum(part.cell_length for part in parts))
        back = self.back("line--cursor")
        return [
            Segment(part.text, (part.style or self.base) + back)
            for part in (*parts, Segment(" " * room, self.base))
        ]

    def action_walk(self, by: int) -> None:
        self.move_to(self.cursor + by)

    def action_open(self) -> None:
        if self.lines:
            self.post_message(self.Opened(self, self.cursor))

    def move_to(self, at: int) -> None:
        """Put the cursor on a line and bring it into sight."""
        before, self.cursor = self.cursor, self._inside(at)
        top, height = int(self.scroll_offset.y), self.size.height
        if self.cursor == self.first:
            self.scroll_to(y=0, animate=False)
        elif height and not top <= self.cursor < top + height:
            to = self.cursor - (0 if self.cursor < top else height - 1)
            self.scroll_to(y=to, animate=False)
        self._again(before, self.cursor)

    def on_click(self, event: events.Click) -> None:
        inside = event.get_content_offset(self)
        if inside is None:
            return
        at = inside.y + int(self.scroll_offset.y)
        if at < len(self.lines):
            self.move_to(at)
            if event.chain == 2:
                self.action_open()


def truncate(text: str, width: int) -> str:
    """The text, or its beginning with an ellipsis, never wider than so."""
    if len(text) <= width:
        return text
    return f"{text[: max(0, width - 1)]}…" if width > 0 else ""
