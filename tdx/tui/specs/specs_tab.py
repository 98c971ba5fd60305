"""The Specs tab: specs after the selected stage, what changed, and the lineage of a key."""

from __future__ import annotations

from collections.abc import Iterator

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.widgets import Input, Static

from tdx.inspection.spec_report import KeyChange
from tdx.keys import split_key
from tdx.tui.compose.problem_panel import ProblemPanel
from tdx.tui.specs.tree import LinePath, PlaceSpecs, SpecLine, build_spec_lines, specs_at
from tdx.tui.specs.tree_list import ColumnWidths, SpecList, SpecSearch, lineage_text
from tdx.tui.tab_body import TabBody
from tdx.tui.workspace import ENV, Workspace

_HERE = "here"


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
        yield Static("", id="lineage")

    def on_mount(self) -> None:
        self.query_one("#spec-search").display = False
        self.workspace.selected.subscribe(self, lambda _: self.invalidate())
        self.workspace.inspected.subscribe(self, lambda _: self.invalidate())

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
        listed.display = specs.freshness != "none"
        whole = [each for one in places for each in self._tree(one, places[one], False)]
        self._search.look(whole)
        lines = [each for one in places for each in self._tree(one, places[one], True)]
        keys = (each for each in whole if each.change is not None)
        leaves = [leaf for each in places.values() for leaf in each.leaves()]
        widths = ColumnWidths.of((_key_width(each) for each in keys), leaves)
        listed.fill(lines, widths, self._search.found)
        self.query_one("#spec-title", Static).update(self._title(specs))
        self._trace(listed.line)

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
    def _folded(self, event: SpecList.Folded) -> None:
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
    def _searched(self, event: Input.Changed) -> None:
        event.stop()
        self._search.words = event.value
        self.update()
        self.action_match(0)

    @on(Input.Submitted, "#spec-search")
    def _submitted(self, event: Input.Submitted) -> None:
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

    # ------------------------------------------------------------------ the lineage

    @on(SpecList.Moved)
    def _moved(self, event: SpecList.Moved) -> None:
        event.stop()
        self._trace(event.line)

    def _trace(self, line: SpecLine | None) -> None:
        overview = self.workspace.status.overview
        text = Content("")
        key = None if line is None else line.key
        if line is not None and key and overview is not None and overview.lineage is not None:
            positions = self.workspace.draft.positions
            shown = [positions[n] if n < len(positions) else n for n in overview.working]
            places = [*[None] * len(overview.env_stages), *shown]
            text = lineage_text(overview.lineage, key, line.lane, places)
        lineage = self.query_one("#lineage", Static)
        lineage.border_title = Content(f"lineage of {key}" if key else "lineage")
        lineage.display = key is not None
        lineage.update(text)

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
