"""What tabs share: when a tab draws, where the focus goes, search, and the problem panel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Input, Static, TabPane

from tdx.tui.backend.messages import TRACEBACK_HINT
from tdx.tui.line_widgets import ElidedStatic
from tdx.tui.workspace import Workspace

DRAW_DELAY = 0.04
"""Seconds that a tab waits for further changes before it draws, so that keys come first."""


def holds_focus(widget: Widget) -> bool:
    """Return True if keys go to a widget or one inside.

    Its ``has_focus`` lags behind until it has handled that it lost the focus: a tab that draws
    meanwhile would take the focus back.
    """
    focused = widget.screen.focused
    return focused is not None and widget in focused.ancestors_with_self


class TabBody(Vertical):
    """Base class of the content of a tab.

    A subclass draws in :meth:`update` and calls :meth:`invalidate` when its content is outdated.
    Several changes in a row are drawn once, and none while another tab is in front.
    :attr:`default_focus` gets the focus when the tab comes to the front.
    """

    def __init__(self, workspace: Workspace, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.workspace = workspace
        self._stale = True
        self._timer: Timer | None = None
        self._is_activated = False

    def update(self) -> None:
        """Draw the current state."""

    @property
    def default_focus(self) -> Widget | None:
        """Widget to focus when the tab comes to the front. ``None``: keep the focus."""
        return None

    def activate(self) -> None:
        """Take the focus, now or as soon as the tab is in front."""
        self._is_activated = True
        if self.is_in_front and self.is_mounted:
            self._take_focus()

    def start_search(self) -> bool:
        """Focus the search field; return False if there is none."""
        return False

    @property
    def is_in_front(self) -> bool:
        """True if this tab is in front."""
        return all(node.display for node in self.ancestors if isinstance(node, TabPane))

    @property
    def is_up_to_date(self) -> bool:
        """True if nothing is waiting to be drawn."""
        return not (self._stale and self.is_in_front)

    def invalidate(self, change: object = None) -> None:
        """Draw soon, or when the tab comes to the front; signals of the workspace call this too."""
        self._stale = True
        if self._timer is None and self.is_in_front:
            self._timer = self.set_timer(DRAW_DELAY, self._draw)

    def on_show(self) -> None:
        self.invalidate()
        self.call_later(self._take_focus)

    def _take_focus(self) -> None:
        is_wanted = self._is_activated or self.screen.focused is None
        self._is_activated = False
        # Another tab may be in front by now; focusing a widget would bring this one back.
        if is_wanted and self.is_in_front and not holds_focus(self):
            self.focus_default()

    def focus_default(self) -> None:
        """Focus the default widget."""
        if self.default_focus is not None:
            self.screen.set_focus(self.default_focus)

    def _draw(self) -> None:
        self._timer = None
        if self._stale and self.is_in_front and self.is_mounted:
            self._stale = False
            self.update()


def search_bindings(area: str) -> tuple[Binding, ...]:
    """Return the bindings of a search; put them before the bindings of the tab."""
    return (
        Binding("n", "match(1)", "next match", id=f"{area}.next_match", show=False),
        Binding("N", "match(-1)", "previous match", id=f"{area}.previous_match", show=False),
        Binding("escape", "end_search", "end the search", id=f"{area}.end_search", show=False),
    )


class SearchTarget(Protocol):
    """A widget whose lines can be searched."""

    def search_lines(self) -> Sequence[str]:
        """Return the text of each line."""

    @property
    def cursor_line(self) -> int:
        """Line of the cursor; -1 if there is none."""

    def go_to_line(self, line: int) -> None:
        """Move the cursor to a line."""


class SearchBar(Horizontal):
    """Search field with the number of matches; hidden until a search starts."""

    DEFAULT_CSS = """
    SearchBar { height: 1; display: none; }
    SearchBar Input { width: 1fr; background: $surface; padding: 0 1; }
    SearchBar Input:focus { background: $primary 20%; }
    SearchBar Static { width: auto; color: $text-muted; padding: 0 1; }
    """

    def __init__(self, what: str, target: SearchTarget) -> None:
        super().__init__(classes="search-line")
        self._what = what
        self.target = target

    def compose(self) -> ComposeResult:
        yield Input(placeholder=f"search {self._what} …", compact=True)
        yield Static("", markup=False)

    @property
    def input(self) -> Input:
        """The search field."""
        return self.query_one(Input)

    def show_note(self, text: str) -> None:
        """Show a text next to the field."""
        self.query_one(Static).update(text)


class SearchableTab(TabBody):
    """A tab whose lines can be searched.

    It contains a :class:`SearchBar` and has the bindings of :func:`search_bindings`.
    """

    @property
    def search_words(self) -> list[str]:
        """Words to find, in any order and case."""
        return self._search_bar.input.value.casefold().split()

    @property
    def _search_bar(self) -> SearchBar:
        return self.query_one(SearchBar)

    def find_matches(self) -> list[int]:
        """Return the lines that contain all words."""
        words = self.search_words
        lines = self._search_bar.target.search_lines() if words else ()
        return [n for n, line in enumerate(lines) if all(word in line.casefold() for word in words)]

    def start_search(self) -> bool:
        self._search_bar.display = True
        self.screen.set_focus(self._search_bar.input)
        self.show_match_count()
        return True

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable the search bindings while no search is active."""
        searches = self.is_mounted and bool(self._search_bar.display)
        return searches if action in ("match", "end_search") else True

    def action_match(self, by: int) -> None:
        """Go to the next or previous match and wrap around; 0 stays on a match."""
        target, matches = self._search_bar.target, self.find_matches()
        at = target.cursor_line
        if matches and not (by == 0 and at in matches):
            after = [line for line in matches if line > at] or matches
            before = [line for line in matches if line < at] or matches
            target.go_to_line(before[-1] if by < 0 else after[0])
        self.show_match_count()

    def action_end_search(self) -> None:
        """End the search; keep the cursor."""
        self._search_bar.input.value = ""
        self._search_bar.display = False
        self.focus_default()

    def show_match_count(self) -> None:
        """Show the number of matches and the current one."""
        bar, matches = self._search_bar, self.find_matches()
        at = bar.target.cursor_line
        if not self.search_words:
            bar.show_note("")
        elif not matches:
            bar.show_note("no matches")
        else:
            place = f"{matches.index(at) + 1} of " if at in matches else ""
            bar.show_note(f"{place}{len(matches)} match{'' if len(matches) == 1 else 'es'}")

    @on(Input.Changed, ".search-line Input")
    def _search_again(self, event: Input.Changed) -> None:
        event.stop()
        self.action_match(0)

    @on(Input.Submitted, ".search-line Input")
    def _accept_words(self, event: Input.Submitted) -> None:
        event.stop()
        if self.search_words:
            self.focus_default()
        else:
            self.action_end_search()


