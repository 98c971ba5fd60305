"""The Specs tab: specs after the selected stage, what changed, and the lineage of a key."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import OptionList, Static
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
from tdx.tui.tab_body import ProblemPanel, SearchableTab, SearchBar, search_bindings
from tdx.tui.workspace import Workspace

_INDENT = 2


class SpecList(OptionList):
    """Shows the lines; posts messages for folding and cursor moves."""

    BINDINGS = [
        Binding("enter,space", "select", "fold", id="spec_tree.fold", key_display="⏎"),
        Binding("left", "close", "fold", id="spec_tree.close", show=False),
        Binding("right", "open", "unfold", id="spec_tree.open", show=False),
    ]

    @dataclass
    class Folded(Message):
        """A line should be folded or unfolded."""

        path: LinePath
        closed: bool

    @dataclass
    class Moved(Message):
        """The cursor is on another line."""

        line: SpecLine

    def __init__(self) -> None:
        super().__init__(id="spec-tree", compact=True)
        self.lines: list[SpecLine] = []
        self.whole: list[SpecLine] = []
        self.wanted: LinePath | None = None

    @property
    def line(self) -> SpecLine | None:
        """The line under the cursor."""
        return None if self.highlighted is None else self.lines[self.highlighted]

    def fill(
        self, lines: Sequence[SpecLine], widths: ColumnWidths, matches: Collection[LinePath]
    ) -> None:
        """Replace the lines; keep the cursor on its line, else on the same key."""
        self.lines = list(lines)
        paths = [line.path for line in lines]
        keys = [n for n, line in enumerate(lines) if line.kind == "key"]
        if self.wanted in paths:
            at: int | None = paths.index(self.wanted)
        else:
            tail = None if self.wanted is None else self.wanted[1:]
            same_keys = (n for n in keys if paths[n][1:] == tail)
            at = next(same_keys, keys[0] if keys else (0 if paths else None))
        with self.prevent(OptionList.OptionHighlighted):
            self.clear_options()
            self.add_options(_option(line, widths, line.path in matches) for line in lines)
            self.highlighted = at

    def search_lines(self) -> list[str]:
        """Return the key of each line, folded ones included."""
        return [line.key or "" for line in self.whole]

    @property
    def cursor_line(self) -> int:
        """Line of the cursor; -1 if there is none."""
        return next((n for n, line in enumerate(self.whole) if line.path == self.wanted), -1)

    def go_to_line(self, line: int) -> None:
        """Move the cursor to a line."""
        self.go_to(self.whole[line].path)

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
        path = line.path
        above = [each for each in self.lines if each.path == path[: len(each.path)] != path]
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


class SpecsTab(SearchableTab):
    """Shows specs before and after the selected stage, or those of the whole chain."""

    BINDINGS = [
        *search_bindings("specs"),
        Binding(
            "left_square_bracket", "place(-1)", "previous", id="specs.previous", key_display="["
        ),
        Binding("right_square_bracket", "place(1)", "next", id="specs.next", key_display="]"),
        Binding("o", "only_changed", "only changes", id="specs.only_changed"),
        Binding("w", "whole", "whole chain", id="specs.whole"),
        Binding("minus", "fold_all(True)", "fold all", id="specs.fold_all", show=False),
        Binding("plus", "fold_all(False)", "unfold all", id="specs.unfold_all", show=False),
    ]
    HELP = """## Specs

The specs after the selected stage, in both directions: forward from the env, and inverse towards
the env. `+` is a new key, `-` a removed key, `~` a key whose spec has changed. In the lineage of a
key, `reward@0` is what the env writes, and `reward@1` what the first stage makes of it."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self.only_changed = False
        self.is_whole = False
        self._folds: dict[LinePath, bool] = {}
        self._opened: set[LinePath] = set()

    def compose(self) -> ComposeResult:
        yield Static("", id="spec-title")
        listed = SpecList()
        yield SearchBar("keys", listed)
        yield ProblemPanel(self.workspace)
        yield listed
        yield LineagePane(self.workspace)

    def on_mount(self) -> None:
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
        listed.whole = [line for at in places for line in self._tree(at, places[at], False)]
        matches = {listed.whole[n].path for n in self.find_matches()}
        self._opened = {path[:n] for path in matches for n in range(1, len(path))}
        lines = [line for at in places for line in self._tree(at, places[at], True)]
        if specs.freshness == "none":
            lines = []
        key_widths = (
            _INDENT * (len(split_key(line.change.key)) - 1) + cell_len(line.text)
            for line in listed.whole
            if line.change is not None
        )
        leaves = [leaf for place in places.values() for leaf in place.leaves()]
        indent = _INDENT * (1 + self.is_whole)
        room = listed.size.width - indent if listed.size.width else None
        listed.fill(lines, ColumnWidths.of(key_widths, leaves, room), matches)
        self.query_one("#spec-title", Static).update(self._title(specs))
        self._show_lineage(listed.line)

    def on_resize(self) -> None:
        self.invalidate()

    def _show_lineage(self, line: SpecLine | None) -> None:
        """Show the lineage of a key, and those of other keys if there is room."""
        room = self.size.height - len(self.query_one(SpecList).lines) - _HEADINGS
        self.query_one(LineagePane).show_line(line, room)

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
            if not folds or path in self._opened:
                return False
            first = self.is_whole and len(path) == 1 and path[0] != self._here
            return self._folds.get(path, first)

        def is_shown(change: KeyChange) -> bool:
            return not self.only_changed or change.change != "same"

        return build_spec_lines(specs, place, is_shown, is_folded, with_place=self.is_whole)

    @on(SpecList.Folded)
    def _fold_line(self, event: SpecList.Folded) -> None:
        event.stop()
        self._folds[event.path] = event.closed
        self.update()

    def action_match(self, by: int) -> None:
        self.update()  # marks the matches, and unfolds what they are in
        super().action_match(by)

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
        title = "the whole chain" if self.is_whole else specs.title
        return Content.assemble((title, "bold"), (f"  {note}" if note else "", "dim"))
