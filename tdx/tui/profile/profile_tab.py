"""The Profile tab: measure in the background and compare runs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container, Horizontal
from textual.widget import Widget
from textual.widgets import Button, Input, ProgressBar, Static

from tdx.pipeline.draft import Draft
from tdx.pipeline.model import StackFacts
from tdx.tui.chain_status import ENV
from tdx.tui.line_widgets import ElidedStatic
from tdx.tui.profile.advice import AdviceList, advice_text, replace_chain
from tdx.tui.profile.columns import CostSheet, build_sheet
from tdx.tui.profile.measurement import CANCELLED, DraftAdvice, MeasurementController
from tdx.tui.profile.messages import EXTRAS, Extra
from tdx.tui.profile.numbers import format_time
from tdx.tui.profile.requests import FindAdvice, MeasurePipeline
from tdx.tui.profile.runs import (
    MODE_SELECTIONS,
    SELECTION_TITLES,
    ModeSelection,
    ProfileRun,
    displayed_mode,
    modes_for,
    run_summary,
    run_text,
    welcome_text,
)
from tdx.tui.profile.widgets import HIGH, LOW, CostTable, PartPane, RunList
from tdx.tui.tab_body import SearchableTab, SearchBar, holds_focus, search_bindings
from tdx.tui.workspace import Workspace

PROFILE_KEYS = (
    *search_bindings("profile"),
    Binding("r", "measure", "measure", id="profile.measure"),
    Binding("c", "cancel", "cancel", id="profile.cancel", show=False),
    Binding("s", "sort", "sort", id="profile.sort"),
    Binding("i", "invert", "invert", id="profile.invert", show=False),
    Binding("m", "mode", "mode", id="profile.mode"),
    Binding("n", "settings", "settings", id="profile.settings", show=False),
    Binding("o", "extra('operators')", "operators", id="profile.operators"),
    Binding("v", "advise", "advice", id="profile.advice"),
    Binding("w", "extra('marginal')", "savings", id="profile.marginal", show=False),
    Binding("M", "extra('memory')", "memory", id="profile.memory", show=False),
    Binding("b", "base", "compare with this", id="profile.base", show=False),
    Binding("left_square_bracket", "run(-1)", "earlier", id="profile.earlier", key_display="["),
    Binding("right_square_bracket", "run(1)", "later", id="profile.later", key_display="]"),
)
HELP = """## Profile

`r` measures the chain in a worker process; `c` cancels and keeps partial results. `m` chooses how
the chain runs: `planned` as in rollouts, `eager` step by step, or both side by side. The most
expensive part comes first; `s` sorts by the next column, `i` reverses the order, `/` finds a part.

Extra passes are off by default: `o` shows torch operators, `M` allocated memory, and `w` what the
chain saves without each stage. After a measurement, changes that may make the chain faster are
tried; `v` selects them, and `Enter` applies one.

