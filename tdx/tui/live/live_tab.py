"""The Live tab: step an env in a worker and inspect every value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container, Horizontal, Vertical
from textual.widget import Widget

from tdx.tui.chain_status import ENV, ChainStatus
from tdx.tui.files.path_screen import suggest_name
from tdx.tui.line_widgets import LineList
from tdx.tui.live.connection import DEFAULT_RATE, LiveConnection, Target
from tdx.tui.live.history import EnvStrip, Timeline
from tdx.tui.live.images import ImagePane
from tdx.tui.live.manual_action import ManualActionPane
from tdx.tui.live.messages import (
    RATES,
    CompareWith,
    DumpSteps,
    FocusEnv,
    Pause,
    RunSteps,
    SetPanes,
    SetRate,
)
from tdx.tui.live.panes import PANES, PLOT_WINDOWS, ActionLabel, LivePanes, Pane
from tdx.tui.live.plots import PlotPane
from tdx.tui.screens.dialogs import Choice, ChoiceScreen, ask
from tdx.tui.tab_body import SearchableTab, SearchBar, search_bindings
from tdx.tui.workspace import Workspace

_STEP_COUNTS = (1, 10, 50, 100, 200, 500, 1000, 5000)
_STOP_CONDITIONS = (
    ("done", "an episode ends"),
    ("truncated", "an episode is truncated"),
    ("terminated", "an episode terminates"),
    ("nan", "a value is nan or infinite"),
    ("spec", "a value violates its spec"),
    ("nan or spec", "either; combine conditions with and, or and parentheses"),
)
_SOURCES = (
    ("random", "from the action spec"),
    ("zero", "an action of zeros"),
    ("manual", "set by hand, with sliders"),
)
_SEQUENCE_SUFFIXES = (".npy", ".json")
_SCRUB = Binding.Group("scrub", compact=True)
_EPISODE = Binding.Group("episode", compact=True)
_RATE = Binding.Group("rate", compact=True)

LIVE_BINDINGS = (
    Binding("space", "run", "run/pause", id="live.run"),
    Binding("s", "steps(1)", "step", id="live.step"),
    # While a search is active, its bindings come first; without one the keys fall through.
    *search_bindings("live"),
    Binding("n", "steps", "n steps", id="live.steps"),
    Binding("r", "reset", "reset", id="live.reset"),
    Binding("w", "until", "run until", id="live.until"),
    Binding("i", "source", "action", id="live.action"),
    Binding("minus", "rate(-1)", "slower", id="live.slower", group=_RATE, key_display="-"),
    Binding("plus,equals_sign", "rate(1)", "faster", id="live.faster", group=_RATE),
    Binding("left", "browse('trace', -1)", "back", id="live.back", group=_SCRUB),
    Binding("right", "browse('trace', 1)", "forward", id="live.forward", group=_SCRUB),
    Binding("shift+left", "browse('trace', -10)", "back 10", id="live.back10", show=False),
    Binding("shift+right", "browse('trace', 10)", "forward 10", id="live.forward10", show=False),
    Binding("home", "browse('first')", "oldest trace", id="live.first", show=False),
    Binding("end,f", "browse('latest')", "follow the latest", id="live.follow", show=False),
    Binding(
        *("left_square_bracket", "browse('episode', -1)", "previous episode"),
        id="live.previous_episode",
        group=_EPISODE,
        key_display="[",
    ),
    Binding(
        *("right_square_bracket", "browse('episode', 1)", "next episode"),
        id="live.next_episode",
        group=_EPISODE,
        key_display="]",
    ),
    Binding(
        "exclamation_mark", "browse('problem')", "next problem", id="live.next_problem", show=False
    ),
    Binding("B", "branch", "branch here", id="live.branch"),
    Binding("x", "browse('difference')", "next difference", id="live.next_difference", show=False),
    Binding("E", "earlier", "compare with the earlier rollout", id="live.earlier", show=False),
    Binding("Y", "keep", "keep the edit", id="live.keep", show=False),
    Binding("m", "mark", "mark to compare", id="live.mark", show=False),
    Binding("d", "difference", "differences", id="live.difference", show=False),
    Binding("o", "only_written", "only written keys", id="live.only_written", show=False),
    Binding("c", "plot", "plot a key", id="live.plot", show=False),
    Binding("b", "window", "zoom the plots", id="live.window", show=False),
    Binding("D", "dump", "dump these steps", id="live.dump", show=False),
    Binding("v", "view", "next pane", id="live.view"),
    Binding(
        "comma", "env(-1)", "previous env", id="live.previous_env", show=False, key_display=","
    ),
    Binding("full_stop", "env(1)", "next env", id="live.next_env", show=False, key_display="."),
    Binding("ctrl+k", "kill", "kill the worker", id="live.kill", show=False),
)


class LiveTab(SearchableTab):
    """Steps the env of the workspace in a worker and shows its history.

    :attr:`connection` controls the worker and the history, :attr:`panes` show what it sends.
    """

    BINDINGS = [*LIVE_BINDINGS]
    HELP = """## Live