_WITHOUT_STATISTICS = "TDX446"
_SIGNS = {
    "error": ("✕", "bold $error"),
    "warning": ("▲", "bold $warning"),
    "suggestion": ("△", "$secondary"),
}


class ProblemPanel(ElidedStatic):
    """Problems of the selected stage; hidden if there are none. Its tab calls for updates."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(classes="problems")
        self.workspace = workspace
        self._shown: object = None

    def update_problems(self) -> None:
        """Show the current problems; only a change lays out the whole screen."""
        problems, lints = self.workspace.list_selected_problems()
        if (problems, lints) == self._shown:
            return
        self._shown = (problems, lints)
        self.display = bool(problems or lints)
        lines = []
        for problem in problems:
            origin = f"\n  {problem.origin} · {TRACEBACK_HINT}" if problem.origin else ""
            is_repeated = bool(origin) and problem.hint == TRACEBACK_HINT
            hint = f"\n  → {problem.hint}" if problem.hint and not is_repeated else ""
            cross = ("✕ ", "bold $error")
            lines.append(Content.assemble(cross, problem.message, origin, (hint, "dim")))
        for finding in (lint.finding for lint in lints):
            sign, style = _SIGNS[finding.severity]
            hint = f"\n  → {finding.hint}" if finding.hint else ""
            key, repair = "", ""
            if finding.fix is not None:
                key, repair = "x", finding.fix.title
            elif finding.code == _WITHOUT_STATISTICS:
                key, repair = "M", "measure them in random steps"
            parts: list[str | tuple[str, str]] = [(f"{sign} ", style), (f"{finding.code} ", "dim")]
            parts += [finding.message, (hint, "dim")]
            if key:
                parts += ["\n  ", (f" {key} ", "bold $accent reverse"), f" {repair}"]
            lines.append(Content.assemble(*parts))
        self.update(Content("\n").join(lines))
