"""Connection of the Live tab to its worker, and the history that outlives it."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol

from textual.widget import Widget

from tdx.inspection.live.views import ImageView, TraceView
from tdx.inspection.overview import Problem
from tdx.tui.backend.activity import Activity
from tdx.tui.backend.client import RequestError, SupersededError, Ticket
from tdx.tui.live.messages import (
    Command,
    CommandEnvelope,
    CompareWith,
    LateTrace,
    LiveState,
    RunSession,
    ShowTrace,
)
from tdx.tui.live.panes import LivePanes
from tdx.tui.workspace import Workspace

WORKER = "live"
ANSWER_TIMEOUT = 1.0
"""Seconds after which an answer is overdue."""
MAX_CACHED_TRACES = 150


class LiveConnection:
    """Runs one session at a time, each as a request without an end.

    Args:
        workspace: State of the app.
        on_push: Called with topic and value of each message from the session.
        on_end: Called with a problem and its details when a session fails.
    """

    def __init__(
        self,
        workspace: Workspace,
        on_push: Callable[[str, Any], None],
        on_end: Callable[[Problem, str], None],
    ) -> None:
        self._workspace = workspace
        self._on_push, self._on_end = on_push, on_end
        self._ticket: Ticket[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._last_command = 0
        self._waiting_since: float | None = None
        self._last_message_time = 0.0
        self._state: LiveState | None = None
        self._read_activity: Callable[[], Activity | None] = lambda: None

    @property
    def is_open(self) -> bool:
        """True if there is a session, or one is starting."""
        return self._ticket is not None

    @property
    def is_responsive(self) -> bool:
        """True if there is a session and no answer is overdue."""
        return self.is_open and self.overdue() < ANSWER_TIMEOUT

    def start(self, request: RunSession) -> None:
        """Start a session and end the previous one."""
        self.end()
        now = time.monotonic()
        self._state, self._waiting_since, self._last_message_time = None, now, now
        ticket = self._workspace.backend.ask(
            request,
            worker=WORKER,
            slot=WORKER,
            on_push=lambda topic, value: self._receive(ticket, topic, value),
        )
        self._ticket, self._read_activity = ticket, ticket.read_activity
        self._task = asyncio.get_running_loop().create_task(self._wait(ticket))

    def send(self, command: Command) -> None:
        """Send a command; do nothing if no session is open."""
        if self._ticket is not None:
            self._last_command += 1
            if self._waiting_since is None:
                self._waiting_since = time.monotonic()
            envelope = CommandEnvelope(self._last_command, command)
            self._workspace.backend.send(self._ticket, envelope)

    def end(self) -> None:
        """End the session after its current step."""
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._workspace.backend.cancel(ticket)

    def kill(self) -> None:
        """Kill the worker at once; what it has sent arrives before."""
        self._workspace.backend.restart(WORKER)
        self._ticket = None

    def activity(self) -> Activity | None:
        """Return the call that the worker is in, or was in when it died."""
        return self._read_activity()

    def overdue(self) -> float:
        """Return for how many seconds an answer has been overdue; 0 if none is."""
        if self._ticket is None:
            return 0.0
        state, now = self._state, time.monotonic()
        if self._waiting_since is not None:
            return now - self._waiting_since
        if state is None or state.status == "paused":
            return 0.0
        pause = 1 / state.rate if state.rate else 0.0
        return max(0.0, now - self._last_message_time - pause)

    def _receive(self, ticket: Ticket[None], topic: str, value: Any) -> None:
        if ticket is not self._ticket:
            return
        self._last_message_time = time.monotonic()
        if isinstance(value, LiveState):
            self._state = value
            if value.last_command >= self._last_command:
                self._waiting_since = None
        self._on_push(topic, value)

    async def _wait(self, ticket: Ticket[None]) -> None:
        try:
            await ticket
        except SupersededError:
            return
        except RequestError as error:
            if ticket is self._ticket:
                self._ticket = None
                self._on_end(error.problem, error.details)


class TraceCache:
    """The traces that were displayed last, with their images.

    Args:
        max_size: Maximum number of traces.
    """

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
        """Return the first cached trace at or beyond an index, in the direction of movement.

        Args:
            index: Trace to go to.
            start: Trace to come from.
        """
        if not self._views:
            return None
        if index < start:
            before = (each for each in self._views if each <= index)
            at = max(before, default=min(self._views))
        else:
            after = (each for each in self._views if each >= index)
            at = min(after, default=max(self._views))
        return self._views[at], self._images.get(at, ())


Target = Literal["trace", "episode", "problem", "difference", "first", "latest"]


class BrowsedSession(Protocol):
    """What choosing a trace needs of a session."""

    state: LiveState | None
    connection: LiveConnection

    def show_message(self, text: str) -> None:
        """Show a message."""


class HistoryBrowser:
    """Chooses the trace that is shown, also after the worker is gone.

    Args:
        session: The session.
        owner: Shows notices.
        panes: Show traces of the cache.

    Attributes:
        cache: Traces that were displayed last.
        requested: Trace that was requested and is not shown yet.
    """

    def __init__(self, session: BrowsedSession, owner: Widget, panes: LivePanes) -> None:
        self._session, self._owner, self._panes = session, owner, panes
        self.cache = TraceCache()
        self.requested: int | None = None

    def clear(self) -> None:
        """Forget all traces, because a session starts."""
        self.requested = None
        self.cache.clear()

    def browse(self, target: Target, by: int = 1) -> None:
        """Show another trace.

        Args:
            target: ``trace`` or ``episode`` (forward or back), ``problem`` (the next),
                ``difference`` to the earlier rollout (the next), ``first`` or ``latest``.
            by: Number of traces; for episodes only the sign counts.
        """
        state = self._session.state
        if state is None:
            return
        if target == "trace":
            self.show_trace(self.current(state) + by)
        elif target == "episode":
            self._show_episode(state, by)
        elif target == "problem":
            self._show_next(state, state.problem_traces, "no problems in the history")
        elif target == "difference":
            places = tuple(sorted({at for _, at in state.differences or ()}))
            self._show_next(state, places, "no differences to an earlier rollout")
        else:
            self.show_trace(state.first if target == "first" else None)

    def show_trace(self, index: int | None) -> None:
        """Show a trace. ``None``: follow the latest one."""
        state = self._session.state
        if state is None:
            return
        if index is not None:
            index = max(state.first, min(index, state.last))
        if not self._session.connection.is_responsive:
            self._show_cached_trace(state, state.last if index is None else index)
            return
        is_latest = index is None or (index >= state.last and state.status == "paused")
        self.requested = index
        self._session.connection.send(ShowTrace(None if is_latest else index))

    def _show_episode(self, state: LiveState, by: int) -> None:
        """Show the start of an earlier or later episode."""
        now, starts = self.current(state), state.episode_starts
        if by < 0:
            self.show_trace(max((each for each in starts if each < now), default=state.first))
        else:
            self.show_trace(min((each for each in starts if each > now), default=None))

    def _show_next(self, state: LiveState, traces: Sequence[int], otherwise: str) -> None:
        """Show the next of some traces; start over after the last one."""
        if not traces:
            self._owner.notify(otherwise, timeout=2)
        else:
            after: Sequence[int] = [each for each in traces if each > self.current(state)]
            self.show_trace(after[0] if after else traces[0])

    def toggle_earlier(self) -> None:
        """Compare with the earlier rollout, or with the previous trace."""
        state = self._session.state
        if state is None or state.differences is None:
            self._owner.notify("no earlier rollout: edit the chain, or branch with B", timeout=3)
            return
        is_earlier = not state.is_earlier
        self._session.connection.send(CompareWith(is_earlier=is_earlier))
        what = "earlier rollout" if is_earlier else "previous trace"
        self._session.show_message(f"comparing with the {what}")

    def mark_for_comparison(self) -> None:
        """Compare with the shown trace; if it is marked already, with the previous trace."""
        state = self._session.state
        if state is not None and self._session.connection.is_open:
            shown = self.current(state)
            mark = None if state.reference == shown else shown
            self._session.connection.send(CompareWith(mark))
            self._session.show_message(
                "comparing with the previous trace"
                if mark is None
                else f"comparing with trace {mark}"
            )

    def current(self, state: LiveState) -> int:
        return state.shown if self.requested is None else self.requested

    def _show_cached_trace(self, state: LiveState, index: int) -> None:
        """Show a trace of the cache: the worker is gone or busy."""
        cached = self.cache.nearest(index, state.shown)
        if cached is not None:
            view, images = cached
            self.requested = None
            self._session.state = state = replace(state, shown=view.index, follows_latest=False)
            self._panes.show_trace(view)
            self._panes.images.show(images)
            self._panes.timeline.show(state)
            self._panes.plots.set_cursor(view.index)
