"""A list of coloured lines with a cursor: only the lines in sight are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tdx.tui.live import keys

KINDS = ("plain", "muted", "bold", "primary", "secondary", "accent", "good", "warn", "bad")
Line = Sequence[tuple[str, str]]
"""Parts of a line: a text, and which of ``KINDS`` it is."""


class Lines(ScrollView, can_focus=True):
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

    def show(self, lines: Sequence[Line]) -> None:
        """Draw these lines from now on; those that stay as they are are not drawn anew."""
        before, self.lines = self.lines, lines
        if len(before) != len(lines):
            self.virtual_size = Size(self.size.width, len(lines))
            self.cursor = max(0, min(self.cursor, len(lines) - 1))
            self.refresh()
            return
        top = int(self.scroll_offset.y)
        for y in range(min(self.size.height, max(len(lines) - top, 0))):
            if before[top + y] != lines[top + y]:
                self.refresh_line(y)

    def on_resize(self) -> None:
        self.virtual_size = Size(self.size.width, len(self.lines))

    def refresh_line(self, y: int) -> None:
        """Draw one line anew, counted from the top of what is in sight."""
        from textual.geometry import Region

        self.refresh(Region(0, y, self.size.width, 1))

    def render_line(self, y: int) -> Strip:
        at, width = y + int(self.scroll_offset.y), self.size.width
        if at >= len(self.lines):
            return Strip.blank(width, self.rich_style)
        segments = [Segment(text, self._style(kind)) for text, kind in self.lines[at]]
        style = self.rich_style
        if at == self.cursor:
            if self.app.native_ansi_color:
                # The colours of the terminal may be those of the text on it.
                text = "".join(part for part, _ in self.lines[at])
                return Strip([Segment(text.ljust(width)[:width], Style(reverse=self.has_focus))])
            style += Style(bgcolor=self.get_component_rich_style("line--cursor").bgcolor)
        strip = Strip(segments).adjust_cell_length(width)
        return Strip(Segment.apply_style(strip, style), width)

    def _style(self, kind: str) -> Style:
        style = self.get_component_rich_style(f"line--{kind}")
        return Style(color=style.color, bold=style.bold, dim=style.dim, reverse=style.reverse)

    def action_walk(self, by: int) -> None:
        self.move_to(self.cursor + by)

    def action_open(self) -> None:
        if self.lines:
            self.post_message(self.Opened(self, self.cursor))

    def move_to(self, at: int) -> None:
        """Put the cursor on a line and bring it into sight."""
        self.cursor = max(0, min(at, len(self.lines) - 1))
        top, height = int(self.scroll_offset.y), self.size.height
        if height and not top <= self.cursor < top + height:
            to = self.cursor - (0 if self.cursor < top else height - 1)
            self.scroll_to(y=to, animate=False)
        self.refresh()

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
