"""The Specs tab: specs after the selected stage, what changed, and the lineage of a key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from tdx.foundation.keys import split_key
from tdx.inspection.spec_report import KeyChange
from tdx.tui.chain_status import ENV
from tdx.tui.specs.lineage_pane import LineagePane
from tdx.tui.specs.tree import (
    ColumnWidths,
    LinePath,
    PlaceSpecs,
    SpecLine,
    build_spec_lines,
    heading,
    key_label,
    specs_at,
)
from tdx.tui.tab_body import ProblemPanel, TabBody
from tdx.tui.workspace import Workspace


class SpecSearch:
    """Search words and the lines that match them."""

    def __init__(self) -> None:
        self.words = ""
        self.matches: list[LinePath] = []
        self.opened: frozenset[LinePath] = frozenset()

    @property
    def found(self) -> frozenset[LinePath]:
        """Matching lines."""
        return frozenset(self.matches)

    def update_matches(self, lines: Iterable[SpecLine]) -> None:
        """Search all lines, folded ones included."""
        words = self.words.casefold().split()
        self.matches = [
            line.path
            for line in lines
            if words and line.key is not None and all(w in line.key.casefold() for w in words)
        ]
        self.opened = frozenset(path[:n] for path in self.matches for n in range(1, len(path)))

    def next(self, path: LinePath | None, by: int) -> LinePath | None:
        """Return the next or previous match after a line; wrap around at the end."""
        if not self.matches:
            return None
        if path not in self.matches:
            return self.matches[-1 if by < 0 else 0]
        return self.matches[(self.matches.index(path) + by) % len(self.matches)]

    def note(self, path: LinePath | None) -> str:
        """Return the number of matches and the current one as text."""
        if not self.words.strip():
            return ""
        if not self.matches:
            return f"no key matches {self.words}"
        at = f"{self.matches.index(path) + 1} of " if path in self.matches else ""
        return f"{at}{len(self.matches)} match{'' if len(self.matches) == 1 else 'es'}"


_INDENT = 2


class SpecList(OptionList):
    """Shows the lines; posts messages for folding and cursor moves."""

    BINDINGS = [
        Binding("enter,space", "select", "fold", id="spec_tree.fold", key_display="⏎"),
        Binding("left", "close", "fold", id="spec_tree.close", show=False),
        Binding("right", "open", "unfold", id="spec_tree.open", show=False),
    ]

    class Folded(Message):
        """A line should be folded or unfolded."""

        def __init__(self, path: LinePath, closed: bool) -> None:
            super().__init__()
            self.path = path
            self.closed = closed

    class Moved(Message):
        """The cursor is on another line."""

        def __init__(self, line: SpecLine) -> None:
            super().__init__()
            self.line = line

    def __init__(self) -> None:
        super().__init__(id="spec-tree", compact=True)
        self.lines: list[SpecLine] = []
        self.wanted: LinePath | None = None

    @property
    def line(self) -> SpecLine | None:
        """The line under the cursor."""
        return None if self.highlighted is None else self.lines[self.highlighted]

    def fill(
        self, lines: Sequence[SpecLine], widths: ColumnWidths, found: frozenset[LinePath]
    ) -> None:
        """Replace the lines; keep the cursor on its line if possible."""
        self.lines = list(lines)
        with self.prevent(OptionList.OptionHighlighted):
            self.clear_options()
            self.add_options(_option(line, widths, line.path in found) for line in lines)
            self.highlighted = self._place_again()

    def go_to(self, path: LinePath) -> None:
        """Move the cursor to a line."""
        self.wanted = path
        at = next((n for n, line in enumerate(self.lines) if line.path == path), None)
        if at is not None:
            self.highlighted = at

    def action_close(self) -> None:
        """Fold the line under the cursor, or go to its parent."""
        line = self.line
        if line is None:
            return
        if line.members and not line.is_folded:
            self.post_message(self.Folded(line.path, True))
            return
        above = (each for each in self.lines if _is_ancestor(each.path, line.path))
        parent = max(above, key=lambda each: len(each.path), default=None)
        if parent is not None:
            self.go_to(parent.path)

    def action_open(self) -> None:
        """Unfold the line under the cursor, or go to its first member."""
        line = self.line
        if line is None or line.kind == "key":
            return
        if line.is_folded:
            self.post_message(self.Folded(line.path, False))
        else:
            self.action_cursor_down()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        line = self.lines[event.option_index]
        if line.kind != "key":
            self.wanted = line.path
            self.post_message(self.Folded(line.path, not line.is_folded))

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        if event.option_index < len(self.lines):
            line = self.lines[event.option_index]
            self.wanted = line.path
            self.post_message(self.Moved(line))

    def _place_again(self) -> int | None:
        paths = [line.path for line in self.lines]
        if self.wanted in paths:
            return paths.index(self.wanted)
        keys = [n for n, line in enumerate(self.lines) if line.kind == "key"]
        # At another place of the chain, stay on the same key.
        tail = None if self.wanted is None else self.wanted[1:]
        same_keys = (n for n in keys if paths[n][1:] == tail)
        return next(same_keys, keys[0] if keys else (0 if paths else None))


def _is_ancestor(one: LinePath, other: LinePath) -> bool:
    return len(one) < len(other) and other[: len(one)] == one


def _option(line: SpecLine, widths: ColumnWidths, found: bool) -> Option:
    pad = " " * (_INDENT * line.depth)
    if line.change is None:
        return Option(Content.assemble(pad, heading(line)), disabled=line.kind == "nothing")
    indent = _INDENT * (len(split_key(line.change.key)) - 1)
    label = key_label(line.text, line.change, widths, indent, found=found)
    return Option(Content.assemble(pad, label))


_HERE = "here"
_HEADINGS = 4
"""Lines of the tab that are neither specs nor lineage."""


class SpecsTab(TabBody):
    """Shows specs before and after the selected stage, or those of the whole chain.

    Args:
        workspace: State of the app.
    """

    BINDINGS = [
        Binding(
            "left_square_bracket", "place(-1)", "previous", id="specs.previous", key_display="["
        ),
        Binding("right_square_bracket", "place(1)", "next", id="specs.next", key_display="]"),
        Binding("o", "only_changed", "only changes", id="specs.only_changed"),
        Binding("w", "whole", "whole chain", id="specs.whole"),
        Binding("minus", "fold_all(True)", "fold all", id="specs.fold_all", show=False),
        Binding("plus", "fold_all(False)", "unfold all", id="specs.unfold_all", show=False),
        Binding("n", "match(1)", "next match", id="specs.next_match", show=False),
        Binding("N", "match(-1)", "previous match", id="specs.previous_match", show=False),
        Binding("escape", "end_search", "end the search", id="specs.end_search", show=False),
    ]
    HELP = """## Specs

