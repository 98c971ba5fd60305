"""The main screen: catalog, chain and tabs side by side.

To add a tab, append its name to :data:`TABS` and its class to :func:`load_tab`. A tab is a
:class:`~tdx.tui.tab_body.TabBody` that is constructed with the workspace.
"""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static, TabbedContent, TabPane

from tdx.inspection.live.views import STUCK_STEPS
from tdx.inspection.overview import Problem
from tdx.pipeline.values import StageConfig
from tdx.tui.chain_status import ENV
from tdx.tui.commands import WorkerCommands
from tdx.tui.compose.catalog_pane import CatalogPane
from tdx.tui.compose.chain_pane import ChainList, ChainPane
from tdx.tui.compose.dialogs import ComposeDialogs
from tdx.tui.compose.form_row import FormRow
from tdx.tui.compose.repairs import Repairs
from tdx.tui.compose.stage_tab import StageTab
from tdx.tui.contract.commands import ContractCommands
from tdx.tui.files.artifacts import ExportCommand
from tdx.tui.files.path_screen import suggest_name
from tdx.tui.input_queue import InputQueue
from tdx.tui.preferences import THEMES
from tdx.tui.screens.bars import HintBar, HintState, KeyBar, StatusBar
from tdx.tui.screens.dialogs import Choice, ChoiceScreen, JumpScreen, ask
from tdx.tui.screens.pane_layout import TABS_PANE, FocusGuard, PaneLayout, is_displayed
from tdx.tui.tab_body import TabBody
from tdx.tui.textual_internals import use_partial_compositor
from tdx.tui.workspace import Readings, Workspace


def load_tab(name: str) -> type[TabBody]:
    """Import the class of a tab; the first screen does not wait for all of them."""
    if name == "specs":
        from tdx.tui.specs.specs_tab import SpecsTab

        return SpecsTab
    if name == "live":
        from tdx.tui.live.live_tab import LiveTab

        return LiveTab
    if name == "profile":
        from tdx.tui.profile.profile_tab import ProfileTab

        return ProfileTab
    if name == "log":
        from tdx.tui.log.log_tab import LogTab

        return LogTab
    return StageTab


TABS = ("stage", "specs", "live", "profile", "log")
"""Widget ids of the tab panes; they are also the titles."""
MIN_SIZE = (60, 16)
"""Minimum columns and rows of the terminal."""
_FONT_FACE = re.compile(r"@font-face\s*\{.*?\}\s*", re.DOTALL)
_UNREAD = " ✕"
"""End of the title of the Log tab while it has unread errors."""

_HISTORY = Binding.Group("undo/redo", compact=True)
_TABS = Binding.Group("open a tab", compact=True)
_DISPLAY = Binding.Group("theme, first steps", compact=True)
_CHECK = Binding.Group("check, measure, exclude", compact=True)
_CONTRACT = Binding.Group("compare, record", compact=True)
_WIDTH = Binding.Group("narrower/wider", compact=True)


