"""The Log tab: everything that happened, to read, filter, search and copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Button, Static, TabbedContent, TabPane

from tdx.inspection.overview import Problem
from tdx.tui.log.journal import LogEntry, format_entries
from tdx.tui.tab_body import SearchableTab, SearchBar, search_bindings
from tdx.tui.workspace import Workspace

if TYPE_CHECKING:
    from tdx.tui.chain_status import ChainStatus


class ChainRecorder:
    """Records each error of the chain once, as long as it does not change.

    Args:
        workspace: State of the app.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._known: dict[tuple[str, int | None], Problem] = {}

    def record_changes(self, status: ChainStatus) -> None:
        """Record new errors, and stages that work again."""
        if status.phase == "empty":
            self._known = {}
            return
        workspace, before = self._workspace, self._known
        errors = workspace.errors.all()
        self._known = {(each.source, each.number): each.problem for each in errors}
        for (source, number), problem in self._known.items():
            if before.get((source, number)) != problem:
                details = (problem.origin, problem.hint, problem.details)
                workspace.journal.record(
                    f"{workspace.name_of(number)}: {problem.message}",
                    source="chain" if source == "look" else source,
                    severity="error",
                    details="\n".join(each for each in details if each),
                )
        broken = {number for _, number in self._known}
        for number in {number for _, number in before} - broken:
            if number is None or workspace.draft.find_place(number) is not None:
                workspace.journal.record(f"{workspace.name_of(number)} works again", source="chain")


_MARKS = {"information": "·", "output": "»", "warning": "▲", "error": "✕"}
_SOURCE_WIDTH = 56
"""Minimum width at which the source is shown."""


class LogView(ScrollView, can_focus=True):
    """Draws entries; the cursor follows new ones while it is at the end."""

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
        Binding("enter", "open", "open", id="log.open"),
    ]
    HELP = """## Log

Notices, events of the workers and their output. `▲` is a warning, `✕` an error, and `»` a line of
output. `Enter` opens an entry with its details, such as a traceback. `f` shows only warnings and
errors, or only output; `/` searches, `n` and `N` go from match to match. `y` copies the shown
entries, `x` clears the log. `End` follows new entries."""

    class CursorMoved(Message):
        """The cursor is on another entry."""

    class Opened(Message):
        """An entry should open."""

    def __init__(self) -> None:
        super().__init__(id="log-view")
        self.entries: list[LogEntry] = []
        self.words: list[str] = []
        self._number = 0
        self._follows = True

    @property
    def at(self) -> int:
        """Index of the entry under the cursor; -1 if there is none."""
        if self._follows:
            return len(self.entries) - 1
        later = (n for n, entry in enumerate(self.entries) if entry.number >= self._number)
        return next(later, len(self.entries) - 1)

    @property
    def selected_entry(self) -> LogEntry | None:
        """The entry under the cursor."""
        return self.entries[self.at] if self.entries else None

    def show_entries(self, entries: Sequence[LogEntry], words: list[str]) -> None:
        """Replace the entries.

        Args:
            entries: Entries.
            words: Words to highlight.
        """
        self.entries, self.words = list(entries), words
        self._measure()
        self._keep_in_sight()

    def go_to(self, at: int) -> None:
        """Move the cursor; on the last entry it follows new ones."""
        if self.entries:
            at = max(0, min(at, len(self.entries) - 1))
            self._number = self.entries[at].number
            self._follows = at == len(self.entries) - 1
            self._keep_in_sight()
            self.post_message(self.CursorMoved())

    def search_lines(self) -> list[str]:
        """Return source, text and details of each entry."""
        return [f"{each.source} {each.text} {each.details}" for each in self.entries]

    @property
    def cursor_line(self) -> int:
        """Line of the cursor; -1 if there is none."""
        return self.at

    def go_to_line(self, line: int) -> None:
        """Move the cursor to a line."""
        self.go_to(line)

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

    def _segments(self, entry: LogEntry, width: int) -> Iterator[Segment]:
        yield self._styled_segment(f"{entry.time} ", "time")
        yield self._styled_segment(f"{_MARKS[entry.severity]} ", entry.severity)
        left = width - 11
        if width >= _SOURCE_WIDTH:
            yield self._styled_segment(f"{entry.source:<8.8} ", "source")
            left -= 9
        tail = f" ×{entry.times:,}" if entry.times > 1 else ""
        tail += " …" if entry.details else ""
        text = entry.text
        if cell_len(text) > left - cell_len(tail):
            text = f"{set_cell_size(text, max(0, left - cell_len(tail) - 1)).rstrip()}…"
        yield from self._highlight_words(text, entry.severity)
        if tail:
            yield self._styled_segment(tail, "source")

    def _highlight_words(self, text: str, name: str) -> Iterator[Segment]:
        """Highlight the search words in a text."""
        low, at = text.casefold(), 0
        while len(low) == len(text):
            found = [(low.find(word, at), word) for word in self.words]
            there = min((each for each in found if each[0] >= 0), default=None)
            if there is None:
                break
            start, word = there
            yield self._styled_segment(text[at:start], name)
            yield self._styled_segment(text[start : start + len(word)], "match")
            at = start + len(word)
        yield self._styled_segment(text[at:], name)

    def _styled_segment(self, text: str, name: str) -> Segment:
        found = self.get_component_rich_style(f"log--{name}")
        return Segment(
            text, Style(color=found.color, bold=found.bold, dim=found.dim, reverse=found.reverse)
        )


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


