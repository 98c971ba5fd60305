"""The life of a session: it begins, is edited away, hangs, ends, and is looked back at."""

from __future__ import annotations

from dataclasses import replace

from textual.timer import Timer

from tdx.inspection.overview import Problem
from tdx.pipeline.editing import Draft
from tdx.pipeline.model import Pipeline
from tdx.tui.live.actions import LiveActions
from tdx.tui.live.curve_pane import CurvePane
from tdx.tui.live.link import PATIENCE
from tdx.tui.live.looking_back import Seen
from tdx.tui.live.picture_pane import PicturePane
from tdx.tui.live.requests import LiveState, Panes, Play
from tdx.tui.live.timeline import Timeline
from tdx.tui.live.top import LiveTop
from tdx.tui.problems import for_app

_DEBOUNCE = 0.4
_ANEW = "Space or r begin anew"
_STAYS = f"← → go through what was seen · {_ANEW}"


class SessionTab(LiveActions):
    """Begins sessions, and keeps what was seen of one whose worker is gone."""

    top: LiveTop
    timeline: Timeline
    curve_pane: CurvePane
    pictures: PicturePane
    _pipeline: Pipeline | None
    _draft: Draft | None
    _has_failed: bool
    _told: Panes
    _seen: Seen
    _said: str
    _debounce: Timer | None

    def show_top(self) -> None:
        """Say where the session stands."""
        raise NotImplementedError

    def tell_panes(self) -> None:
        """Tell the worker what there is room for."""
        raise NotImplementedError

    def begin(self, *, runs: bool = False) -> None:
        """Begin a session with the chain as it is."""
        if self.workspace.draft.env is None:
            self.say("choose an env first: e")
            return
        self._draft = draft = self.workspace.draft
        self._pipeline = draft.pipeline()
        self._has_failed = False
        self.report(None)
        self._told = Panes()
        self.state = self._wanted = None
        self._seen.forget()
        self.top.say("starting …")
        settings = (self.workspace.allow_code, runs, self.rate, self.source)
        self.link.begin(Play(self._pipeline, *settings, draft.positions))
        self.tell_panes()

    def report(self, problem: Problem | None) -> None:
        """Tell the rest of the app what is wrong in the session; ``None``: nothing."""
        if problem is None or self._draft is None:
            self.workspace.report("live", {})
            return
        place, stages = problem.where.stage, self._draft.stages
        number = None if place is None or place >= len(stages) else stages[place].number
        self.workspace.report("live", {number: problem})

    def edited(self, draft: Draft) -> None:
        """The chain is another: begin anew, once the edits have come to rest."""
        if self._pipeline is None or (draft.env is not None and draft.pipeline() == self._pipeline):
            return
        self.report(None)
        runs = self.state is not None and self.state.doing == "running"
        if self._debounce is not None:
            self._debounce.stop()
        self._debounce = self.set_timer(_DEBOUNCE, lambda: self._restart(runs))

    def _restart(self, runs: bool) -> None:
        self.link.end()
        self.state, self._has_failed = None, False
        self._said = "the chain was edited: it began anew"
        if self.is_on_screen:
            self.begin(runs=runs)

    def ended(self, problem: Problem, details: str) -> None:
        """The session could not begin, or its worker died."""
        self._has_failed = True
        positions = () if self._draft is None else self._draft.positions
        stage = problem.where.stage
        if stage is not None and stage < len(positions):
            problem = replace(problem, where=replace(problem.where, stage=positions[stage]))
        problem = for_app(replace(problem, details=problem.details or details))
        self.report(problem)
        state = self.state
        if state is not None:
            message = f"{problem.message}{self._left(state)}"
            hint = f"{_STAYS} · F12 shows its output"
            problem = replace(problem, message=message, hint=hint)
        self.top.complain(problem)
        self.show_top()

    def went_away(self, what: str) -> None:
        """Say that the worker is gone; what was seen stays."""
        state = self.state
        if state is None:
            self.top.say(f"{what} · {_ANEW}")
        else:
            self.top.say(f"{what}{self._left(state)} · {_STAYS}")
        self.show_top()

    def _left(self, state: LiveState) -> str:
        """Keep what is known of a session whose worker is gone; returns where it was."""
        self.state, self._wanted = replace(state, doing="ended", follows=False), None
        self.timeline.show(self.state)
        return f" in step {state.steps}" if state.doing == "running" else ""

    def look_back(self, index: int) -> None:
        """Show a trace that was seen, without the worker."""
        state = self.state
        found = None if state is None else self._seen.near(index, state.shown)
        if state is not None and found is not None:
            view, pictures = found
            self._wanted = None
            self.state = state = replace(state, shown=view.index, follows=False)
            self.values.show_view(view)
            self.pictures.show(pictures)
            self.timeline.show(state)
            self.curve_pane.set_cursor(view.index)

    def look_after(self) -> None:
        """Say it where the worker does not answer."""
        overdue = self.link.overdue()
        if overdue > PATIENCE and self.is_on_screen:
            what = "the worker starts" if self.state is None else f"step {self.state.steps} runs"
            look = " · ← → go through what was seen" if len(self._seen) > 1 else ""
            self.top.say(f"{what} for {overdue:.0f} s · Ctrl+K ends it{look}")