Edit the chain and measure again: the columns `#1`, `#2` and `change` compare each part with the
previous run; `≈` is within the noise. `[` and `]` browse the runs, `b` compares all other runs with
the current one."""


DEFAULT_STEPS, DEFAULT_REPEATS = 1000, 5


class ProfileBar(Container):
    """Settings of the measurement."""

    def __init__(self) -> None:
        super().__init__(id="profile-bar")

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Button("Run", "primary", id="profile-run", compact=True)
            yield Button("planned", id="profile-mode", compact=True)
            yield _number_input("profile-steps", DEFAULT_STEPS)
            yield Static("×", id="profile-times")
            yield _number_input("profile-repeats", DEFAULT_REPEATS)
        with Horizontal():
            yield Button("advice", id="profile-advice", compact=True)
            for name in EXTRAS:
                button = Button(id=f"profile-{name}-too", classes="profile-extra", compact=True)
                button.styles.line_pad = 0
                yield button
            yield Static("", id="profile-reason", markup=False)

    def show_running(self, runs: bool) -> None:
        """Change the first button to Stop while a measurement is running."""
        button = self.query_one("#profile-run", Button)
        button.label = "Stop" if runs else "Run"
        button.variant = "error" if runs else "primary"

    def show_stack(self, stack: StackFacts | None) -> None:
        """Hide what does not apply to the stack of a factory, and show the reason."""
        self.set_class(stack is not None, "-stack")
        self.set_class(stack is not None and not stack.runs_as_chain, "-observed")
        if stack is not None:
            source = "with samples" if stack.is_data else "in random steps"
            self.query_one("#profile-reason", Static).update(f"observed {source}")

    def show_extras(self, selected: Collection[Extra], is_tiny: bool) -> None:
        """Show what is measured apart from time."""
        for name in EXTRAS:
            button, is_on = self.query_one(f"#profile-{name}-too", Button), name in selected
            label = f" {name}" if not is_tiny else "ops" if name == "operators" else name
            button.label = f"{'●' if is_on else '○'}{label}"
            button.set_class(is_on, "-on")

    @property
    def settings(self) -> tuple[int, int, int]:
        """How long to measure: steps of each repeat, repeats, and steps before the first one."""
        steps = self._number("steps", DEFAULT_STEPS)
        return steps, self._number("repeats", DEFAULT_REPEATS), min(100, max(1, steps // 10))

    def _number(self, name: str, otherwise: int) -> int:
        text = self.query_one(f"#profile-{name}", Input).value
        return int(text) if text.isdecimal() and int(text) else otherwise


def _number_input(name: str, otherwise: int) -> Input:
    """Return a field for a number; empty stands for the default, its placeholder."""
    return Input(str(otherwise), type="integer", id=name, compact=True, placeholder=str(otherwise))


_NARROW_WIDTH, _TINY_WIDTH = 76, 41
"""Widths below which the bar takes two lines, and its fields are narrow."""
_EXTRA_TEXT = {
    "memory": "what each part allocates",
    "operators": "torch operators in each part",
    "marginal": "what the chain saves without each stage",
}


class ProfileTab(SearchableTab):
    """Measures the chain and keeps the runs of this session."""

    BINDINGS = [*PROFILE_KEYS]
    HELP = HELP

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self.measurement = MeasurementController(
            self, workspace, self.invalidate, self._report_result
        )
        self.selection: ModeSelection = MODE_SELECTIONS[0]
        self.extras: set[Extra] = set()
        self.base: ProfileRun | None = None
        self._drawn: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        yield ProfileBar()
        with Horizontal(id="profile-progress"):
            yield ProgressBar(show_eta=False, id="profile-meter")
            yield Static("", id="profile-doing", markup=False)
        yield ElidedStatic("", id="profile-summary")
        table = CostTable()
        yield SearchBar("parts", table)
        yield table
        yield PartPane()
        yield AdviceList()
        yield RunList()

    def on_mount(self) -> None:
        self.workspace.edited.subscribe(self, self.invalidate)
        self.workspace.edited.subscribe(self, self._handle_edit)
        self.workspace.inspected.subscribe(self, self.invalidate)

    def is_applicable(self, action: str) -> bool:
        """Return False for modes, extra passes and advice that a stack does not have."""
        if action == "advise":
            return self.workspace.stack is None
        return self._has_modes or action not in ("mode", "extra")

    @property
    def default_focus(self) -> Widget:
        table = self.query_one(CostTable)
        return table if table.display else self.query_one("#profile-run")

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.height < LOW, "-low")
        self.set_class(event.size.height >= HIGH, "-high")
        self.set_class(event.size.width < _NARROW_WIDTH, "-narrow-bar")
        self.set_class(event.size.width < _TINY_WIDTH, "-tiny-bar")
        self._show_extras()
        self._show_summary()
        self._show_selected_part()

    def action_measure(self) -> None:
        if self._can_start():
            workspace = self.workspace
            request = MeasurePipeline(
                workspace.draft.pipeline(),
                modes_for(self.selection),
                *self.query_one(ProfileBar).settings,
                extras=frozenset(self.extras if self._has_modes else ()),
                allow_code=workspace.allow_code,
                samples=workspace.samples,
            )
            self.measurement.start(request, workspace.draft)

    def action_advise(self) -> None:
        stack = self.workspace.stack
        if stack is not None:
            self.notify(f"no changes to try: {stack.reason}", severity="warning", timeout=5)
        elif self._has_current_advice and not holds_focus(self.query_one(AdviceList)):
            self.query_one(AdviceList).focus()
        elif self.measurement.is_advising:
            self.notify("changes are being tried; press c to cancel", timeout=2)
        elif self._can_start():
            self._start_advising()

    def _start_advising(self) -> None:
        workspace = self.workspace
        request = FindAdvice(
            workspace.draft.pipeline(),
            # The mode that the table shows: planned, if it is selected.
            modes_for(self.selection)[-1:],
            *self.query_one(ProfileBar).settings,
            allow_code=workspace.allow_code,
        )
        self.measurement.start(request, workspace.draft)

    @property
    def _has_current_advice(self) -> bool:
        advised = self.measurement.advised
        return advised is not None and advised.draft == self.workspace.draft

    @on(AdviceList.Chosen)
    def _apply_change(self, event: AdviceList.Chosen) -> None:
        event.stop()
        change = event.change
        if not self._has_current_advice:
            self.notify("the chain has changed; press v to try again", timeout=4)
        elif change.pipeline is None:
            self.notify(
                "this is not an edit of the chain; make it where the chain is run", timeout=4
            )
        else:
            draft = replace_chain(self.workspace.draft, change.pipeline)
            self.workspace.edit(f"advice: {change.change}", draft)
            text = f"{change.change}; u undoes this, r measures"
            self.notify(text, title="Advice", timeout=5, markup=False)

    def _can_start(self) -> bool:
        if self.workspace.draft.env is None:
            self.notify("choose an env first: press e", timeout=2)
        elif self.measurement.is_running and not self.measurement.is_advising:
            self.notify("a measurement is running; press c to cancel", timeout=2)
        else:
            return True
        return False

    def action_cancel(self) -> None:
        self.measurement.cancel()

    def action_sort(self) -> None:
        self.query_one(CostTable).sort_next()

    def action_invert(self) -> None:
        self.query_one(CostTable).invert()

    @property
    def _has_modes(self) -> bool:
        """True if the chain runs in the modes of tdx, where extra passes can measure it."""
        stack = self.workspace.stack
        return stack is None or stack.runs_as_chain

    def _refuse_without_modes(self) -> bool:
        """Show why there are no modes; return True if so."""
        stack = self.workspace.stack
        if stack is None or self._has_modes:
            return False
        text = f"modes and extra passes need a chain of tdx; this is a {stack.kind} env"
        self.notify(text, severity="warning", timeout=5)
        return True

    def action_mode(self) -> None:
        if self._refuse_without_modes():
            return
        self.selection = MODE_SELECTIONS[
            (MODE_SELECTIONS.index(self.selection) + 1) % len(MODE_SELECTIONS)
        ]
        title = SELECTION_TITLES.get(self.selection, self.selection)
        self.query_one("#profile-mode", Button).label = title
        self._show_run()

    def action_extra(self, name: Extra) -> None:
        if self._refuse_without_modes():
            return
        self.extras ^= {name}
        is_on = name in self.extras
        self._show_extras()
        self.notify(f"r also measures {_EXTRA_TEXT[name]}" if is_on else f"{name} off", timeout=3)

    def _show_extras(self) -> None:
        self.query_one(ProfileBar).show_extras(self.extras, self.has_class("-tiny-bar"))

    def action_settings(self) -> None:
        self.query_one("#profile-steps").focus()

    def action_base(self) -> None:
        shown = self.measurement.shown
        self.base = None if shown is self.base else shown
        text = f"comparing all runs with #{self.base.number}" if self.base else ""
        self.notify(text or "comparing each run with the previous one", timeout=3)
        self._show_run()

    def action_run(self, by: int) -> None:
        runs = self.measurement.history.runs
        if self.measurement.shown in runs:
            at = runs.index(self.measurement.shown) + by
            self._choose(runs[max(0, min(at, len(runs) - 1))])

    def start_search(self) -> bool:
        if self.query_one(CostTable).display:
            return super().start_search()
        self.notify("no measurement yet; press r", timeout=2)
        return True

    @on(Button.Pressed)
    def _run_button_command(self, event: Button.Pressed) -> None:
        event.stop()
        name = (event.button.id or "").removeprefix("profile-").removesuffix("-too")
        if name == "run":
            (self.action_cancel if self.measurement.is_running else self.action_measure)()
        elif name == "mode":
            self.action_mode()
        elif name == "advice":
            self.action_advise()
        elif name in EXTRAS:
            self.action_extra(name)

    @on(Input.Submitted, "ProfileBar Input")
    def _measure_with_settings(self, event: Input.Submitted) -> None:
        event.stop()
        self.focus_default()
        self.action_measure()

    @on(RunList.Chosen)
    def _run_chosen(self, event: RunList.Chosen) -> None:
        event.stop()
        runs = self.measurement.history.runs
        run = next((each for each in runs if each.number == event.number), None)
        if run is not None and run is not self.measurement.shown:
            self._choose(run)

    @on(CostTable.CursorMoved)
    def _handle_cursor_move(self, event: CostTable.CursorMoved) -> None:
        event.stop()
        self._show_selected_part()

    def _choose(self, run: ProfileRun) -> None:
        self.measurement.shown = run
        self._show_run()

    def update(self) -> None:
        """Show the progress or the current run."""
        measurement, progress = self.measurement, self.measurement.progress
        self.query_one(ProfileBar).show_running(measurement.is_running)
        self.query_one(ProfileBar).show_stack(self.workspace.stack)
        self.refresh_bindings()
        self.query_one("#profile-progress").display = measurement.is_running
        if measurement.is_running:
            doing = "starting …" if progress is None else f"{progress.doing} …"
            self.query_one("#profile-doing", Static).update(
                "cancelling …" if measurement.is_ending else doing
            )
            of = progress.of if progress is not None else 1
            done = progress.done if progress is not None else 0
            self.query_one(ProgressBar).update(total=max(of, 1), progress=done)
        if not measurement.is_running or measurement.is_advising:
            self._show_run()

    @property
    def other(self) -> ProfileRun | None:
        """The run to compare with."""
        shown = self.measurement.shown
        if shown is None or (mode := displayed_mode(shown, self.selection)) is None:
            return None
        if self.base is not None and self.base is not shown:
            return self.base
        return self.measurement.history.previous(shown, mode.mode)

    def _report_result(self, found: ProfileRun | DraftAdvice) -> None:
        """Report a result, in a notice if another tab is in front; try changes after a run."""
        if isinstance(found, DraftAdvice):
            text, ended = f"advice: {advice_text(found.found)}", found.found.error
        else:
            text, ended = run_text(found, self.selection, self.other), found.ended
        is_wrong = ended is not None and ended != CANCELLED
        severity: Literal["information", "error"] = "error" if is_wrong else "information"
        # Advice follows each measurement, whose notice is enough.
        if self.is_in_front or isinstance(found, DraftAdvice):
            self.workspace.journal.record(text, source="profile", severity=severity)
        else:
            self.notify(text, title="Profile", severity=severity, timeout=6)
        if (
            isinstance(found, ProfileRun)
            and ended is None
            and self.workspace.stack is None
            and found.draft == self.workspace.draft
            and not self._has_current_advice
        ):
            self._start_advising()

    def _show_run(self) -> None:
        run, table = self.measurement.shown, self.query_one(CostTable)
        drawn = (run, self.selection, self.other, len(self.measurement.history.runs))
        if drawn == self._drawn:
            self._show_summary()
            return
        self._drawn = drawn
        sheet = CostSheet() if run is None else build_sheet(run, self.selection, self.other)
        is_lost = holds_focus(table) and not sheet.lines
        table.display = bool(sheet.lines)
        if is_lost:
            self.focus_default()
        table.show_sheet(sheet)
        self._show_summary()
        self._show_stage_costs()
        self.query_one(RunList).show_runs(self.measurement.history, self.selection, run, self.base)

    def _show_summary(self) -> None:
        run, line = self.measurement.shown, self.query_one("#profile-summary", Static)
        if run is None:
            line.update(welcome_text(self.workspace.stack))
            line.add_class("-welcome")
        else:
            line.remove_class("-welcome")
            draft = self.workspace.draft
            low, tiny = self.has_class("-low"), self.has_class("-tiny-bar")
            summary = run_summary(run, self.selection, self.other, draft, low=low, tiny=tiny)
            line.update(summary)
        advice = self.query_one(AdviceList)
        advice.display = run is not None or self.measurement.advised is not None
        advice.display = advice.display and self.workspace.stack is None
        is_advising = self.measurement.is_advising
        advice.show(self.measurement.advised, self.workspace.draft, self.size.width, is_advising)

    def _handle_edit(self, draft: Draft) -> None:
        """Stop trying changes of the chain before an edit, and drop its costs."""
        self.measurement.stop_advising(unless=draft)
        self._show_stage_costs()

    def _show_stage_costs(self) -> None:
        """Show the cost of each part in the chain, while the shown run is one of this chain."""
        run, costs = self.measurement.shown, {}
        mode = None if run is None else displayed_mode(run, self.selection)
        if run is not None and mode is not None and run.draft == self.workspace.draft:
            unit = self.query_one(CostTable).sheet.unit
            for row in mode.rows:
                time = f"{format_time(row.step_us, unit)} {unit}"
                if row.work == "env":
                    costs[ENV] = time
                elif row.work == "stage":
                    # A bracket joins the stages of a fused group.
                    last = max(row.index, row.upto)
                    for index in range(row.index, last):
                        costs[row.number(index)] = "┐" if index == row.index else "│"
                    costs[row.number(last)] = f"{time} ┘" if last > row.index else time
        self.workspace.show_costs(costs)

    def _show_selected_part(self) -> None:
        table = self.query_one(CostTable)
        line = table.selected_line if table.display else None
        self.query_one(PartPane).show(None if line is None else line.row, self.size)
