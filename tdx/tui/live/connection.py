"""App side of the Live tab: starts sessions, sends commands, receives views and keeps them."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from textual.timer import Timer
from textual.widget import Widget

from tdx.inspection.live.views import ImageView, TraceView
from tdx.inspection.overview import Problem
from tdx.pipeline.draft import Draft
from tdx.pipeline.model import Pipeline
from tdx.tui.backend.activity import Activity
from tdx.tui.backend.client import RequestError, SupersededError, Ticket
from tdx.tui.backend.messages import with_app_hint
from tdx.tui.live.messages import (
    Command,
    CommandEnvelope,
    FocusEnv,
    LateTrace,
    LiveState,
    Reset,
    RunSteps,
    SessionInfo,
    SetActionSource,
    SetPanes,
    ShowTrace,
)
from tdx.tui.live.panes import LivePanes
from tdx.tui.live.requests import RunSession
from tdx.tui.workspace import Workspace

WORKER = "live"
ANSWER_TIMEOUT = 1.0
"""Seconds after which an answer is overdue."""
MAX_CACHED_TRACES = 150
_RESTART_DELAY = 0.4
"""Seconds without an edit after which the session restarts."""
DEFAULT_RATE = 20
_OVERDUE_INTERVAL = 0.5
_RESTART_HINT = "press Space or r to restart"
_HISTORY_HINT = f"← → browse the history · {_RESTART_HINT}"


class TraceCache:
    """The traces that were displayed last, with their images."""

    def __init__(self, max_size: int = MAX_CACHED_TRACES) -> None:
        self._max_size = max_size
        self._views: OrderedDict[int, TraceView] = OrderedDict()
        self._images: dict[int, Sequence[ImageView]] = {}
        self._newest = -1

    def clear(self) -> None:
        """Remove all traces."""
        self._views.clear()
        self._images.clear()

    def add(self, view: TraceView) -> None:
        """Add a trace; remove the least recently displayed one if there are too many."""
        self._newest = view.index
        self._views[view.index] = view
        self._views.move_to_end(view.index)
        if len(self._views) > self._max_size:
            removed, _ = self._views.popitem(last=False)
            self._images.pop(removed, None)

    def add_images(self, images: Sequence[ImageView]) -> None:
        """Add the images of the trace that was added last."""
        if self._newest in self._views:
            self._images[self._newest] = images

    def add_late(self, late: LateTrace) -> None:
        """Add a trace that was not displayed, with its images."""
        newest = self._newest
        self.add(late.view)
        self.add_images(late.images)
        self._newest = newest

    def __len__(self) -> int:
        return len(self._views)

    def nearest(self, index: int, start: int) -> tuple[TraceView, Sequence[ImageView]] | None:
        """Return the first cached trace at or beyond an index, in the direction of movement."""
        if not self._views:
            return None
        if index < start:
            before = (number for number in self._views if number <= index)
            at = max(before, default=min(self._views))
        else:
            after = (number for number in self._views if number >= index)
            at = min(after, default=max(self._views))
        return self._views[at], self._images.get(at, ())


Target = Literal["trace", "episode", "problem", "difference", "first", "latest"]


class LiveConnection:
    """Runs one session at a time, each as a request without an end; its history outlives it.

    ``on_layout`` is called when other panes may have room now, and when a setting has changed.
    """

    def __init__(
        self, owner: Widget, workspace: Workspace, panes: LivePanes, on_layout: Callable[[], None]
    ) -> None:
        self._owner, self._workspace = owner, workspace
        self._panes, self._on_layout = panes, on_layout
        self.state: LiveState | None = None
        self.info: SessionInfo | None = None
        self.rate: float | None = DEFAULT_RATE
        self.action_source = "random"
        self.stop_condition: str | None = None
        self.cache = TraceCache()
        self.requested: int | None = None
        self._draft: Draft | None = None
        self._pipeline: Pipeline | None = None
        self._has_failed = False
        self._views = SetPanes()
        self._message = ""
        self._repeats = self._is_branch = False
        self._restart_timer: Timer | None = None
        self._overdue_timer: Timer | None = None
        self._ticket: Ticket[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._read_activity: Callable[[], Activity | None] = lambda: None
        self._last_command = 0
        self._waiting_since: float | None = None
        self._last_message_time = 0.0

    @property
    def num_envs(self) -> int:
        """Number of envs in the batch."""
        return 1 if self.info is None else self.info.num_envs

    @property
    def is_running(self) -> bool:
        """True if the env is stepped continuously."""
        return self.state is not None and self.state.status == "running"

    @property
    def is_open(self) -> bool:
        """True if there is a session, or one is starting."""
        return self._ticket is not None

    def overdue(self) -> float:
        """Return for how many seconds an answer has been overdue; 0 if none is."""
        if self._ticket is None:
            return 0.0
        state, now = self.state, time.monotonic()
        if self._waiting_since is not None:
            return now - self._waiting_since
        if state is None or state.status == "paused":
            return 0.0
        pause = 1 / state.rate if state.rate else 0.0
        return max(0.0, now - self._last_message_time - pause)

    def start(
        self, *, is_running: bool = False, repeat: bool = False, until: int | None = None
    ) -> None:
        """Start a session with the chain of the draft.

        ``repeat`` repeats the resets and actions of the session before it, ``until`` a trace of
        that one.
        """
        draft = self._workspace.draft
        if draft.env is None:
            self.show_message("choose an env first: press e")
            return
        if self._draft is None and draft.policy is not None:
            self.action_source = draft.policy
        self._draft, self._pipeline = draft, draft.pipeline()
        self._has_failed = False
        self._report(None)
        self.state = None
        self.requested = None
        self.cache.clear()
        self._watch()
        self._panes.header.show_message("starting worker …")
        settings = (self._workspace.allow_code, is_running, self.rate, self.action_source)
        self._repeats, self._is_branch = False, until is not None
        samples = self._workspace.samples
        self._open(RunSession(self._pipeline, *settings, draft.positions, repeat, until, samples))
        self.send_if_open(self._views)

    def _open(self, request: RunSession) -> None:
        self.end()
        self._last_message_time = time.monotonic()
        self._waiting_since = None
        self._expect_answer()
        ticket = self._workspace.backend.ask(
            request,
            worker=WORKER,
            slot=WORKER,
            on_push=lambda topic, value: self._receive(ticket, topic, value),
        )
        self._ticket, self._read_activity = ticket, ticket.read_activity
        self._task = asyncio.get_running_loop().create_task(self._wait(ticket))

    def _expect_answer(self) -> None:
        """Watch for an overdue answer, from the first command without one on."""
        if self._waiting_since is None:
            self._waiting_since = time.monotonic()
        if self._overdue_timer is not None:
            self._overdue_timer.resume()

    async def _wait(self, ticket: Ticket[None]) -> None:
        try:
            await ticket
        except SupersededError:
            return
        except RequestError as error:
            if ticket is self._ticket:
                self._ticket = None
                self._handle_end(error.problem, error.details)

    def end(self) -> None:
        """End the session after its current step."""
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._workspace.backend.cancel(ticket)

    def _kill_worker(self) -> None:
        """Kill the worker at once; what it has sent arrives before."""
        self._workspace.backend.restart(WORKER)
        self._ticket = None

    def _watch(self) -> None:
        """Watch the worker and the chain, from the first session on."""
        if self._overdue_timer is None:
            self._overdue_timer = self._owner.set_interval(
                _OVERDUE_INTERVAL, self.show_overdue, pause=True
            )
            self._workspace.edited.subscribe(self._owner, self.restart_after_edit)
            self._workspace.code_reloaded.subscribe(self._owner, self._restart_with_new_code)

    def start_if_new(self) -> None:
        """Start the first session, unless it has failed."""
        if self.state is None and not self._has_failed and not self.is_open:
            self.start(repeat=self._repeats)

    def branch(self) -> None:
        """Start a session that repeats this one up to the shown trace."""
        state = self.state
        if state is None or not state.steps or not self.is_open:
            self.show_message("nothing to branch from: make a step first")
        else:
            self.start(repeat=True, until=self.current_trace(state))

    def restart_after_edit(self, draft: Draft) -> None:
        """Restart when the chain has changed and no further edit follows for a moment."""
        if draft.env is not None and draft.pipeline() == self._pipeline:
            return
        self._report(None)
        is_running = self.is_running
        if self._restart_timer is not None:
            self._restart_timer.stop()
        self._restart_timer = self._owner.set_timer(
            _RESTART_DELAY, lambda: self._restart(is_running)
        )

    def _restart_with_new_code(self, draft: Draft) -> None:
        self._kill_worker()
        self._restart(self.is_running, "restarted with the new code")

    def kill(self) -> None:
        """Kill the worker; the traces in the cache remain."""
        self._kill_worker()
        state = self.state
        if state is None:
            activity = self._read_activity()
            where = "" if activity is None else f" in {activity.text}"
            self._panes.header.show_message(f"worker killed{where} · {_RESTART_HINT}")
        else:
            where = self._mark_ended(state)
            self._panes.header.show_message(f"worker killed{where} · {_HISTORY_HINT}")
        self._on_layout()

    def show_overdue(self) -> None:
        """Show which call takes long, or for how long the worker has not answered."""
        if not self.is_open or (self._waiting_since is None and not self.is_running):
            # Nothing is expected: an idle app must not wake up.
            if self._overdue_timer is not None:
                self._overdue_timer.pause()
            return
        if not self._owner.is_on_screen:
            return
        overdue, activity = self.overdue(), self._read_activity()
        if activity is not None and activity.seconds > ANSWER_TIMEOUT:
            what = f"{activity.text}: {activity.seconds:.0f} s"
        elif overdue > ANSWER_TIMEOUT:
            what = "starting worker" if self.state is None else "no answer from the worker"
            what = f"{what}: {overdue:.0f} s"
        else:
            return
        browse = " · ← → browse the history" if len(self.cache) > 1 else ""
        self._panes.header.show_message(f"{what} · Ctrl+K kills the worker{browse}")

    def _restart(self, is_running: bool, message: str = "restarted after an edit") -> None:
        self.end()
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
        self.requested = None
        self._panes.timeline.show(self.state)
        activity = self._read_activity()
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

    def _receive(self, ticket: Ticket[None], topic: str, value: Any) -> None:
        if ticket is not self._ticket:
            return
        self._last_message_time = time.monotonic()
        if not self._owner.is_mounted:
            return
        if topic == "state":
            self._receive_state(value)
        elif topic == "info":
            self.info = value
            self._panes.manual.set_fields(value.fields)
            self._panes.default_plots = value.plots
            if self.action_source == "manual":
                self.send_action_source()
            self._on_layout()
        elif topic == "trace":
            self.cache.add(value)
            self._panes.values.show_view(value)
        elif topic == "images":
            self.cache.add_images(value)
            if self._panes.show_images(value):
                self._on_layout()
        elif isinstance(value, LateTrace):
            self.cache.add_late(value)
        elif topic == "cells":
            self._panes.show_env_cells(value, None if self.state is None else self.state.row)
        elif topic == "episodes":
            self._panes.episodes.show_episodes(value, is_batched=self.num_envs > 1)
        elif self._panes.plots.show(value):
            self._on_layout()

    def _receive_state(self, state: LiveState) -> None:
        was_running, self.state = self.is_running, state
        if state.last_command >= self._last_command:
            self._waiting_since = None
            self.action_source = state.action_source  # not one that was refused
        if state.shown == self.requested or state.follows_latest:
            self.requested = None
        if self._panes.show_state(state, self.num_envs, is_edit=not self._is_branch):
            self._on_layout()
        self._workspace.show_readings(state.readings)
        self.show_header()
        self._report(state.problem)
        if state.problem is not None:
            self._panes.header.show_problem(state.problem)
        else:
            self._panes.header.show_message(state.message or self._message)
        if self.is_running and not was_running:
            self._message = ""
            if self._overdue_timer is not None:
                self._overdue_timer.resume()

    def show_header(self) -> None:
        """Update the header."""
        settings = self.is_running, self.stop_condition, self.rate, self.action_source
        self._panes.header.show_settings(*settings)
        self._panes.show_header(self.state, self.info)

    def show_message(self, text: str) -> None:
        """Show a message until a run starts or the worker sends another one."""
        self._message = text
        self._panes.header.show_message(text)

    def send(self, command: Command) -> None:
        """Send a command; start a session first if none is open."""
        if not self.is_open:
            self.start()
        self.send_if_open(command)

    def send_if_open(self, command: Command) -> None:
        """Send a command; do nothing if no session is open."""
        if self._ticket is not None:
            self._last_command += 1
            self._expect_answer()
            envelope = CommandEnvelope(self._last_command, command)
            self._workspace.backend.send(self._ticket, envelope)

    def run(self, steps: int | None = None, until: str | None = None) -> None:
        """Step the env."""
        self.requested = None
        self.send(RunSteps(steps, until))
        if self.state is None and self.is_open:
            self._panes.header.show_message("starting worker … · the run is queued")

    def reset(self) -> None:
        """Reset the env; start a session if none is open."""
        self.requested = None
        if self.is_open:
            self.send_if_open(Reset())
        else:
            self.start()

    def send_action_source(self) -> None:
        """Send the action source, and the action if it is set by hand."""
        numbers = self._panes.manual.action if self.action_source == "manual" else ()
        self.send_if_open(SetActionSource(self.action_source, numbers))

    def focus_env(self, by: int) -> None:
        """Focus the next env of a batch; before the first one comes the whole batch."""
        if self.state is None or self.num_envs == 1:
            return
        row = -1 if self.state.row is None else self.state.row
        to = (row + 1 + by) % (self.num_envs + 1) - 1
        # The next key may come before the worker's answer.
        self.state = replace(self.state, row=None if to < 0 else to)
        self.send_if_open(FocusEnv(self.state.row))

    def set_views(self, views: SetPanes) -> None:
        """Tell the worker what the panes have room for, if that has changed."""
        if views != self._views:
            self._views = views
            self.send_if_open(views)

    def browse(self, target: Target, by: int = 1) -> None:
        """Show another trace; of ``by``, only the sign counts for episodes.

        A problem or a difference to the earlier rollout is the next one.
        """
        state = self.state
        if state is None:
            return
        if target == "trace":
            self.show_trace(self.current_trace(state) + by)
        elif target == "episode":
            now, starts = self.current_trace(state), state.episode_starts
            if by < 0:
                earlier = (start for start in starts if start < now)
                self.show_trace(max(earlier, default=state.first))
            else:
                self.show_trace(min((start for start in starts if start > now), default=None))
        elif target == "problem":
            self._show_next(state, state.problem_traces, "no problems in the history")
        elif target == "difference":
            places = tuple(sorted({at for _, at in state.differences or ()}))
            self._show_next(state, places, "no differences to an earlier rollout")
        else:
            self.show_trace(state.first if target == "first" else None)

    def show_trace(self, index: int | None) -> None:
        """Show a trace. ``None``: follow the latest one."""
        state = self.state
        if state is None:
            return
        if index is not None:
            index = max(state.first, min(index, state.last))
        if not self.is_open or self.overdue() >= ANSWER_TIMEOUT:
            # The worker is gone or busy.
            cached = self.cache.nearest(state.last if index is None else index, state.shown)
            if cached is not None:
                view, images = cached
                self.requested = None
                self.state = state = replace(state, shown=view.index, follows_latest=False)
                self._panes.values.show_view(view)
                self._panes.images.show(images)
                self._panes.timeline.show(state)
                self._panes.plots.set_cursor(view.index)
            return
        is_latest = index is None or (index >= state.last and state.status == "paused")
        self.requested = index
        self.send_if_open(ShowTrace(None if is_latest else index))

    def _show_next(self, state: LiveState, traces: Sequence[int], otherwise: str) -> None:
        """Show the next of some traces; start over after the last one."""
        if not traces:
            self._owner.notify(otherwise, timeout=2)
        else:
            later = (trace for trace in traces if trace > self.current_trace(state))
            self.show_trace(next(later, traces[0]))

    def current_trace(self, state: LiveState) -> int:
        """Return the trace that is shown, or was requested and will be."""
        return state.shown if self.requested is None else self.requested
