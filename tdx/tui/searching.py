"""Search in a tab: a field for words, and keys that go from match to match."""

from __future__ import annotations

from collections.abc import Sequence

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.widgets import Input, Static

from tdx.tui.tab_body import TabBody


def search_keys(area: str) -> tuple[Binding, ...]:
    """Keys that do something while something is searched for; put them before the tab's own.

    Args:
        area: the first half of their ids.
    """
    return (
        Binding("n", "match(1)", "next match", id=f"{area}.next_match", show=False),
        Binding("N", "match(-1)", "match before", id=f"{area}.match_before", show=False),
        Binding("escape", "end_search", "end the search", id=f"{area}.end_search", show=False),
    )


class SearchLine(Horizontal):
    """The field, and which of how many matches the cursor is on; hidden until it is needed.

    Args:
        what: what is searched, for the empty field.
    """

    DEFAULT_CSS = """
    SearchLine { height: 1; display: none; }
    SearchLine Input { width: 1fr; background: $surface; padding: 0 1; }
    SearchLine Input:focus { background: $primary 20%; }
    SearchLine Static { width: auto; color: $text-muted; padding: 0 1; }
    """

    def __init__(self, what: str) -> None:
        super().__init__(classes="search-line")
        self._what = what

    def compose(self) -> ComposeResult:
        yield Input(placeholder=f"search {self._what} …", compact=True)
        yield Static("", markup=False)

    @property
    def box(self) -> Input:
        """The field."""
        return self.query_one(Input)

    def note(self, text: str) -> None:
        """Say something beside the field."""
        self.query_one(Static).update(text)


class SearchedTab(TabBody):
    """A tab with lines that are searched; it has a :class:`SearchLine` and :func:`search_keys`."""

    def searched(self) -> Sequence[str]:
        """The text of each line, from the first to the last."""
        raise NotImplementedError

    @property
    def line_at(self) -> int:
        """Which line the cursor is on; -1 for none."""
        raise NotImplementedError

    def go_to_line(self, line: int) -> None:
        """Put the cursor on a line."""
        raise NotImplementedError

    @property
    def words(self) -> list[str]:
        """What is searched for, in any order and any case."""
        return self._line.box.value.casefold().split()

    @property
    def _line(self) -> SearchLine:
        return self.query_one(SearchLine)

    def matches(self) -> list[int]:
        """The lines that have all the words."""
        words = self.words
        found = (line.casefold() for line in self.searched()) if words else ()
        return [n for n, line in enumerate(found) if all(word in line for word in words)]

    def begin_search(self) -> bool:
        self._line.display = True
        self.screen.set_focus(self._line.box)
        self.note_matches()
        return True

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Let other keys have theirs where nothing is searched for."""
        searches = self.is_mounted and bool(self._line.display)
        return searches if action in ("match", "end_search") else True

    def action_match(self, by: int) -> None:
        """Go to the next match, or back, around the end; 0 stays on one."""
        found, at = self.matches(), self.line_at
        if found and not (by == 0 and at in found):
            after = [line for line in found if line > at] or found
            before = [line for line in found if line < at] or found
            self.go_to_line(before[-1] if by < 0 else after[0])
        self.note_matches()

    def action_end_search(self) -> None:
        """Leave the search; the cursor stays on what was found."""
        self._line.box.value = ""
        self._line.display = False
        self.focus_home()

    def note_matches(self) -> None:
        """Say beside the field which match the cursor is on."""
        found, at = self.matches(), self.line_at
        if not self.words:
            self._line.note("")
        elif not found:
            self._line.note("nothing has that")
        else:
            place = f"{found.index(at) + 1} of " if at in found else ""
            self._line.note(f"{place}{len(found)} match{'' if len(found) == 1 else 'es'}")

    @on(Input.Changed, ".search-line Input")
    def _words_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.action_match(0)

    @on(Input.Submitted, ".search-line Input")
    def _words_given(self, event: Input.Submitted) -> None:
        event.stop()
        if self.words:
            self.focus_home()
        else:
            self.action_end_search()
