"""The one screen of the app: catalogue, chain and tabs side by side."""

from __future__ import annotations

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static, TabbedContent, TabPane

from tdx.inspection.overview import Problem
from tdx.pipeline.catalog import TransformInfo
from tdx.pipeline.values import StageConfig
from tdx.tui import bindings
from tdx.tui.compose.catalogue_pane import CataloguePane
from tdx.tui.compose.chain_list import ChainList
from tdx.tui.compose.chain_pane import ChainPane
from tdx.tui.compose.dialogs import Dialogs
from tdx.tui.compose.stage_tab import StageTab
from tdx.tui.compositing import draw_sparingly
from tdx.tui.key_queue import KeyQueue
from tdx.tui.screens.focus import FocusGuard, is_displayed
from tdx.tui.screens.hints import HintBook, HintLine
from tdx.tui.screens.jumping import JumpScreen
from tdx.tui.screens.key_line import KeyLine
from tdx.tui.screens.panes import CHAIN_PANE, TABS_PANE, Panes
from tdx.tui.screens.status_line import StatusLine
from tdx.tui.tab_body import TabBody
from tdx.tui.tabs import TABS
from tdx.tui.workspace import Workspace

LEAST = (60, 16)
"""Columns and rows below which nothing useful can be shown."""


class MainScreen(FocusGuard):
    """Puts the panes together and passes what one of them wants on to another.

    Args:
        workspace: the state of the app.
        hints: what to do first.
    """

    BINDINGS = [*bindings.SCREEN]

    def __init__(self, workspace: Workspace, hints: HintBook) -> None:
        super().__init__()
        draw_sparingly(self)
        self.hints = hints
        self.workspace = workspace
        self.is_filled = False
        self._focused_before: Widget | None = None
        self.panes = Panes(self)
        self.dialogs = Dialogs(self, workspace)

    def compose(self) -> ComposeResult:
        yield StatusLine(self.workspace)
        with Horizontal(id="body"):
            yield CataloguePane()
            yield ChainPane(self.workspace)
            with Vertical(id="tabs-pane", classes="pane"), TabbedContent(id="tabs"):
                for number, tab in enumerate(TABS, start=1):
                    title = Content.assemble((f"{number} ", "dim"), tab.title)
                    with TabPane(title, id=tab.id):
                        if number == 1:
                            yield tab.make(self.workspace)
        yield Static("", id="too-small")
        yield HintLine(self.workspace, self.hints)
        yield KeyLine()

    def on_mount(self) -> None:
        self.panes.fit(self.size.width)
        self.set_focus(self.fallback_focus())
        # A key for a tab that does not exist yet would go to the chain.
        self._keys().hold()
        self.call_after_refresh(self._fill_tabs)

    async def _fill_tabs(self) -> None:
        """Make the tabs that are not in front: the first screen does not wait for them."""
        try:
            for tab in TABS[1:]:
                pane = self.query_one(f"#{tab.id}", TabPane)
                if not pane.is_attached:
                    return  # left while it was starting
                await pane.mount(tab.make(self.workspace))
            self.is_filled = True
        finally:
            self.app.call_later(self._keys().release)

    def _keys(self) -> KeyQueue:
        keys: KeyQueue = getattr(self.app, "keys")  # noqa: B009
        return keys

    def on_resize(self, event: events.Resize) -> None:
        small = event.size.width < LEAST[0] or event.size.height < LEAST[1]
        was_small = self.has_class("-too-small")
        if small and not was_small:
            self._focused_before = self.focused
        self.set_class(small, "-too-small")
        self.query_one("#body").display = not small
        if small:
            size = f"{event.size.width}×{event.size.height}"
            self.query_one("#too-small", Static).update(
                f"tdx needs {LEAST[0]}×{LEAST[1]} characters; this terminal has {size}"
            )
        self.panes.fit(event.size.width)
        if was_small and not small and self.focused is None:
            self.set_focus(self._focused_before or self.query_one(ChainList))

    def fallback_focus(self) -> Widget | None:
        """The chain, or else the tab in front, or else the catalogue."""
        tabs = (tab.home for tab in self.query(TabBody) if tab.is_seen)
        homes = [*self.query(ChainList), *tabs, *self.query("#catalogue")]
        return next((each for each in homes if each is not None and is_displayed(each)), None)

    # ------------------------------------------------------------------ where the focus goes

    def action_catalogue(self) -> None:
        self.panes.show_catalogue()
        self.query_one(CataloguePane).begin_search()

    def action_search(self) -> None:
        """Search in the tab that has the focus, where it can be searched, else in the catalogue."""
        above = self.focused.ancestors_with_self if self.focused is not None else []
        tab = next((each for each in above if isinstance(each, TabBody)), None)
        if tab is None or not tab.begin_search():
            self.action_catalogue()

    def action_tab(self, number: int) -> None:
        if number <= len(TABS):
            self.show_tab(TABS[number - 1].id)

    def show_tab(self, name: str) -> None:
        """Bring a tab to the front."""
        self.panes.reveal(TABS_PANE)
        self.query_one(TabbedContent).active = name
        self.move_hidden_focus()
        for tab in self.query(f"#{name} TabBody").results(TabBody):
            tab.enter()

    def on_click(self, event: events.Click) -> None:
        """A click on a tab is as good as its key, which puts the focus into it."""
        for tab in TABS:
            if event.widget is self.query_one(TabbedContent).get_tab(tab.id):
                self.show_tab(tab.id)

    @on(TabbedContent.TabActivated)
    def _tab_seen(self, event: TabbedContent.TabActivated) -> None:
        self.query_one(HintLine).saw(event.pane.id or "")

    def action_hints(self) -> None:
        self.query_one(HintLine).toggle()

    async def action_jump(self) -> None:
        targets = [widget for widget in self.focus_chain if widget.region.area]
        self.app.push_screen(JumpScreen(targets), self._jumped)

    def _jumped(self, target: Widget | None) -> None:
        if target is not None:
            self.set_focus(target)

    def action_expand(self) -> None:
        self.panes.expand()

    def action_resize(self, by: int) -> None:
        self.panes.resize(by)

    # ------------------------------------------------------------------ edits

    def action_undo(self) -> None:
        change = self.workspace.undo()
        self.notify(f"undone: {change.label}" if change else "nothing to undo", timeout=2)

    def action_redo(self) -> None:
        change = self.workspace.redo()
        self.notify(f"done again: {change.label}" if change else "nothing to redo", timeout=2)

    def add_transform(self, info: TransformInfo) -> None:
        """Insert a transform after the selected stage, or at the end where none is selected."""
        draft, place = self.workspace.draft, len(self.workspace.draft.stages)
        if self.workspace.stage is not None:
            place = self.workspace.place + 1
        stage = StageConfig(info.name)
        label = f"add {info.name}"
        self.workspace.edit(label, draft.inserted(place, [stage]), place=place)

    @on(CataloguePane.Chosen)
    def _chosen(self, event: CataloguePane.Chosen) -> None:
        self.add_transform(event.info)

    @on(CataloguePane.Left)
    def _left(self) -> None:
        self.panes.hide_catalogue_if_narrow()
        self.panes.reveal(CHAIN_PANE)
        self.set_focus(self.query_one(ChainList))

    @on(ChainPane.Edit)
    async def _edit(self) -> None:
        self.show_tab("stage")
        # Keys that are typed meanwhile wait for the end of this handler.
        await self.query_one(StageTab).open_form()

    @on(ChainPane.Fix)
    def action_fix(self) -> None:
        self.dialogs.fix()

    # ------------------------------------------------------------------ dialogs

    def action_choose_env(self) -> None:
        self.dialogs.choose_env()

    def action_presets(self) -> None:
        self.dialogs.choose_preset()

    def action_copy(self) -> None:
        self.dialogs.copy()

    def action_theme(self) -> None:
        self.app.search_themes()

    @on(StageTab.PickKeys)
    def _pick_keys(self, event: StageTab.PickKeys) -> None:
        self.dialogs.pick_keys(event.row)

    # ------------------------------------------------------------------ the worker

    def action_check(self) -> None:
        self.workspace.check_with_steps(self._checked)
        self.notify("checking with steps …", timeout=2)

    def _checked(self, problem: Problem | None) -> None:
        if problem is None:
            self.notify("checked with steps", timeout=3)
        else:
            self.notify(problem.message, title="Not checked", severity="error", timeout=6)

    def action_cancel(self) -> None:
        if self.workspace.cancel():
            self.notify("cancelled; the same key starts the worker anew", timeout=4)
        else:
            self.workspace.refresh()
            self.notify("the worker was started anew", timeout=3)

    def action_details(self) -> None:
        self.dialogs.details()

    def action_home(self) -> None:
        """Bring back the panes that an expanded one hides; else leave the focus for the chain."""
        was_expanded = self.panes.is_expanded
        self.panes.shrink()
        if not was_expanded or self.focused is None:
            self.set_focus(self.query_one(ChainList))
