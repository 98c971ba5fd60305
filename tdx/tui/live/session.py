"""The live session as seen from the tab: its lifecycle, its settings and its history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from textual.timer import Timer
from textual.widget import Widget

from tdx.inspection.overview import Problem
from tdx.pipeline.editing import Draft
from tdx.pipeline.model import Pipeline
from tdx.tui.backend.messages import with_app_hint
from tdx.tui.live.connection import ANSWER_TIMEOUT, HistoryBrowser, LiveConnection
from tdx.tui.live.messages import (
    RATES,
    Command,
    FocusEnv,
    LateTrace,
    LiveState,
    Pause,
    Reset,
    Run,
    RunSession,
    SessionInfo,
    SetActionSource,
    SetPanes,
    SetRate,
)
from tdx.tui.live.panes import LivePanes
from tdx.tui.workspace import Workspace

_RESTART_DELAY = 0.4
"""Seconds without an edit after which the session restarts."""
_DEFAULT_RATE = 20
_OVERDUE_INTERVAL = 0.5
_RESTART_HINT = "press Space or r to restart"
_HISTORY_HINT = f"← → browse the history · {_RESTART_HINT}"


class SessionController:
    """Starts sessions, sends commands to them, and keeps the history of one that has ended.

    Args:
        owner: Provides timers and tells whether the tab is visible.
        workspace: State of the app.
        panes: Show what the worker sends.
        on_layout: Called when other panes may have room now, and when a setting has changed.

    Attributes:
        state: State of the session. ``None``: it has not sent any yet.
        info: Facts about the session that do not change.
        rate: Steps per second. ``None``: as many as possible.
        action_source: Where actions come from.
        stop_condition: Condition that ends a run. ``None``: no condition.
        history: Chooses the trace that is shown.
    """

    def __init__(
        self, owner: Widget, workspace: Workspace, panes: LivePanes, on_layout: Callable[[], None]
    ) -> None:
        self._owner, self._workspace = owner, workspace
        self._panes, self._on_layout = panes, on_layout
        self.connection = LiveConnection(workspace, self._receive, self._handle_end)
        self.state: LiveState | None = None
        self.info: SessionInfo | None = None
        self.rate: float | None = _DEFAULT_RATE
        self.action_source = "random"
        self.stop_condition: str | None = None
        self.history = HistoryBrowser(self, owner, panes)
        self._draft: Draft | None = None
        self._pipeline: Pipeline | None = None
        self._has_failed = False
        self._views = SetPanes()
        self._message = ""
        self._repeats = False
        self._restart_timer: Timer | None = None
        self._is_watching = False

    @property
    def num_envs(self) -> int:
        """Number of envs in the batch."""
        return 1 if self.info is None else self.info.num_envs

    @property
    def is_running(self) -> bool:
        """True if the env is stepped continuously."""
        return self.state is not None and self.state.status == "running"

    # Lifecycle

    def start(
        self, *, is_running: bool = False, repeat: bool = False, until: int | None = None
    ) -> None:
        """Start a session with the chain of the draft.

        Args:
            is_running: Step continuously from the start.
            repeat: Repeat the resets and actions of the session before it.
            until: Trace of that session to stop at. ``None``: its end.
        """
        draft = self._workspace.draft
        if draft.env is None:
            self.show_message("choose an env first: press e")
            return
        self._draft, self._pipeline = draft, draft.pipeline()
        self._has_failed = False
        self._report(None)
        self.state = None
        self.history.clear()
        self._watch()
        self._panes.header.show_message("starting worker …")
        settings = (self._workspace.allow_code, is_running, self.rate, self.action_source)
        self._repeats = False
        self.connection.start(RunSession(self._pipeline, *settings, draft.positions, repeat, until))
        self.connection.send(self._views)

    def _watch(self) -> None:
        """Watch the worker and the chain, from the first session on."""
        if not self._is_watching:
            self._is_watching = True
            self._owner.set_interval(_OVERDUE_INTERVAL, self.show_overdue)
            self._workspace.edited.subscribe(self._owner, self.restart_after_edit)
            self._workspace.code_reloaded.subscribe(self._owner, self._restart_with_new_code)

    def start_if_new(self) -> None:
        """Start the first session, if there is an env and no session has failed."""
        is_new = self.state is None and not self._has_failed
        if is_new and not self.connection.is_open and self._workspace.draft.env is not None:
            self.start(repeat=self._repeats)

    def branch(self) -> None:
        """Start a session that repeats this one up to the shown trace."""
        state = self.state
        if state is None or not state.steps or not self.connection.is_open:
            self.show_message("nothing to branch from: make a step first")
        else:
            self.start(repeat=True, until=self.history.current(state))

    def restart_after_edit(self, draft: Draft) -> None:
        """Restart when the chain has changed and no further edit follows for a moment."""
        is_same = draft.env is not None and draft.pipeline() == self._pipeline
        if is_same:
            return
        self._report(None)
        is_running = self.is_running
        if self._restart_timer is not None:
            self._restart_timer.stop()
        self._restart_timer = self._owner.set_timer(
            _RESTART_DELAY, lambda: self._restart(is_running)
        )

    def _restart_with_new_code(self, draft: Draft) -> None:
        self.connection.kill()
        self._restart(self.is_running, "restarted with the new code")

    def kill(self) -> None:
        """Kill the worker; the traces in the cache remain."""
        self.connection.kill()
        state = self.state
        if state is None:
            activity = self.connection.activity()
            where = "" if activity is None else f" in {activity.text}"
            self._panes.header.show_message(f"worker killed{where} · {_RESTART_HINT}")
        else:
            where = self._mark_ended(state)
            self._panes.header.show_message(f"worker killed{where} · {_HISTORY_HINT}")
        self._on_layout()

    def show_overdue(self) -> None:
        """Show which call takes long, or for how long the worker has not answered."""
        overdue, activity = self.connection.overdue(), self.connection.activity()
        if not self.connection.is_open or not self._owner.is_on_screen:
            return
        if activity is not None and activity.seconds > ANSWER_TIMEOUT:
            what = f"{activity.text}: {activity.seconds:.0f} s"
        elif overdue > ANSWER_TIMEOUT:
            what = "starting worker" if self.state is None else "no answer from the worker"
            what = f"{what}: {overdue:.0f} s"
        else:
            return
        browse = " · ← → browse the history" if len(self.history.cache) > 1 else ""
        self._panes.header.show_message(f"{what} · Ctrl+K kills the worker{browse}")

    def _restart(self, is_running: bool, message: str = "restarted after an edit") -> None:
        self.connection.end()
        self.state, self._has_failed = None, False
        self._message = message
        self._repeats = True
        if self._owner.is_on_screen or not self._workspace.status.problems:
            self.start(is_running=is_running, repeat=True)

    def _handle_end(self, problem: Problem, details: str) -> None:
        """Show why a session could not start, or why its worker died."""
        self._has_failed = True
        positions = () if self._draft is None else self._draft.positions
        stage = problem.where.stage
        if stage is not None and stage < len(positions):
            problem = replace(problem, where=replace(problem.where, stage=positions[stage]))
        problem = with_app_hint(replace(problem, details=problem.details or details))
        self._report(problem)
        state = self.state
        if state is not None:
            message = f"{problem.message}{self._mark_ended(state)}"
            hint = f"{_HISTORY_HINT} · F12 shows the output"
            problem = replace(problem, message=message, hint=hint)
        self._panes.header.show_problem(problem)
        self._on_layout()

    def _mark_ended(self, state: LiveState) -> str:
        """Keep the last state of a session whose worker is gone; return the call it was in."""
        self.state = replace(state, status="ended", follows_latest=False)
        self.history.requested = None
        self._panes.timeline.show(self.state)
        activity = self.connection.activity()
        if activity is None:
            return ""
        lost = activity.steps - state.steps
        suffix = f"; the values of {lost:,} completed steps are lost" if lost > 0 else ""
        return f" in {activity.text}{suffix}"

    def _report(self, problem: Problem | None) -> None:
        """Report a problem to the rest of the app. ``None``: the session has no problem."""
        if problem is None or self._draft is None:
            self._workspace.report("live", {})
            return
        # The wrappers of another library are known after the first inspection.
        draft = self._draft if self._workspace.stack is None else self._workspace.draft
        place, stages = problem.where.stage, draft.stages
        number = None if place is None or place >= len(stages) else stages[place].number
        self._workspace.report("live", {number: problem})

    # Messages from the worker

    def _receive(self, topic: str, value: Any) -> None:
        if not self._owner.is_mounted:
            return
        if topic == "state":
            self._receive_state(value)
        elif topic == "info":
            self.info = value
            self._panes.manual.set_fields(value.fields)
            if self.action_source == "manual":
                self.send_action_source()
            self._on_layout()
        elif topic == "trace":
            self.history.cache.add(value)
            self._panes.show_trace(value)
        elif topic == "images":
            self.history.cache.add_images(value)
            if self._panes.show_images(value):
                self._on_layout()
        elif isinstance(value, LateTrace):
            self.history.cache.add_late(value)
        elif topic == "cells":
            self._panes.show_env_cells(value, None if self.state is None else self.state.row)
        elif topic == "episodes":
            self._panes.episodes.show_episodes(value, is_batched=self.num_envs > 1)
        else:
            self._panes.plots.show(value)

    def _receive_state(self, state: LiveState) -> None:
        was_running, self.state = self.is_running, state
        if state.shown == self.history.requested or state.follows_latest:
            self.history.requested = None
        self._panes.show_state(state, self.num_envs)
        self.show_header()
        self._report(state.problem)
        if state.problem is not None:
            self._panes.header.show_problem(state.problem)
        else:
            self._panes.header.show_message(state.message or self._message)
        if self.is_running and not was_running:
            self._message = ""

    def show_header(self) -> None:
        """Update the header."""
        self._panes.header.show_settings(
            is_running=self.is_running,
            stop_condition=self.stop_condition,
            rate=self.rate,
            action_source=self.action_source,
        )
        self._panes.show_header(self.state, self.info)

    def show_message(self, text: str) -> None:
        """Show a message until a run starts or the worker sends another one."""
        self._message = text
        self._panes.header.show_message(text)

    # Commands to the worker

    def send(self, command: Command) -> None:
        """Send a command; start a session first if none is open."""
        if not self.connection.is_open:
            self.start()
        self.connection.send(command)

    def toggle_run(self) -> None:
        """Pause if running, else run until the stop condition holds."""
        if self.is_running and self.connection.is_open:
            self.connection.send(Pause())
        else:
            self.run(until=self.stop_condition)

    def run(self, steps: int | None = None, until: str | None = None) -> None:
        """Step the env.

        Args:
            steps: Number of steps. ``None``: unlimited.
            until: Condition that ends the run. ``None``: no condition.
        """
        self.history.requested = None
        self.send(Run(steps, until))
        if self.state is None and self.connection.is_open:
            self._panes.header.show_message("starting worker … · the run is queued")

    def reset(self) -> None:
        """Reset the env; start a session if none is open."""
        self.history.requested = None
        if self.connection.is_open:
            self.connection.send(Reset())
        else:
            self.start()

    def run_until(self, condition: str | None) -> None:
        """Set the stop condition and run. ``None``: remove the condition, do not run."""
        self.stop_condition = condition
        self._on_layout()
        if condition is not None:
            self.send(Run(until=condition))

    def change_rate(self, by: int) -> None:
        """Use the next larger or smaller rate."""
        at = RATES.index(self.rate) if self.rate in RATES else RATES.index(_DEFAULT_RATE)
        self.rate = RATES[max(0, min(at + by, len(RATES) - 1))]
        self.connection.send(SetRate(self.rate))
        self._on_layout()

    def set_action_source(self, source: str) -> None:
        """Take actions from another source from now on."""
        self.action_source = source
        self.send_action_source()
        self._on_layout()

    def send_action_source(self) -> None:
        """Send the action source, and the action if it is set by hand."""
        numbers = self._panes.manual.action if self.action_source == "manual" else ()
        self.connection.send(SetActionSource(self.action_source, numbers))

    def focus_env(self, by: int) -> None:
        """Focus the next env of a batch; before the first one comes the whole batch."""
        if self.state is None or self.num_envs == 1:
            return
        row = -1 if self.state.row is None else self.state.row
        to = (row + 1 + by) % (self.num_envs + 1) - 1
        # The next key may come before the worker's answer.
        self.state = replace(self.state, row=None if to < 0 else to)
        self.connection.send(FocusEnv(self.state.row))

    def set_views(self, views: SetPanes) -> None:
        """Tell the worker what the panes have room for, if that has changed."""
        if views != self._views:
            self._views = views
            self.connection.send(views)