Steps the env with its chain in a worker process. `Space` runs and pauses, `s` makes one step, `n` a
number of steps. `w` runs until a condition: `done`, `truncated`, `nan`, `spec`, or a comparison
such as `reward > 0.5`. `i` chooses where actions come from.

The history holds the latest steps: `←` and `→` browse it, `[` and `]` go from episode to episode,
`!` goes to the next problem, and `End` follows the latest step. `m` marks a step for comparison,
`d` shows the differences. `/` searches keys and stages; `n` and `N` go from match to match until
`Escape` ends the search."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace, id="live-tab")
        self.panes = LivePanes()
        self.connection = LiveConnection(self, workspace, self.panes, self.lay_out)

    def compose(self) -> ComposeResult:
        panes = self.panes
        yield panes.header
        yield panes.envs
        yield SearchBar("keys and stages", panes.values)
        with Horizontal(id="live-choose"):
            for pane in PANES:
                action = f"view('{pane}')"
                yield ActionLabel(pane, action, id=f"show-{pane}", classes="-quiet")
        with Container(id="live-body"):
            yield panes.values
            with Vertical(id="live-side"):
                yield from (panes.images, panes.plots, panes.episodes, panes.manual)
        yield panes.timeline

    def on_mount(self) -> None:
        self.workspace.selected.subscribe(self, self.invalidate)

        def start_early(status: ChainStatus) -> None:
            # A tab that was opened while the env failed starts its worker once it works.
            if status.phase == "ready" and not status.problems:
                self.connection.start_if_new()

        self.workspace.inspected.subscribe(self, start_early)
        # Before the first frame, which would be blank.
        self.connection.show_header()
        self.connection.start_if_new()

    def update(self) -> None:
        """Scroll to what the selected stage wrote, and show its images."""
        panes = self.panes
        stage = None if self.workspace.stage is None else self.workspace.place
        if stage != panes.images.stage:
            panes.values.go_to_stage(ENV if stage is None else stage)
            panes.images.set_stage(stage)

    def on_unmount(self) -> None:
        self.connection.end()

    def on_show(self) -> None:
        self.connection.start_if_new()
        self.call_after_refresh(self._send_views)

    def on_hide(self) -> None:
        self._send_views()

    def on_resize(self, event: events.Resize) -> None:
        self.lay_out()

    @property
    def default_focus(self) -> Widget:
        return self.panes.by_name[self.panes.front]

    def lay_out(self) -> None:
        """Display the panes that have room."""
        if not self.is_mounted:
            return
        connection = self.connection
        is_manual = connection.action_source == "manual"
        self.panes.arrange(self, is_manual=is_manual, num_envs=connection.num_envs)
        connection.show_header()
        self.call_after_refresh(self._send_views)

    def show_pane(self, pane: Pane) -> None:
        """Bring a pane to the front."""
        self.panes.front = pane
        self.lay_out()
        self.call_after_refresh(self.focus_default)

    @on(ImagePane.ZoomChanged)
    def _send_views(self) -> None:
        """Tell the worker what there is room for, so that it sends no more."""
        num_envs = self.connection.num_envs
        views = self.panes.required_views(num_envs) if self.is_on_screen else SetPanes()
        self.connection.set_views(views)

    def _toggle_plot(self, name: str) -> None:
        self.panes.toggle_plot(name)
        self.lay_out()

    def _set_action_source(self, source: str) -> None:
        if source == "manual":
            self.show_pane("manual")
        self.connection.action_source = source
        self.connection.send_action_source()
        self.lay_out()

    def _ask(
        self,
        title: str,
        choices: Sequence[Choice],
        then: Callable[[str], None],
        is_verbatim: Callable[[str], bool] | None = None,
    ) -> None:
        """Ask for a choice or another text."""
        dialog = ChoiceScreen(title, choices, allow_custom=True, is_verbatim=is_verbatim)
        ask(self.app, dialog, then)

    def action_run(self) -> None:
        """Pause if running, else run until the stop condition holds."""
        connection = self.connection
        if connection.is_running and connection.is_open:
            connection.send_if_open(Pause())
        else:
            connection.run(until=connection.stop_condition)

    def action_steps(self, count: int | None = None) -> None:
        """Make a number of steps. ``None``: ask for it; the stop condition applies."""
        if count is not None:
            self.connection.run(count)
            return

        def run(text: str) -> None:
            plain = text.replace(",", "").replace("_", "")
            if plain.isdecimal() and int(plain) > 0:
                self.connection.run(int(plain), self.connection.stop_condition)
            else:
                self.notify(f"{text!r} is not a number of steps", severity="warning")

        choices = [Choice(str(count), str(count)) for count in _STEP_COUNTS]
        title = "Number of steps: choose one or type a number"
        self._ask(title, choices, run, is_verbatim=str.isdecimal)

    def action_reset(self) -> None:
        self.connection.reset()

    def action_until(self) -> None:
        """Ask for the stop condition and run; without a condition, only remove it."""
        connection = self.connection
        choices = [Choice(name, name, note) for name, note in _STOP_CONDITIONS]
        now = connection.stop_condition
        if now is not None:
            choices = [
                Choice("", "no condition", "run until paused"),
                Choice(now, now, "current"),
                *(choice for choice in choices if choice.id != now),
            ]

        def run(condition: str) -> None:
            connection.stop_condition = condition or None
            self.lay_out()
            if condition:
                connection.send(RunSteps(until=condition))

        title = "Run until: choose one or type reward > 0.5 and step_count >= 10"
        # A condition on a key is not the beginning of a choice.
        self._ask(title, choices, run, lambda text: any(sign in text for sign in "<>=!"))

    def action_rate(self, by: int) -> None:
        """Use the next larger or smaller rate."""
        connection = self.connection
        rate = connection.rate if connection.rate in RATES else DEFAULT_RATE
        connection.rate = RATES[max(0, min(RATES.index(rate) + by, len(RATES) - 1))]
        connection.send_if_open(SetRate(connection.rate))
        self.lay_out()

    def action_source(self) -> None:
        """Ask where actions come from."""
        now = self.connection.action_source
        choices = [Choice(name, name, note) for name, note in _SOURCES]
        policy = self.workspace.draft.policy
        if policy is not None and policy not in dict(_SOURCES):
            choices.insert(0, Choice(policy, policy, "of the pipeline"))
        known = [choice.id for choice in choices]
        if now not in known:
            choices.append(Choice(now, now, "current"))

        def use(text: str) -> None:
            path = Path(text).expanduser()
            if text not in (*known, now) and ":" not in text:
                # The suffix of a file tells its kind.
                if path.is_dir() or path.suffix in _SEQUENCE_SUFFIXES:
                    text = f"sequence:{path}"
                elif path.suffix:
                    text = f"module:{path}"
            self._set_action_source(text)

        self._ask("Action source: choose one or type sequence:FILE, module:FILE", choices, use)

    def action_env(self, by: int) -> None:
        self.connection.focus_env(by)

    def action_kill(self) -> None:
        self.connection.kill()

    def action_dump(self) -> None:
        connection = self.connection
        is_empty = connection.state is None or not connection.state.steps
        if connection.info is None or is_empty or not connection.is_open:
            connection.show_message("nothing to dump: make a step first")
            return

        def dump(path: str) -> None:
            connection.send(DumpSteps(str(Path(path).expanduser().absolute())))

        name = f"{suggest_name(connection.info.env)}-live"
        title = "Dump the steps since the reset: choose a folder or type one"
        self._ask(title, [Choice(name, name, "new folder")], dump)

    def action_browse(self, target: Target, by: int = 1) -> None:
        self.connection.browse(target, by)

    def action_mark(self) -> None:
        """Compare with the shown trace; if it is marked already, with the previous trace."""
        connection = self.connection
        state = connection.state
        if state is not None and connection.is_open:
            shown = connection.current_trace(state)
            mark = None if state.reference == shown else shown
            connection.send_if_open(CompareWith(mark))
            what = "the previous trace" if mark is None else f"trace {mark}"
            connection.show_message(f"comparing with {what}")

    def action_branch(self) -> None:
        """Repeat the rollout up to the shown trace, so that other actions can follow."""
        self.connection.branch()

    def action_earlier(self) -> None:
        """Compare with the earlier rollout, or with the previous trace."""
        connection = self.connection
        state = connection.state
        if state is None or state.differences is None:
            self.notify("no earlier rollout: edit the chain, or branch with B", timeout=3)
            return
        connection.send_if_open(CompareWith(is_earlier=not state.is_earlier))
        what = "previous trace" if state.is_earlier else "earlier rollout"
        connection.show_message(f"comparing with the {what}")

    def action_keep(self) -> None:
        """Keep the edit, and end the comparison with the rollout before it."""
        if self.connection.state is not None and self.connection.state.is_earlier:
            self.action_earlier()

    def action_difference(self) -> None:
        self.panes.values.set_difference(not self.panes.values.difference)

    def action_only_written(self) -> None:
        self.panes.values.set_only_written(not self.panes.values.only_written)

    def action_view(self, pane: Pane | None = None) -> None:
        """Show a pane. ``None``: the next one."""
        self.show_pane(pane or PANES[(PANES.index(self.panes.front) + 1) % len(PANES)])

    def action_plot(self) -> None:
        state = self.connection.state
        if state is None or not state.plot_names:
            self.notify("there are no values to plot yet: press s to step", timeout=2)
            return
        plotted = self.panes.plot_names
        choices = [
            Choice(name, name, "plotted" if name in plotted else "") for name in state.plot_names
        ]
        ask(self.app, ChoiceScreen("Plot a key (again removes it)", choices), self._toggle_plot)

    def action_window(self) -> None:
        at = PLOT_WINDOWS.index(self.panes.window) + 1
        self.panes.window = PLOT_WINDOWS[at % len(PLOT_WINDOWS)]
        self.lay_out()

    def start_search(self) -> bool:
        self.panes.front = "values"
        self.lay_out()
        return super().start_search()

    @on(Timeline.Scrubbed)
    @on(PlotPane.Picked)
    def _show_picked_trace(self, event: Timeline.Scrubbed | PlotPane.Picked) -> None:
        event.stop()
        self.connection.show_trace(event.index)

    @on(ImagePane.StagePicked)
    def _select_stage(self, event: ImagePane.StagePicked) -> None:
        event.stop()
        self.workspace.select(event.stage)

    @on(EnvStrip.Picked)
    def _focus_picked_env(self, event: EnvStrip.Picked) -> None:
        event.stop()
        self.connection.send_if_open(FocusEnv(event.row))

    @on(ManualActionPane.Changed)
    def _send_manual_action(self, event: ManualActionPane.Changed) -> None:
        event.stop()
        if self.connection.action_source == "manual":
            self.connection.send_action_source()
        else:
            self._set_action_source("manual")

    @on(LineList.Opened)
    def _open_line(self, event: LineList.Opened) -> None:
        event.stop()
        panes = self.panes
        if event.lines is panes.episodes:
            episode = panes.episodes.at(event.at)
            if episode is not None:
                self.connection.show_trace(episode.first)
        elif event.lines is panes.values and panes.values.key is not None:
            self._toggle_plot(panes.values.key)