class MainScreen(FocusGuard):
    """Contains the panes and connects them."""

    BINDINGS = [
        Binding("a", "catalog", "add", id="screen.catalog"),
        Binding("e", "choose_env", "env", id="screen.env"),
        Binding("p", "presets", "sample pipelines", id="screen.presets", show=False),
        Binding("u,ctrl+z", "undo", "undo", id="screen.undo", group=_HISTORY),
        Binding("U,ctrl+y", "redo", "redo", id="screen.redo", group=_HISTORY),
        Binding("slash", "search", "search", id="screen.search", key_display="/", show=False),
        Binding("g,ctrl+g", "jump", "jump to a pane or field", id="screen.jump", show=False),
        Binding("z", "expand", "expand the pane", id="screen.expand", show=False),
        Binding(
            "less_than_sign", "resize(-4)", "narrower", False, id="screen.narrower", group=_WIDTH
        ),
        Binding("greater_than_sign", "resize(4)", "wider", False, id="screen.wider", group=_WIDTH),
        Binding("t", "theme", "change the theme", False, id="screen.theme", group=_DISPLAY),
        Binding("y", "copy", "copy the pipeline", id="screen.copy", show=False),
        Binding("k", "check", "check with steps", False, id="screen.check", group=_CHECK),
        Binding("h", "hints", "first steps", False, id="screen.hints", group=_DISPLAY),
        Binding("M", "measure", "measure the normalizer", False, id="screen.measure", group=_CHECK),
        Binding("X", "exclude", "exclude unstorable", False, id="screen.exclude", group=_CHECK),
        Binding("o", "open_source", "open the source", id="screen.source", show=False),
        Binding("C", "compare", "compare with …", False, id="screen.compare", group=_CONTRACT),
        Binding("F", "freeze", "record a contract", False, id="screen.freeze", group=_CONTRACT),
        Binding("ctrl+k", "cancel", "cancel the inspection", id="screen.cancel", show=False),
        # Tabs bind the same key to a worker of their own.
        Binding("ctrl+k", "cancel_command", show=False, priority=True),
        Binding("escape", "home", "go to the chain", id="screen.home", show=False),
        Binding("f12", "details", "show all errors", id="screen.details", show=False),
        *(
            Binding(str(n), f"tab({n})", id=f"screen.tab{n}", show=False, group=_TABS)
            for n in range(1, len(TABS) + 1)
        ),
    ]

    def __init__(self, workspace: Workspace, hints: HintState, input_queue: InputQueue) -> None:
        super().__init__()
        use_partial_compositor(self)
        self.hints = hints
        self.workspace = workspace
        self._tabs: dict[str, TabBody] = {}
        self._last_read = 0
        self._input_queue = input_queue
        self._focused_before: Widget | None = None
        self._constant_places: set[int] = set()
        self.panes = PaneLayout(self)
        self.dialogs = ComposeDialogs(self, workspace)
        self.commands = WorkerCommands(self, workspace)
        self.contracts = ContractCommands(self, workspace, self.commands)
        self.exports = ExportCommand(self, workspace, self.commands)
        self.repairs = Repairs(self, workspace, self.commands)

    def compose(self) -> ComposeResult:
        yield StatusBar(self.workspace)
        with Horizontal(id="body"):
            yield CatalogPane(self.workspace)
            yield ChainPane(self.workspace)
            with Vertical(id="tabs-pane", classes="pane"), TabbedContent(id="tabs"):
                for number, tab in enumerate(TABS, start=1):
                    title = Content.assemble((f"{number} ", "dim"), tab.title())
                    with TabPane(title, id=tab):
                        if number == 1:
                            yield self.get_tab(tab)
        yield Static("", id="too-small")
        yield HintBar(self.workspace, self.hints)
        yield KeyBar(self._input_queue)

    def on_mount(self) -> None:
        self.workspace.refused.subscribe(
            self, lambda reason: self.notify(reason, severity="warning", timeout=5)
        )
        self.workspace.edited.subscribe(self, lambda _: self._fit_chain())
        self.workspace.inspected.subscribe(self, lambda _: self._fit_chain())
        self.workspace.stepped.subscribe(self, self._report_constant_stages)
        self.workspace.journal.subscribe(self._mark_unread_errors)
        self.panes.fit(self.size.width)
        self._fit_chain()
        self.set_focus(self.fallback_focus())

    def get_tab(self, name: str) -> TabBody:
        """Return the content of a tab, which may not be mounted yet."""
        if name not in self._tabs:
            self._tabs[name] = load_tab(name)(self.workspace)
        return self._tabs[name]

    async def mount_tab(self, name: str) -> TabBody:
        """Create the widgets of a tab, unless it was opened before."""
        tab, pane = self.get_tab(name), self.query_one(f"#{name}", TabPane)
        if not tab.is_attached and pane.is_attached:  # else the app exits already
            await pane.mount(tab)
        return tab

    def _mark_unread_errors(self) -> None:
        """Mark the Log tab while it has errors that were not in front."""
        if not self.query("TabbedContent Tab"):
            return  # the app exits: its workers report that they end
        tabs, entries = self.query_one(TabbedContent), self.workspace.journal.entries
        if tabs.active == "log" and entries:
            self._last_read = entries[-1].number
        unread = any(
            entry.severity == "error" and entry.number > self._last_read for entry in entries
        )
        tab = tabs.get_tab("log")
        if unread != tab.has_class("-unread"):
            tab.set_class(unread, "-unread")
            title = tab.label.plain.removesuffix(_UNREAD)
            tab.label = f"{title}{_UNREAD}" if unread else title

    def _report_constant_stages(self, readings: Readings) -> None:
        """Name each stage once whose output stays the same while its input changes."""
        stages = self.workspace.draft.stages
        constant = {
            place: reading.key
            for place, reading in readings.items()
            if reading.warning == "constant" and place < len(stages)
        }
        for place in constant.keys() - self._constant_places:
            name = stages[place].config.name
            text = f"{constant[place]} has been constant for {STUCK_STEPS} steps; its input changes"
            self.notify(text, title=f"{place} {name}", severity="warning", timeout=6, markup=False)
        self._constant_places = set(constant)

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

    def _fit_chain(self) -> None:
        self.panes.widen_chain(self.query_one(ChainList).content_width)

    def set_focus(
        self, widget: Widget | None, scroll_visible: bool = True, from_app_focus: bool = False
    ) -> None:
        """Focus a widget; close the catalog if the focus leaves it."""
        super().set_focus(widget, scroll_visible, from_app_focus)
        if self.focused is not None and self.query_one(CatalogPane) not in self.focused.ancestors:
            self.panes.hide_catalog()

    def fallback_focus(self) -> Widget | None:
        """Return the chain, else the front tab, else the catalog."""
        in_front = (tab for tab in self.query(TabBody) if tab.is_in_front and tab.is_mounted)
        tabs = (tab.default_focus for tab in in_front)
        homes = [*self.query(ChainList), *tabs, *self.query("#catalog")]
        return next((home for home in homes if home is not None and is_displayed(home)), None)

    def action_catalog(self) -> None:
        self.panes.show_catalog()
        self.query_one(CatalogPane).start_search()

    def action_search(self) -> None:
        """Search the focused tab if it can be searched, else the catalog."""
        above = self.focused.ancestors_with_self if self.focused is not None else []
        tab = next((node for node in above if isinstance(node, TabBody)), None)
        if tab is None or not tab.start_search():
            self.action_catalog()

    async def action_tab(self, number: int) -> None:
        await self.show_tab(TABS[number - 1])

    async def show_tab(self, name: str) -> None:
        """Bring a tab to the front; keys typed meanwhile wait until it has the focus."""
        tab = await self.mount_tab(name)
        self.panes.reveal(TABS_PANE)
        self.query_one(TabbedContent).active = name
        self.move_hidden_focus()
        tab.activate()

    async def on_click(self, event: events.Click) -> None:
        """Focus the content of a tab whose title is clicked, as its key does."""
        for tab in TABS:
            if event.widget is self.query_one(TabbedContent).get_tab(tab):
                await self.show_tab(tab)

    @on(TabbedContent.TabActivated)
    async def _fill_active_tab(self, event: TabbedContent.TabActivated) -> None:
        """Fill a tab that the arrow keys of the titles, or a press on one, bring to the front."""
        await self.mount_tab(event.pane.id or TABS[0])
        self._mark_unread_errors()
        self.query_one(HintBar).mark_visited(event.pane.id or "")

    def action_hints(self) -> None:
        self.query_one(HintBar).toggle()

    async def action_jump(self) -> None:
        targets = [widget for widget in self.focus_chain if widget.region.area]
        ask(self.app, JumpScreen(targets), self.set_focus)

    def action_expand(self) -> None:
        self.panes.expand()

    def action_resize(self, by: int) -> None:
        self.panes.resize(by)

    def action_undo(self) -> None:
        change = self.workspace.undo()
        self.notify(f"undone: {change.label}" if change else "nothing to undo", timeout=2)

    def action_redo(self) -> None:
        change = self.workspace.redo()
        self.notify(f"redone: {change.label}" if change else "nothing to redo", timeout=2)

    def add_stage(self, stage: StageConfig) -> None:
        """Insert a stage after the selected one, or at the end."""
        draft, place = self.workspace.draft, len(self.workspace.draft.stages)
        if self.workspace.stage is not None:
            place = max(self.workspace.place + 1, self.workspace.first_place)
        self.workspace.edit(f"add {stage.name}", draft.insert(place, [stage]), place=place)

    @on(CatalogPane.Chosen)
    def _add_chosen_transform(self, event: CatalogPane.Chosen) -> None:
        self.add_stage(event.stage)

    @on(CatalogPane.Left)
    def _leave_catalog(self) -> None:
        self.panes.shrink()
        self.set_focus(self.query_one(ChainList))

    @on(ChainPane.Edit)
    async def _edit(self) -> None:
        if self.workspace.draft.env is None and self.workspace.place == ENV:
            self.dialogs.choose_env()
            return
        await self.show_tab("stage")
        # Keys typed meanwhile wait until this handler returns.
        await self.query_one(StageTab).open_form()

    @on(ChainPane.Fix)
    def action_fix(self) -> None:
        self.dialogs.fix()

    def action_choose_env(self) -> None:
        self.dialogs.choose_env()

    def action_presets(self) -> None:
        self.dialogs.choose_preset()

    def action_copy(self) -> None:
        self.dialogs.copy()

    def action_theme(self) -> None:
        """Ask for a theme; the one under the cursor is shown."""
        app, current = self.app, self.app.theme

        async def preview(name: str) -> str:
            app.theme = name
            return "dark" if app.current_theme.dark else "light"

        def use(name: str | None) -> None:
            app.theme = name or current

        own = [theme.name for theme in THEMES]
        names = [*own, *sorted(set(app.available_themes) - set(own))]
        choices = [Choice(name, name) for name in names]
        app.push_screen(ChoiceScreen("Theme", choices, describe=preview, current=current), use)

    @on(FormRow.PickKeys)
    def _pick_keys(self, event: FormRow.PickKeys) -> None:
        self.dialogs.pick_keys(event.row)

    @on(StageTab.Editing)
    def _show_edited_field(self, event: StageTab.Editing) -> None:
        self.query_one(f"#{TABS_PANE}").border_subtitle = event.text

    def action_compare(self) -> None:
        self.contracts.compare()

    def action_freeze(self) -> None:
        self.contracts.freeze()

    def action_measure(self) -> None:
        self.repairs.measure()

    def action_exclude(self) -> None:
        self.repairs.exclude()

    def action_open_source(self) -> None:
        self.repairs.open_source()

    def is_applicable(self, action: str) -> bool:
        """Return False for a measurement if no normalizer is selected."""
        return action != "measure" or self.repairs.can_measure

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave the key that cancels to others unless a worker records or repairs."""
        if action == "cancel_command":
            return self.commands.is_running
        return super().check_action(action, parameters)

    def action_cancel_command(self) -> None:
        self.commands.cancel()

    def action_check(self) -> None:
        def report(problem: Problem | None) -> None:
            if problem is None:
                self.notify("checked with steps", timeout=3)
            else:
                self.notify(problem.message, title="Not checked", severity="error", timeout=6)

        self.workspace.check_with_steps(report)
        self.notify("checking with steps …", timeout=2)

    def action_cancel(self) -> None:
        if self.workspace.cancel():
            self.notify("cancelled; press Ctrl+K again to restart the worker", timeout=4)
        else:
            self.workspace.refresh()
            self.notify("worker restarted", timeout=3)

    def save_screenshot(self) -> None:
        """Write what the screen shows to an SVG file, and say where it is."""
        env = self.workspace.draft.env
        # Fonts of a web server: a picture asks nobody for them.
        picture = _FONT_FACE.sub("", self.app.export_screenshot(title="tdx"))
        name = "tdx" if env is None else f"tdx-{suggest_name(env.id)}"
        numbered = (f"{name}{'' if number == 1 else f'-{number}'}.svg" for number in count(1))
        try:
            path = next(path for path in map(Path, numbered) if not path.exists()).absolute()
            with path.open("x", encoding="utf-8") as file:
                file.write(picture)
        except OSError as error:
            reason = error.strerror or str(error)
            self.notify(reason, title="No screenshot written", severity="error", timeout=6)
        else:
            self.notify(str(path), title="Screenshot written", timeout=6, markup=False)

    def action_details(self) -> None:
        self.dialogs.details()

    def action_home(self) -> None:
        """Restore the panes that an expanded one hides; else focus the chain."""
        was_expanded = self.panes.is_expanded
        self.panes.shrink()
        if not was_expanded or self.focused is None:
            self.set_focus(self.query_one(ChainList))
