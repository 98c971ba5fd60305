"""The entries of the log, a line each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tdx.tui.log.journal import Entry

_MARKS = {"information": "·", "output": "»", "warning": "▲", "error": "✕"}
_WITH_SOURCE = 56
"""Columns from which on a line says who said it."""


class LogView(ScrollView, can_focus=True):
    """Draws entries; the cursor stays at the end while it is there."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *(f"log--{name}" for name in ("time", "source", "cursor", "match")),
        *(f"log--{name}" for name in _MARKS),
    }
    BINDINGS = [
        Binding("up", "go(-1)", "up", show=False),
        Binding("down", "go(1)", "down", show=False),
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("pagedown", "page(1)", "page down", show=False),
        Binding("home", "end(0)", "first", show=False),
        Binding("end", "end(-1)", "last", show=False),
        Binding("enter", "open", "read", id="log.read"),
    ]
    HELP = """## The log

What the app has said, what happened to its workers and what these have printed, as it came. `▲` is
a warning, `✕` an error, `»` a line that an env or a worker has written to its output. `Enter` reads
an entry with all that is known of it, such as a traceback. `f` shows warnings and errors alone,
or what was printed alone; `/` searches, `n` and `N` go from match to match. `y` copies all that is
shown, `x` forgets it. `End` follows what comes."""

    class Pointed(Message):
        """The cursor is on another entry."""

    class Opened(Message):
        """An entry is to be read."""

    def __init__(self) -> None:
        super().__init__(id="log-view")
        self.entries: list[Entry] = []
        self.words: list[str] = []
        self._number = 0
        self._follows = True

    @property
    def at(self) -> int:
        """Which entry the cursor is on; -1 where there is none."""
        if self._follows:
            return len(self.entries) - 1
        later = (n for n, entry in enumerate(self.entries) if entry.number >= self._number)
        return next(later, len(self.entries) - 1)

    @property
    def pointed(self) -> Entry | None:
        """The entry under the cursor."""
        return self.entries[self.at] if self.entries else None

    def show_entries(self, entries: Sequence[Entry], words: list[str]) -> None:
        """Show these from now on.

        Args:
            entries: the entries.
            words: what is searched for in them.
        """
        self.entries, self.words = list(entries), words
        self._measure()
        self._keep_in_sight()

    def go_to(self, at: int) -> None:
        """Put the cursor on an entry; on the last one it follows what comes."""
        if self.entries:
            at = max(0, min(at, len(self.entries) - 1))
            self._number = self.entries[at].number
            self._follows = at == len(self.entries) - 1
            self._keep_in_sight()
            self.post_message(self.Pointed())

    def action_go(self, by: int) -> None:
        self.go_to(self.at + by)

    def action_page(self, by: int) -> None:
        self.go_to(self.at + by * max(1, self.size.height - 1))

    def action_end(self, at: int) -> None:
        self.go_to(at % max(1, len(self.entries)))

    def action_open(self) -> None:
        self.post_message(self.Opened())

    def on_click(self, event: events.Click) -> None:
        line = event.y + int(self.scroll_offset.y)
        if line < len(self.entries):
            self.go_to(line)
            if event.chain > 1:
                self.action_open()

    def on_resize(self) -> None:
        self._measure()
        self._keep_in_sight()

    def _measure(self) -> None:
        size = Size(self.size.width, len(self.entries))
        if size != self.virtual_size:
            self.virtual_size = size

    def _keep_in_sight(self) -> None:
        self.refresh()
        top, height, at = int(self.scroll_offset.y), self.size.height, self.at
        if height and not top <= at < top + height:
            self.scroll_to(y=at - (0 if at < top else height - 1), animate=False)

    def render_line(self, y: int) -> Strip:
        at, width = y + int(self.scroll_offset.y), self.scrollable_content_region.width
        if at >= len(self.entries):
            return Strip.blank(width, self.rich_style)
        style = self.rich_style
        if at == self.at:
            cursor = self.get_component_rich_style("log--cursor")
            style += Style(bgcolor=cursor.bgcolor, reverse=cursor.reverse)
        strip = Strip(self._segments(self.entries[at], width)).adjust_cell_length(width)
        return Strip(Segment.apply_style(strip, style))

    def _segments(self, entry: Entry, width: int) -> Iterator[Segment]:
        yield self._part(f"{entry.time} ", "time")
        yield self._part(f"{_MARKS[entry.severity]} ", entry.severity)
        left = width - 11
        if width >= _WITH_SOURCE:
            yield self._part(f"{entry.source:<8.8} ", "source")
            left -= 9
        tail = f" ×{entry.times:,}" if entry.times > 1 else ""
        tail += " …" if entry.details else ""
        text = entry.text
        if cell_len(text) > left - cell_len(tail):
            text = f"{set_cell_size(text, max(0, left - cell_len(tail) - 1)).rstrip()}…"
        yield from self._marked(text, entry.severity)
        if tail:
            yield self._part(tail, "source")

    def _marked(self, text: str, name: str) -> Iterator[Segment]:
        """The text, with what is searched for in it marked."""
        low, at = text.casefold(), 0
        while len(low) == len(text):
            found = [(low.find(word, at), word) for word in self.words]
            there = min((each for each in found if each[0] >= 0), default=None)
            if there is None:
                break
            start, word = there
            yield self._part(text[at:start], name)
            yield self._part(text[start : start + len(word)], "match")
            at = start + len(word)
        yield self._part(text[at:], name)

    def _part(self, text: str, name: str) -> Segment:
        found = self.get_component_rich_style(f"log--{name}")
        return Segment(
            text, Style(color=found.color, bold=found.bold, dim=found.dim, reverse=found.reverse)
        )
