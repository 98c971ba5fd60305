"""The profile tab: measure in the background, look at the rows, see what an edit saved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widget import Widget
from textual.widgets import Button, Input, ProgressBar, Static

from tdx.tui.profile.advising import Advising
from tdx.tui.profile.asking import Settings, advise_request, measure_request
from tdx.tui.profile.cost_table import CostTable
from tdx.tui.profile.keys import HELP, PROFILE_KEYS
from tdx.tui.profile.lines import SHOWN, Shown, lines_of, mode_of
from tdx.tui.profile.measuring import CANCELLED, Advised, Measuring
from tdx.tui.profile.part_pane import HIGH, LOW, PartPane
from tdx.tui.profile.profile_bar import ProfileBar
from tdx.tui.profile.requests import EXTRAS, Extra
from tdx.tui.profile.run_list import RunList
from tdx.tui.profile.runs import Run
from tdx.tui.profile.texts import WELCOME, run_text, summary
from tdx.tui.searching import SearchedTab, SearchLine
from tdx.tui.workspace import Workspace

_NARROW = 76
"""Columns below which the bar takes two lines."""
_SAID = {
    "memory": "what each part allocates",
    "operators": "torch's operators in each part",
    "marginal": "the chain without each of its stages",
}


class ProfileTab(SearchedTab):
    """Measures the chain and keeps the runs of this session.

    Args:
        workspace: the state of the app.
    """

    BINDINGS = [*PROFILE_KEYS]
    HELP = HELP

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self.measuring = Measuring(self, workspace, self.changed, self._found)
        self.advising = Advising(self, workspace, self.measuring, self._try_advice)
        self.wanted: Shown = SHOWN[0]
        self.extras: set[Extra] = set()
        self.base: Run | None = None
        self._drawn: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        yield ProfileBar()
        with Horizontal(id="profile-progress"):
            yield ProgressBar(show_eta=False, id="profile-meter")
            yield Static("", id="profile-doing", markup=False)
        yield Static("", id="profile-summary")
        yield SearchLine("the parts")
        yield CostTable()
        yield PartPane()
        yield RunList()

    def on_mount(self) -> None:
        self.workspace.edited.subscribe(self, lambda _: self.changed())

    @property
    def home(self) -> Widget:
        table = self.query_one(CostTable)
        return table if table.display else self.query_one("#profile-run")

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.height < LOW, "-low")
        self.set_class(event.size.height >= HIGH, "-high")
        self.set_class(event.size.width < _NARROW, "-narrow-bar")
        self._say()
        self._point()

    # ------------------------------------------------------------------ commands

    def action_measure(self) -> None:
        if self._may_begin():
            asked = measure_request(self.workspace, self._settings, self.wanted, self.extras)
            self.measuring.begin(asked, self.workspace.draft)

    def action_advise(self) -> None:
        if self.advising.is_current and not self.measuring.runs:
            self.advising.show()
        else:
            self._try_advice()

    def _try_advice(self) -> None:
        if self._may_begin():
            asked = advise_request(self.workspace, self._settings, self.wanted)
            self.measuring.begin(asked, self.workspace.draft)

    @property
    def _settings(self) -> Settings:
        return self.query_one(ProfileBar).settings

    def _may_begin(self) -> bool:
        if self.workspace.draft.env is None:
            self.notify("choose an env first", timeout=2)
        elif self.measuring.runs:
            self.notify("something is being measured already; c cancels", timeout=2)
        else:
            return True
        return False

    def action_cancel(self) -> None:
        self.measuring.cancel()

    def action_sort(self) -> None:
        self.query_one(CostTable).sort_next()

    def action_invert(self) -> None:
        self.query_one(CostTable).invert()

    def action_mode(self) -> None:
        self.wanted = SHOWN[(SHOWN.index(self.wanted) + 1) % len(SHOWN)]
        self.query_one(ProfileBar).show_mode(self.wanted)
        self._show_run()

    def action_extra(self, name: Extra) -> None:
        self.extras ^= {name}
        is_on = name in self.extras
        self.query_one(ProfileBar).show_extra(name, is_on)
        self.notify(f"r measures {_SAID[name]} too" if is_on else f"without {name}", timeout=3)

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

    # ------------------------------------------------------------------ search

    def begin_search(self) -> bool:
        if self.query_one(CostTable).display:
            return super().begin_search()
        self.notify("nothing is measured yet; r measures", timeout=2)
        return True

    def searched(self) -> Sequence[str]:
        return [
            f"{each.row.label} {each.row.lane}" for each in self.query_one(CostTable).lines_shown
        ]

    @property
    def line_at(self) -> int:
        return self.query_one(CostTable).cursor_row

    def go_to_line(self, line: int) -> None:
        self.query_one(CostTable).move_cursor(row=line, scroll=True)

    # ------------------------------------------------------------------ mouse and fields

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        name = (event.button.id or "").removeprefix("profile-").removesuffix("-too")
        if name == "run":
            (self.action_cancel if self.measuring.runs else self.action_measure)()
        elif name == "mode":
            self.action_mode()
        elif name == "advice":
            self.action_advise()
        elif name in EXTRAS:
            self.action_extra(name)

    @on(Input.Submitted, "ProfileBar Input")
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.query_one(CostTable).focus()
        self.action_measure()

    @on(RunList.Chosen)
    def _run_chosen(self, event: RunList.Chosen) -> None:
        event.stop()
        runs = self.measuring.history.runs
        run = next((each for each in runs if each.number == event.number), None)
        if run is not None and run is not self.measuring.shown:
            self._choose(run)

    @on(CostTable.Pointed)
    def _pointed(self, event: CostTable.Pointed) -> None:
        event.stop()
        self._point()

    def _choose(self, run: Run) -> None:
        self.measuring.shown = run
        self._show_run()

    # ------------------------------------------------------------------ what is shown

    def update(self) -> None:
        """Show the progress, and the run that is there now."""
        measuring, progress = self.measuring, self.measuring.progress
        self.query_one(ProfileBar).show_running(measuring.runs)
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

    def _found(self, found: Run | Advised) -> None:
        """Show advice at once, and say what was found to someone who looks elsewhere."""
        if isinstance(found, Advised):
            if self.is_seen and self.screen.is_current:
                self.advising.show()
                return
            text, ended = self.advising.told, found.found.error
        else:
            text, ended = run_text(found, self.wanted, self.other), found.ended
        is_wrong = ended is not None and ended != CANCELLED
        severity: Literal["information", "error"] = "error" if is_wrong else "information"
        if self.is_seen:
            self.workspace.journal.record(text, source="profile", severity=severity)
        else:
            self.notify(text, title="Profile", severity=severity, timeout=6)

    def _show_run(self) -> None:
        run, table = self.measuring.shown, self.query_one(CostTable)
        drawn = (run, self.wanted, self.other, len(self.measuring.history.runs))
        if drawn == self._drawn:
            self._say()
            return
        self._drawn = drawn
        lines = [] if run is None else lines_of(run, self.wanted, self.other)
        is_lost = table.has_focus and not lines
        table.display = bool(lines)
        if is_lost:
            self.focus_home()
        table.show_lines(lines)
        self._say()
        self.query_one(RunList).show_runs(self.measuring.history, self.wanted, run, self.base)

    def _say(self) -> None:
        run, said = self.measuring.shown, self.query_one("#profile-summary", Static)
        if run is None:
            said.update(WELCOME)
            said.add_class("-welcome")
        else:
            said.remove_class("-welcome")
            low = self.has_class("-low")
            said.update(summary(run, self.wanted, self.other, self.workspace.draft, low))

    def _point(self) -> None:
        table = self.query_one(CostTable)
        self.query_one(PartPane).show(table.pointed if table.display else None, self.size)