_UNREAD = " ✕"
"""End of the title of the tab while it has unread errors."""


class LogTab(SearchableTab):
    """Shows the journal.

    Args:
        workspace: State of the app.
    """

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
        self._recorder = ChainRecorder(workspace)
        self._read = 0

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
        yield Static("", id="log-details")

    def on_mount(self) -> None:
        self.workspace.inspected.subscribe(self, self._recorder.record_changes)
        self.workspace.journal.subscribe(self._handle_journal_change)
        self._recorder.record_changes(self.workspace.status)
        self._show_filter()

    @property
    def default_focus(self) -> Widget:
        view = self.query_one(LogView)
        return view if view.display else self.query_one(f"#log-{self.filter_name}")

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.height < _LOW_HEIGHT, "-low")
        self.set_class(event.size.width < _NARROW_WIDTH, "-narrow-bar")

    # ------------------------------------------------------------------ commands

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
            self.app.copy_to_clipboard(format_entries(shown))
            what = f"copied {len(shown):,} {'line' if len(shown) == 1 else 'lines'}"
            self.notify(what, timeout=3)

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

    @on(LogView.Opened)
    def _open_entry(self, event: LogView.Opened) -> None:
        from tdx.tui.screens.dialogs import TextScreen

        event.stop()
        entry = self.query_one(LogView).selected_entry
        if entry is not None:
            title = f"{entry.time}  {entry.severity}, {entry.source}"
            text = "\n\n".join(each for each in (entry.text, entry.details) if each)
            self.app.push_screen(TextScreen(title, text))

    @on(LogView.CursorMoved)
    def _update_details(self, event: LogView.CursorMoved) -> None:
        event.stop()
        self._show_details()
        self.show_match_count()

    # ------------------------------------------------------------------ search

    def show_match_count(self) -> None:
        view = self.query_one(LogView)
        if view.words != self.search_words:
            view.words = self.search_words
            view.refresh()
        super().show_match_count()

    # ------------------------------------------------------------------ what is shown

    def _handle_journal_change(self) -> None:
        self.invalidate()
        self._show_unread()

    def _show_unread(self) -> None:
        """Mark the tab while it has unread errors."""
        entries = self.workspace.journal.entries
        if self.is_in_front and entries:
            self._read = entries[-1].number
        unread = any(each.severity == "error" and each.number > self._read for each in entries)
        pane = next((each for each in self.ancestors if isinstance(each, TabPane)), None)
        if pane is not None:
            tabs = next(each for each in pane.ancestors if isinstance(each, TabbedContent))
            tab = tabs.get_tab(pane)
            if unread != tab.has_class("-unread"):
                tab.set_class(unread, "-unread")
                title = tab.label.plain.removesuffix(_UNREAD)
                tab.label = f"{title}{_UNREAD}" if unread else title

    def update(self) -> None:
        """Show the entries that pass the filter."""
        shown = self._entries()
        view = self.query_one(LogView)
        had_focus = view.has_focus
        view.display = bool(shown)
        if had_focus:
            self.focus_default()
        view.show_entries(shown, self.search_words)
        none = self.query_one("#log-none", Static)
        none.display = not shown
        none.update(_EMPTY_TEXT[self.filter_name])
        self._show_warning_count()
        self._show_unread()
        self._show_details()
        self.show_match_count()

    def _entries(self) -> list[LogEntry]:
        kinds = FILTERS[self.filter_name]
        return [entry for entry in self.workspace.journal.entries if entry.severity in kinds]

    def _show_filter(self) -> None:
        for name in FILTERS:
            self.query_one(f"#log-{name}", Button).set_class(name == self.filter_name, "-on")

    def _show_warning_count(self) -> None:
        """Show the number of warnings and errors on the filter."""
        wrong = FILTERS["warnings"]
        count = sum(each.severity in wrong for each in self.workspace.journal.entries)
        label = f"warnings {count:,}" if count else "warnings"
        self.query_one("#log-warnings", Button).label = label

    def _show_details(self) -> None:
        entry, details = (
            self.query_one(LogView).selected_entry,
            self.query_one("#log-details", Static),
        )
        details.display = entry is not None
        if entry is not None:
            tone = _TONES.get(entry.severity, "")
            details.update(Content.assemble((entry.text, tone), f"\n{entry.details}".rstrip()))