The specs after the selected stage, in both directions: forward from the env, and inverse towards
the env. `+` is a new key, `-` a removed key, `~` a key whose spec has changed. `[` and `]` move
along the chain, `w` shows the whole chain. `Enter`, `←` and `→` fold and unfold, `-` and `+` fold
and unfold everything. `/` searches keys; `n` and `N` go from match to match."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self.only_changed = False
        self.is_whole = False
        self._folds: dict[LinePath, bool] = {}
        self._search = SpecSearch()

    def compose(self) -> ComposeResult:
        yield Static("", id="spec-title")
        yield Input(placeholder="search keys …", id="spec-search", compact=True)
        yield ProblemPanel(self.workspace)
        yield SpecList()
        yield LineagePane(self.workspace)

    def on_mount(self) -> None:
        self.query_one("#spec-search").display = False
        self.workspace.selected.subscribe(self, self.invalidate)
        self.workspace.inspected.subscribe(self, self.invalidate)

    @property
    def default_focus(self) -> Widget:
        return self.query_one(SpecList)

    def action_place(self, by: int) -> None:
        self.workspace.select(self.workspace.place + by)

    def action_only_changed(self) -> None:
        self.only_changed = not self.only_changed
        self.update()

    def action_whole(self) -> None:
        self.is_whole = not self.is_whole
        self._folds.clear()
        self.update()

    def action_fold_all(self, closed: bool) -> None:
        lines = self.query_one(SpecList).lines
        kinds = ("place",) if self.is_whole else ("part", "group")
        self._folds = {line.path: closed for line in lines if line.kind in kinds}
        self.update()

    def update(self) -> None:
        """Show the specs of the selected place, or of all places."""
        self.query_one(ProblemPanel).update_problems()
        places = self._places()
        specs = places[self._here]
        listed = self.query_one(SpecList)
        listed.set_class(specs.freshness == "old", "-old")
        whole = [each for one in places for each in self._tree(one, places[one], False)]
        self._search.update_matches(whole)
        lines = [each for one in places for each in self._tree(one, places[one], True)]
        if specs.freshness == "none":
            lines = []
        keys = (each for each in whole if each.change is not None)
        leaves = [leaf for each in places.values() for leaf in each.leaves()]
        indent = _INDENT * (1 + self.is_whole)
        room = listed.size.width - indent if listed.size.width else None
        widths = ColumnWidths.of((_key_width(each) for each in keys), leaves, room)
        listed.fill(lines, widths, self._search.found)
        self.query_one("#spec-title", Static).update(self._title(specs))
        self._show_lineage(listed.line)

    def on_resize(self) -> None:
        self.invalidate()

    def _show_lineage(self, line: SpecLine | None) -> None:
        """Show the lineage of a key, and those of other keys if there is room."""
        room = self.size.height - len(self.query_one(SpecList).lines) - _HEADINGS
        self.query_one(LineagePane).show_line(line, room)

    # ------------------------------------------------------------------ what is shown

    @property
    def _here(self) -> str:
        return str(self.workspace.place) if self.is_whole else _HERE

    def _places(self) -> dict[str, PlaceSpecs]:
        if not self.is_whole:
            return {_HERE: specs_at(self.workspace)}
        count = len(self.workspace.draft.stages)
        return {str(at): specs_at(self.workspace, at) for at in range(ENV, count + 1)}

    def _tree(self, place: str, specs: PlaceSpecs, folds: bool) -> Iterator[SpecLine]:
        def is_folded(path: LinePath) -> bool:
            return folds and self._is_folded(path)

        return build_spec_lines(specs, place, self._is_shown, is_folded, with_place=self.is_whole)

    def _is_folded(self, path: LinePath) -> bool:
        if path in self._search.opened:
            return False
        first = self.is_whole and len(path) == 1 and path[0] != self._here
        return self._folds.get(path, first)

    def _is_shown(self, change: KeyChange) -> bool:
        return not self.only_changed or change.change != "same"

    @on(SpecList.Folded)
    def _fold_line(self, event: SpecList.Folded) -> None:
        event.stop()
        self._folds[event.path] = event.closed
        self.update()

    # ------------------------------------------------------------------ search

    def start_search(self) -> bool:
        box = self.query_one("#spec-search", Input)
        box.display = True
        self.screen.set_focus(box)
        return True

    @on(Input.Changed, "#spec-search")
    def _search_keys(self, event: Input.Changed) -> None:
        event.stop()
        self._search.words = event.value
        self.update()
        self.action_match(0)

    @on(Input.Submitted, "#spec-search")
    def _accept_words(self, event: Input.Submitted) -> None:
        event.stop()
        self.query_one("#spec-search").display = bool(event.value)
        self.query_one(SpecList).focus()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Pass Escape on while no search is active."""
        return action != "end_search" or self.query_one("#spec-search").display

    def action_end_search(self) -> None:
        """End the search; keep the cursor."""
        box = self.query_one("#spec-search", Input)
        box.value = ""
        box.display = False
        self.query_one(SpecList).focus()

    def action_match(self, by: int) -> None:
        """Go to the next or previous match; 0 stays on a match."""
        listed = self.query_one(SpecList)
        path = self._search.next(listed.wanted, by)
        if path is not None:
            listed.go_to(path)
            self.query_one("#spec-title", Static).update(self._title(self._places()[self._here]))

    @on(SpecList.Moved)
    def _show_lineage_at_cursor(self, event: SpecList.Moved) -> None:
        event.stop()
        self._show_lineage(event.line)

    def _title(self, specs: PlaceSpecs) -> Content:
        notes = {
            "old": "from the last inspection",
            "none": "unknown",
            "fresh": "only changes" if self.only_changed else "",
        }
        note = notes[specs.freshness]
        if specs.freshness == "none" and self.workspace.status.phase == "inspecting":
            note = "inspecting …"
        search = self._search.note(self.query_one(SpecList).wanted)
        if search:
            return Content.styled(search, "bold")
        title = "the whole chain" if self.is_whole else specs.title
        return Content.assemble((title, "bold"), (f"  {note}" if note else "", "dim"))


def _key_width(line: SpecLine) -> int:
    assert line.change is not None
    return 2 * (len(split_key(line.change.key)) - 1) + len(line.text)
