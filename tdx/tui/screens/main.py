"""The main screen: catalog, chain and tabs side by side."""

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
from tdx.tui.compose.catalog_pane import CatalogPane
from tdx.tui.compose.chain_list import ChainList
from tdx.tui.compose.chain_pane import ChainPane
from tdx.tui.compose.dialogs import ComposeDialogs
from tdx.tui.compose.stage_tab import StageTab
from tdx.tui.compositor import use_partial_compositor
from tdx.tui.keyboard import FocusGuard, InputQueue, is_displayed
from tdx.tui.screens.bars import HintBar, HintState, KeyBar, StatusBar
from tdx.tui.screens.dialogs import JumpScreen
from tdx.tui.screens.panes import CHAIN_PANE, TABS_PANE, PaneLayout
from tdx.tui.tab_body import TabBody
from tdx.tui.tabs import TABS
from tdx.tui.workspace import Workspace

MIN_SIZE = (60, 16)
"""Minimum columns and rows of the terminal."""


class MainScreen(FocusGuard):
    """Contains the panes and connects them.

    Args:
        workspace: State of the app.
        hints: State of the hints.
        input_queue: Queue that is held until all tabs exist.
    """

    BINDINGS = [*bindings.SCREEN]

    def __init__(self, workspace: Workspace, hints: HintState, input_queue: InputQueue) -> None:
        super().__init__()
        use_partial_compositor(self)
        self.hints = hints
        self.workspace = workspace
        self.is_filled = False
        self._input_queue = input_queue
        self._focused_before: Widget | None = None
        self.panes = PaneLayout(self)
        self.dialogs = ComposeDialogs(self, workspace)

    def compose(self) -> ComposeResult:
        yield StatusBar(self.workspace)
        with Horizontal(id="body"):
            yield CatalogPane()
            yield ChainPane(self.workspace)
            with Vertical(id="tabs-pane", classes="pane"), TabbedContent(id="tabs"):
                for number, tab in enumerate(TABS, start=1):
                    title = Content.assemble((f"{number} ", "dim"), tab.title)
                    with TabPane(title, id=tab.id):
                        if number == 1:
                            yield tab.load()(self.workspace)
        yield Static("", id="too-small")
        yield HintBar(self.workspace, self.hints)
        yield KeyBar()

    def on_mount(self) -> None:
        self.panes.fit(self.size.width)
        self.set_focus(self.fallback_focus())
        # A key for a tab that does not exist yet would go to the chain.
        self._input_queue.hold()
        self.call_after_refresh(self._fill_tabs)

    async def _fill_tabs(self) -> None:
        """Create the tabs that are not in front, after the first screen is drawn."""
        try:
            for tab in TABS[1:]:
                pane = self.query_one(f"#{tab.id}", TabPane)
                if not pane.is_attached:
                    return  # the app exits already
                await pane.mount(tab.load()(self.workspace))
            self.is_filled = True
        finally:
            self.app.call_later(self._input_queue.release)

    def on_resize(self, event: events.Resize) -> None:
        small = event.size.width < MIN_SIZE[0] or event.size.height < MIN_SIZE[1]
        was_small = self.has_class("-too-small")
        if small and not was_small:
            self._focused_before = self.focused
        self.set_class(small, "-too-small")
        self.query_one("#body").display = not small
        if small:
            size = f"{event.size.width}×{event.size.height}"
            self.query_one("#too-small", Static).update(
                f"tdx needs {MIN_SIZE[0]}×{MIN_SIZE[1]} characters; this terminal has {size}"
            )
        self.panes.fit(event.size.width)
        if was_small and not small and self.focused is None:
            self.set_focus(self._focused_before or self.query_one(ChainList))

    def fallback_focus(self) -> Widget | None:
        """Return the chain, else the front tab, else the catalog."""
        tabs = (tab.default_focus for tab in self.query(TabBody) if tab.is_in_front)
        homes = [*self.query(ChainList), *tabs, *self.query("#catalog")]
        return next((each for each in homes if each is not None and is_displayed(each)), None)

    # ------------------------------------------------------------------ where the focus goes

    def action_catalog(self) -> None:
        self.panes.show_catalog()
        self.query_one(CatalogPane).start_search()

    def action_search(self) -> None:
        """Search the focused tab if it can be searched, else the catalog."""
        above = self.focused.ancestors_with_self if self.focused is not None else []
        tab = next((each for each in above if isinstance(each, TabBody)), None)
        if tab is None or not tab.start_search():
            self.action_catalog()

    def action_tab(self, number: int) -> None:
        if number <= len(TABS):
            self.show_tab(TABS[number - 1].id)

    def show_tab(self, name: str) -> None:
        """Bring a tab to the front."""
        self.panes.reveal(TABS_PANE)
        self.query_one(TabbedContent).active = name
        self.move_hidden_focus()
        for tab in self.query(f"#{name} TabBody").results(TabBody):
            tab.activate()

    def on_click(self, event: events.Click) -> None:
        """Focus the content of a tab whose title is clicked, as its key does."""
        for tab in TABS:
            if event.widget is self.query_one(TabbedContent).get_tab(tab.id):
                self.show_tab(tab.id)

    @on(TabbedContent.TabActivated)
    def _tab_seen(self, event: TabbedContent.TabActivated) -> None:
        self.query_one(HintBar).mark_visited(event.pane.id or "")

    def action_hints(self) -> None:
        self.query_one(HintBar).toggle()

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
        self.notify(f"redone: {change.label}" if change else "nothing to redo", timeout=2)

    def add_transform(self, info: TransformInfo) -> None:
        """Insert a transform after the selected stage, or at the end."""
        draft, place = self.workspace.draft, len(self.workspace.draft.stages)
        if self.workspace.stage is not None:
            place = self.workspace.place + 1
        stage = StageConfig(info.name)
        label = f"add {info.name}"
        self.workspace.edit(label, draft.insert(place, [stage]), place=place)

    @on(CatalogPane.Chosen)
    def _chosen(self, event: CatalogPane.Chosen) -> None:
        self.add_transform(event.info)

    @on(CatalogPane.Left)
    def _left(self) -> None:
        self.panes.hide_catalog_if_narrow()
        self.panes.reveal(CHAIN_PANE)
        self.set_focus(self.query_one(ChainList))

    @on(ChainPane.Edit)
    async def _edit(self) -> None:
        self.show_tab("stage")
        # Keys typed meanwhile wait until this handler returns.
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
            self.notify("cancelled; press Ctrl+K again to restart the worker", timeout=4)
        else:
            self.workspace.refresh()
            self.notify("worker restarted", timeout=3)

    def action_details(self) -> None:
        self.dialogs.details()

    def action_home(self) -> None:
        """Restore the panes that an expanded one hides; else focus the chain."""
        was_expanded = self.panes.is_expanded
        self.panes.shrink()
        if not was_expanded or self.focused is None:
            self.set_focus(self.query_one(ChainList))
