"""The profile tab: measure in the background, look at the rows, see what an edit saved."""

from __future__ import annotations

from typing import Literal

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Button, Input, OptionList, ProgressBar, Static
from textual.widgets.option_list import Option

from tdx.tui.profile.cost_table import CostTable
from tdx.tui.profile.lines import BOTH, Shown, is_side_by_side, lines_of, mode_of
from tdx.tui.profile.measuring import Measuring
from tdx.tui.profile.requests import Measure, ModeName
from tdx.tui.profile.runs import Run
from tdx.tui.profile.texts import WELCOME, histogram, history_line, run_text, summary
from tdx.tui.tab_body import TabBody
from tdx.tui.workspace import Workspace

SHOWN: tuple[Shown, ...] = ("planned", "eager", BOTH)
_LOW = 20
"""Rows below which there is no room for the list of runs."""


class ProfileTab(TabBody):
    """Measures the chain and keeps the runs of this session.

    Args:
        workspace: the state of the app.
    """

    BINDINGS = [
        Binding("r", "measure", "measure", id="profile.measure"),
        Binding("c", "cancel", "cancel", id="profile.cancel", show=False),
        Binding("s", "sort", "sort", id="profile.sort"),
        Binding("i", "invert", "invert", id="profile.invert", show=False),
        Binding("m", "mode", "mode", id="profile.mode"),
        Binding("n", "settings", "settings", id="profile.settings", show=False),
        Binding("o", "memory", "memory too", id="profile.memory", show=False),
        Binding("b", "base", "compare with this", id="profile.base", show=False),
        Binding("left_square_bracket", "run(-1)", "earlier", id="profile.earlier", key_display="["),
        Binding("right_square_bracket", "run(1)", "later", id="profile.later", key_display="]"),
    ]
    HELP = """## Profile

`r` measures the chain in a process of its own, while everything else goes on; `c` cancels it, and
what was measured until then is there. `m` chooses how the chain runs: `planned` as rollouts do by
default, `eager` step by step, or both side by side. `s` sorts by the next column, `i` the other way
round. Edit the chain and measure again: the column `change` says what each part takes more or less
than in the run before; `≈` is within the noise. `[` and `]` go through the runs, `b` lets others be
compared with the one that is shown."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self.measuring = Measuring(self, workspace, self.changed, self._tell)
        self.wanted: Shown = SHOWN[0]
        self.memory = False
        self.base: Run | None = None
        self._drawn: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        with Horizontal(id="profile-bar"):
            yield Button("Run", "primary", id="profile-run", compact=True)
            yield Button(self.wanted, id="profile-mode", compact=True)
            yield Input("1000", type="integer", id="profile-steps", compact=True)
            yield Static("×", id="profile-times")
            yield Input("5", type="integer", id="profile-repeats", compact=True)
            yield Button("memory", id="profile-memory", compact=True)
        with Horizontal(id="profile-progress"):
            yield ProgressBar(show_eta=False, id="profile-meter")
            yield Static("", id="profile-doing")
        yield Static("", id="profile-summary")
        yield CostTable()
        yield Static("", id="profile-histogram")
        yield OptionList(id="profile-runs", compact=True)

    def on_mount(self) -> None:
        self.workspace.edited.subscribe(self, lambda _: self.changed())

    @property
    def home(self) -> Widget:
        table = self.query_one(CostTable)
        return table if table.display else self.query_one("#profile-run")

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.height < _LOW, "-low")
        self.set_class(event.size.height >= 30, "-high")
        self._say()
        self._point()

    # ------------------------------------------------------------------ commands

    def action_measure(self) -> None:
        draft = self.workspace.draft
        if draft.env is None:
            self.notify("choose an env first", timeout=2)
        elif self.measuring.runs:
            self.notify("it is being measured already; c cancels", timeout=2)
        else:
            modes: tuple[ModeName, ...] = ("planned",)
            if self.wanted != "planned":
                modes = ("eager",) if self.wanted == "eager" else ("eager", "planned")
            steps = self._number("steps", 1000)
            request = Measure(
                draft.pipeline(),
                modes,
                steps=steps,
                repeats=self._number("repeats", 5),
                warmup=min(100, max(1, steps // 10)),
                memory=self.memory,
                allow_code=self.workspace.allow_code,
            )
            self.measuring.begin(request, draft)

    def action_cancel(self) -> None:
        self.measuring.cancel()

    def action_sort(self) -> None:
        self.query_one(CostTable).sort_next()

    def action_invert(self) -> None:
        self.query_one(CostTable).invert()

    def action_mode(self) -> None:
        self.wanted = SHOWN[(SHOWN.index(self.wanted) + 1) % len(SHOWN)]
        self.query_one("#profile-mode", Button).label = self.wanted
        self._show_run()

    def action_memory(self) -> None:
        self.memory = not self.memory
        self.query_one("#profile-memory", Button).set_class(self.memory, "-on")
        self.notify("memory is measured too" if self.memory else "time alone", timeout=2)

    def action_settings(self) -> None:
        self.query_one("#profile-steps").focus()

    def action_base(self) -> None:
        shown = self.measuring.shown
        self.base = None if shown is self.base else shown
        text = f"compared with #{self.base.number} from now on" if self.base else ""
        self.notify(text or "each run is compared with the one before", timeout=3)
        self._show_run()

    def action_run(self, by: int) -> None:
        runs = self.measuring.history.runs
        if self.measuring.shown in runs:
            at = runs.index(self.measuring.shown) + by
            self._choose(runs[max(0, min(at, len(runs) - 1))])

    # ------------------------------------------------------------------ mouse and fields

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        if event.button.id == "profile-run":
            (self.action_cancel if self.measuring.runs else self.action_measure)()
        elif event.button.id == "profile-mode":
            self.action_mode()
        else:
            self.action_memory()

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.query_one(CostTable).focus()
        self.action_measure()

    @on(OptionList.OptionSelected, "#profile-runs")
    @on(OptionList.OptionHighlighted, "#profile-runs")
    def _run_chosen(self, event: OptionList.OptionMessage) -> None:
        event.stop()
        number = int((event.option.id or "run-0").removeprefix("run-"))
        run = next((each for each in self.measuring.history.runs if each.number == number), None)
        if run is not None and run is not self.measuring.shown:
            self._choose(run)

    @on(CostTable.Pointed)
    def _pointed(self, event: CostTable.Pointed) -> None:
        event.stop()
        self._point()

    def _choose(self, run: Run) -> None:
        self.measuring.shown = run
        self._show_run()

    def _number(self, name: str, otherwise: int) -> int:
        text = self.query_one(f"#profile-{name}", Input).value
        return int(text) if text.isdecimal() and int(text) else otherwise

    # ------------------------------------------------------------------ what is shown

    def update(self) -> None:
        """Show the progress, and the run that is there now."""
        measuring, progress = self.measuring, self.measuring.progress
        run = self.query_one("#profile-run", Button)
        run.label = "Stop" if measuring.runs else "Run"
        run.variant = "error" if measuring.runs else "primary"
        self.query_one("#profile-progress").display = measuring.runs
        if measuring.runs:
            doing = "starting …" if progress is None else f"{progress.doing} …"
            self.query_one("#profile-doing", Static).update(
                "cancelling …" if measuring.is_ending else doing
            )
            of = progress.of if progress is not None else 1
            done = progress.done if progress is not None else 0
            self.query_one(ProgressBar).update(total=max(of, 1), progress=done)
        else:
            self._show_run()

    @property
    def other(self) -> Run | None:
        """The run that the one shown is compared with."""
        shown = self.measuring.shown
        if shown is None or (mode := mode_of(shown, self.wanted)) is None:
            return None
        if self.base is not None and self.base is not shown:
            return self.base
        return self.measuring.history.before(shown, mode.mode)

    def _tell(self, run: Run) -> None:
        """Say what was found to someone who looks elsewhere."""
        if not self.is_seen:
            severity: Literal["information", "error"] = "error" if run.ended else "information"
            text = run_text(run, self.wanted, self.other)
            self.notify(text, title="Profile", severity=severity, timeout=6, markup=False)

    def _show_run(self) -> None:
        run, table = self.measuring.shown, self.query_one(CostTable)
        drawn = (run, self.wanted, self.other, len(self.measuring.history.runs))
        if drawn == self._drawn:
            self._say()
            return
        self._drawn = drawn
        lines = [] if run is None else lines_of(run, self.wanted, self.other)
        both = run is not None and is_side_by_side(run, self.wanted)
        is_lost = table.has_focus and not lines
        table.display = bool(lines)
        if is_lost:
            self.focus_home()
        table.show_lines(lines, both)
        self._say()
        self._list_runs()

    def _say(self) -> None:
        run, said = self.measuring.shown, self.query_one("#profile-summary", Static)
        if run is None:
            said.update(WELCOME)
        else:
            low = self.has_class("-low")
            said.update(summary(run, self.wanted, self.other, self.workspace.draft, low))

    def _point(self) -> None:
        table, shown = self.query_one(CostTable), self.query_one("#profile-histogram", Static)
        line = table.pointed if table.display else None
        shown.display = line is not None
        height = 6 if self.has_class("-high") else 1 if self.has_class("-low") else 3
        shown.update(histogram(line, max(10, self.size.width), height))

    def _list_runs(self) -> None:
        listed, history = self.query_one("#profile-runs", OptionList), self.measuring.history
        runs = list(reversed(history.runs))
        listed.set_class(len(runs) < 2, "-few")
        with self.prevent(OptionList.OptionHighlighted):
            listed.clear_options()
            listed.add_options(Option(self._run_line(run), id=f"run-{run.number}") for run in runs)
            if self.measuring.shown in runs:
                listed.highlighted = runs.index(self.measuring.shown)

    def _run_line(self, run: Run) -> Content:
        mode = mode_of(run, self.wanted)
        before = None if mode is None else self.measuring.history.before(run, mode.mode)
        return history_line(run, before, self.wanted, "◆" if run is self.base else " ")
