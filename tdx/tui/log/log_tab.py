"""The Log tab: everything that happened, to read, filter, search and copy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Button, Static

from tdx.foundation.text import count_text
from tdx.tui.line_widgets import ElidedStatic, LineList, TextLine
from tdx.tui.log.journal import MAX_ENTRIES, MAX_OUTPUT_ENTRIES, LogEntry
from tdx.tui.tab_body import SearchableTab, SearchBar, holds_focus, search_bindings
from tdx.tui.workspace import Workspace

_MARKS = {"information": "·", "output": "»", "warning": "▲", "error": "✕"}
_KINDS = {"information": "plain", "output": "muted", "warning": "warn", "error": "bad"}
_SOURCE_WIDTH = 56
"""Minimum width at which the source is shown."""


class LogView(LineList):
    """Shows entries; the cursor follows new ones while it is at the end."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"line--time", "line--match"}
    BINDINGS = [
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("pagedown", "page(1)", "page down", show=False),
        Binding("home", "end(0)", "first", show=False),
        Binding("end", "end(-1)", "last", show=False),
        Binding("enter", "open", "open", id="log.open"),
    ]
    HELP = """## Log

Notices, events of the workers and their output. `▲` is a warning, `✕` an error, and `»` a line of
output. `Enter` opens an entry with its details, such as a traceback. `End` follows new entries."""

    class CursorMoved(Message):
        """The cursor is on another entry."""

    def __init__(self) -> None:
        super().__init__(id="log-view")
        self.entries: list[LogEntry] = []
        self._words: tuple[str, ...] = ()
        self._number = 0
        self._follows = True

    @property
    def selected_entry(self) -> LogEntry | None:
        """The entry under the cursor."""
        return self.entries[self.cursor] if self.entries else None

    def show_entries(self, entries: Sequence[LogEntry]) -> None:
        """Replace the entries; the cursor stays on its entry, or follows new ones."""
        self.entries = list(entries)
        self._fill()
        at = len(self.entries) - 1
        if not self._follows:
            later = (n for n, entry in enumerate(self.entries) if entry.number >= self._number)
            at = next(later, at)
        super().go_to_line(at)

    def highlight(self, words: Sequence[str]) -> None:
        """Highlight the words of a search."""
        if tuple(words) != self._words:
            self._words = tuple(words)
            self._fill()

    def search_lines(self) -> list[str]:
        """Return source, text and details of each entry."""
        return [f"{entry.source} {entry.text} {entry.details}" for entry in self.entries]

    def go_to_line(self, line: int) -> None:
        """Move the cursor; on the last entry it follows new ones."""
        super().go_to_line(line)
        if self.entries:
            self._number = self.entries[self.cursor].number
            self._follows = self.cursor == len(self.entries) - 1
            self.post_message(self.CursorMoved())

    def action_page(self, by: int) -> None:
        self.action_walk(by * max(1, self.size.height - 1))

    def action_end(self, at: int) -> None:
        self.go_to_line(at % max(1, len(self.entries)))

    def on_resize(self) -> None:
        super().on_resize()
        self._fill()
        super().go_to_line(self.cursor)

    def _fill(self) -> None:
        width = self.size.width
        if len(self.entries) > self.size.height:
            width -= self.styles.scrollbar_size_vertical
        self.show([_entry_line(entry, width, self._words) for entry in self.entries])


@lru_cache(maxsize=MAX_ENTRIES + MAX_OUTPUT_ENTRIES)
def _entry_line(entry: LogEntry, width: int, words: tuple[str, ...]) -> TextLine:
    kind = _KINDS[entry.severity]
    parts = [(f"{entry.time} ", "time"), (f"{_MARKS[entry.severity]} ", kind)]
    left = width - 11
    if width >= _SOURCE_WIDTH:
        parts.append((f"{entry.source:<8.8} ", "muted"))
        left -= 9
    tail = f" ×{entry.times:,}" if entry.times > 1 else ""
    tail += " …" if entry.details else ""
    text = entry.text
    if cell_len(text) > left - cell_len(tail):
        text = f"{set_cell_size(text, max(0, left - cell_len(tail) - 1)).rstrip()}…"
    low, at = text.casefold(), 0
    while len(low) == len(text):
        matches = [(start, word) for word in words if (start := low.find(word, at)) >= 0]
        if not matches:
            break
        start, word = min(matches)
        parts += [(text[at:start], kind), (text[start : start + len(word)], "match")]
        at = start + len(word)
    parts.append((text[at:], kind))
    return (*parts, (tail, "muted")) if tail else tuple(parts)


