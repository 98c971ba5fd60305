"""The log tab: everything that was said and that happened, to be read, searched and copied."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Button, Static, TabbedContent, TabPane

from tdx.tui.log.journal import Entry, as_text
from tdx.tui.log.log_view import LogView
from tdx.tui.log.recorder import Recorder
from tdx.tui.searching import SearchedTab, SearchLine, search_keys
from tdx.tui.workspace import Workspace

FILTERS = {
    "all": ("information", "output", "warning", "error"),
    "warnings": ("warning", "error"),
    "output": ("output",),
}
_NONE = {
    "all": "Nothing has happened yet.",
    "warnings": "No warnings and no errors.",
    "output": "No env and no worker has printed anything.",
}
_TONES = {"warning": "$text-warning", "error": "$text-error"}
_NARROW = 44
"""Columns below which there is room for the filters alone."""
_LOW = 18
"""Rows below which there is no room for the rest of an entry."""


class LogTab(SearchedTab):
    """Shows the journal.

    Args:
        workspace: the state of the app.
    """

    BINDINGS = [
        *search_keys("log"),
        Binding("f", "filter", "filter", id="log.filter"),
        Binding("slash", "screen.search", "search", id="log.search", key_display="/"),
        Binding("y", "copy_all", "copy", id="log.copy"),
        Binding("x", "clear", "clear", id="log.clear"),
    ]

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self.wanted = "all"
        self._recorder = Recorder(workspace)
        self._read = 0

    def compose(self) -> ComposeResult:
        with Horizontal(id="log-bar"):
            for name in FILTERS:
                yield Button(name, id=f"log-{name}", compact=True)
            yield Button("copy", id="log-copy", compact=True)
            yield Button("clear", id="log-clear", compact=True)
        yield SearchLine("the log")
        yield Static("", id="log-none")
        yield LogView()
        yield Static("", id="log-details")

    def on_mount(self) -> None:
        self.workspace.looked.subscribe(self, self._recorder.look)
        self.workspace.journal.watch(self._heard)
        self._recorder.look(self.workspace.seen)
        self._show_filter()

    @property
    def home(self) -> Widget:
        return self.query_one(LogView)

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.height < _LOW, "-low")
        self.set_class(event.size.width < _NARROW, "-narrow-bar")

    # ------------------------------------------------------------------ commands

    def action_filter(self) -> None:
        names = list(FILTERS)
        self.show_only(names[(names.index(self.wanted) + 1) % len(names)])

    def show_only(self, name: str) -> None:
        """Show what a filter lets through: ``all``, ``warnings`` or ``output``."""
        self.wanted = name
        self._show_filter()
        self.update()

    def action_copy_all(self) -> None:
        shown = self._entries()
        if shown:
            self.app.copy_to_clipboard(as_text(shown))
            what = f"copied {len(shown):,} {'line' if len(shown) == 1 else 'lines'}"
            self.notify(what, timeout=3)

    def action_clear(self) -> None:
        self.workspace.journal.clear()

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        name = (event.button.id or "").removeprefix("log-")
        if name in FILTERS:
            self.show_only(name)
        elif name == "copy":
            self.action_copy_all()
        else:
            self.action_clear()
        self.focus_home()

    @on(LogView.Opened)
    def _opened(self, event: LogView.Opened) -> None:
        from tdx.tui.screens.reading import ReadScreen

        event.stop()
        entry = self.query_one(LogView).pointed
        if entry is not None:
            title = f"{entry.time}  {entry.severity}, {entry.source}"
            text = "\n\n".join(each for each in (entry.text, entry.details) if each)
            self.app.push_screen(ReadScreen(title, text))

    @on(LogView.Pointed)
    def _pointed(self, event: LogView.Pointed) -> None:
        event.stop()
        self._show_details()
        self.note_matches()

    # ------------------------------------------------------------------ search

    def searched(self) -> Sequence[str]:
        entries = self.query_one(LogView).entries
        return [f"{each.source} {each.text} {each.details}" for each in entries]

    @property
    def line_at(self) -> int:
        return self.query_one(LogView).at

    def go_to_line(self, line: int) -> None:
        self.query_one(LogView).go_to(line)

    def note_matches(self) -> None:
        view = self.query_one(LogView)
        if view.words != self.words:
            view.words = self.words
            view.refresh()
        super().note_matches()

    # ------------------------------------------------------------------ what is shown

    def _heard(self) -> None:
        self.changed()
        self._show_unread()

    def _show_unread(self) -> None:
        """Mark the tab while there are errors that nobody has looked at."""
        entries = self.workspace.journal.entries
        if self.is_seen and entries:
            self._read = entries[-1].number
        unread = any(each.severity == "error" and each.number > self._read for each in entries)
        pane = next((each for each in self.ancestors if isinstance(each, TabPane)), None)
        if pane is not None:
            tabs = next(each for each in pane.ancestors if isinstance(each, TabbedContent))
            tabs.get_tab(pane).set_class(unread, "-unread")

    def update(self) -> None:
        """Show the entries that the filter lets through."""
        shown = self._entries()
        view = self.query_one(LogView)
        view.display = bool(shown)
        view.show_entries(shown, self.words)
        none = self.query_one("#log-none", Static)
        none.display = not shown
        none.update(_NONE[self.wanted])
        self._count()
        self._show_unread()
        self._show_details()
        self.note_matches()

    def _entries(self) -> list[Entry]:
        kinds = FILTERS[self.wanted]
        return [entry for entry in self.workspace.journal.entries if entry.severity in kinds]

    def _show_filter(self) -> None:
        for name in FILTERS:
            self.query_one(f"#log-{name}", Button).set_class(name == self.wanted, "-on")

    def _count(self) -> None:
        """Say on the filter how much is wrong."""
        wrong = FILTERS["warnings"]
        count = sum(each.severity in wrong for each in self.workspace.journal.entries)
        label = f"warnings {count:,}" if count else "warnings"
        self.query_one("#log-warnings", Button).label = label

    def _show_details(self) -> None:
        entry, details = self.query_one(LogView).pointed, self.query_one("#log-details", Static)
        details.display = entry is not None
        if entry is not None:
            tone = _TONES.get(entry.severity, "")
            details.update(Content.assemble((entry.text, tone), f"\n{entry.details}".rstrip()))
