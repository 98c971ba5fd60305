"""A list of coloured lines with a cursor: only the lines in sight are drawn."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView

from tdx.tui.live import keys
from tdx.tui.live.line_widget import LineWidget

KINDS = ("plain", "muted", "bold", "primary", "secondary", "accent", "good", "warn", "bad")
Line = tuple[tuple[str, str], ...]
"""Parts of a line: a text, and which of ``KINDS`` it is."""


class Lines(ScrollView, LineWidget, can_focus=True):
    """Draws lines; a subclass says what they are and what opening one does."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {*(f"line--{kind}" for kind in KINDS), "line--cursor"}
    BINDINGS = [*keys.VALUES]
    DEFAULT_CSS = """
    Lines {
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

        def __init__(self, lines: Lines, at: int) -> None:
            super().__init__()
            self.lines = lines
            self.at = at

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.lines: Sequence[Line] = ()
        self.cursor = 0
        self.first = 0
        """The first line that the cursor goes to; those above it say what the columns are."""

    def show(self, lines: Sequence[Line]) -> None:
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
        self.set_reactive(Lines.virtual_size, size)
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
            # The colours of the terminal may be those of the text on it.
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


def cut(text: str, width: int) -> str:
    """The text, or its beginning with an ellipsis, never wider than so."""
    if len(text) <= width:
        return text
    return f"{text[: max(0, width - 1)]}…" if width > 0 else ""