FILTERS = {
    "all": ("information", "output", "warning", "error"),
    "warnings": ("warning", "error"),
    "output": ("output",),
}
_EMPTY_TEXT = {
    "all": "The log is empty.",
    "warnings": "No warnings and no errors.",
    "output": "No output yet.",
}
_TONES = {"warning": "$text-warning", "error": "$text-error"}
_NARROW_WIDTH = 44
"""Width below which only the filters fit."""
_LOW_HEIGHT = 18
"""Height below which the details of an entry do not fit."""


class LogTab(SearchableTab):
    """Shows the journal."""

    BINDINGS = [
        *search_bindings("log"),
        Binding("f", "filter", "filter", id="log.filter"),
        Binding("slash", "screen.search", "search", id="log.search", key_display="/"),
        Binding("y", "copy_all", "copy", id="log.copy"),
        Binding("x", "clear", "clear", id="log.clear"),
    ]

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self.filter_name = "all"

    def compose(self) -> ComposeResult:
        with Horizontal(id="log-bar"):
            for name in FILTERS:
                yield Button(name, id=f"log-{name}", compact=True)
            yield Button("copy", id="log-copy", compact=True)
            yield Button("clear", id="log-clear", compact=True)
        view = LogView()
        yield SearchBar("log", view)
        yield Static("", id="log-none")
        yield view
        yield ElidedStatic("", id="log-details")

    def on_mount(self) -> None:
        self.workspace.journal.subscribe(self.invalidate)
        self._show_filter()

    @property
    def default_focus(self) -> Widget:
        view = self.query_one(LogView)
        return view if view.display else self.query_one(f"#log-{self.filter_name}")

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.height < _LOW_HEIGHT, "-low")
        self.set_class(event.size.width < _NARROW_WIDTH, "-narrow-bar")

    def action_filter(self) -> None:
        names = list(FILTERS)
        self.show_only(names[(names.index(self.filter_name) + 1) % len(names)])

    def show_only(self, name: str) -> None:
        """Apply a filter: ``all``, ``warnings`` or ``output``."""
        self.filter_name = name
        self._show_filter()
        self.update()

    def action_copy_all(self) -> None:
        shown = self._entries()
        if shown:
            text = "\n".join(entry.full_text for entry in shown)
            self.app.copy_to_clipboard(f"{text}\n")
            self.notify(f"copied {count_text(len(shown), 'line')}", timeout=3)

    def action_clear(self) -> None:
        self.workspace.journal.clear()

    @on(Button.Pressed)
    def _run_button_command(self, event: Button.Pressed) -> None:
        event.stop()
        name = (event.button.id or "").removeprefix("log-")
        if name in FILTERS:
            self.show_only(name)
        elif name == "copy":
            self.action_copy_all()
        else:
            self.action_clear()
        self.focus_default()

    @on(LineList.Opened)
    def _open_entry(self, event: LineList.Opened) -> None:
        from tdx.tui.screens.dialogs import TextScreen

        event.stop()
        entry = self.query_one(LogView).selected_entry
        if entry is not None:
            title = f"{entry.time}  {entry.severity}, {entry.source}"
            text = "\n\n".join(part for part in (entry.text, entry.details) if part)
            self.app.push_screen(TextScreen(title, text))

    @on(LogView.CursorMoved)
    def _update_details(self, event: LogView.CursorMoved) -> None:
        event.stop()
        self._show_details()
        self.show_match_count()

    def show_match_count(self) -> None:
        self.query_one(LogView).highlight(self.search_words)
        super().show_match_count()

    def update(self) -> None:
        """Show the entries that pass the filter."""
        shown = self._entries()
        view = self.query_one(LogView)
        had_focus = holds_focus(view)
        view.display = bool(shown)
        if had_focus:
            self.focus_default()
        view.show_entries(shown)
        none = self.query_one("#log-none", Static)
        none.display = not shown
        none.update(_EMPTY_TEXT[self.filter_name])
        wrong = FILTERS["warnings"]
        count = sum(entry.severity in wrong for entry in self.workspace.journal.entries)
        label = f"warnings {count:,}" if count else "warnings"
        self.query_one("#log-warnings", Button).label = label
        self._show_details()
        self.show_match_count()

    def _entries(self) -> list[LogEntry]:
        kinds = FILTERS[self.filter_name]
        return [entry for entry in self.workspace.journal.entries if entry.severity in kinds]

    def _show_filter(self) -> None:
        for name in FILTERS:
            self.query_one(f"#log-{name}", Button).set_class(name == self.filter_name, "-on")

    def _show_details(self) -> None:
        entry = self.query_one(LogView).selected_entry
        details = self.query_one("#log-details", Static)
        details.display = entry is not None
        if entry is not None:
            tone = _TONES.get(entry.severity, "")
            details.update(Content.assemble((entry.text, tone), f"\n{entry.details}".rstrip()))
