"""The tab's line to its worker: begin, tell, end; and whether an answer is overdue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from tdx.inspection.overview import Problem
from tdx.tui.backend.client import RequestError, StaleError, Ticket
from tdx.tui.live.requests import Command, LiveState, Play, Told
from tdx.tui.workspace import Workspace

WORKER = "live"
PATIENCE = 1.0
"""Seconds after which an answer is overdue."""


class Link:
    """One session after the other, each a request that goes on until it is ended.

    Args:
        workspace: the state of the app.
        show: called with topic and value of what is pushed.
        ended: called with what went wrong, and details of it.
    """

    def __init__(
        self,
        workspace: Workspace,
        show: Callable[[str, Any], None],
        ended: Callable[[Problem, str], None],
    ) -> None:
        self._workspace = workspace
        self._show, self._ended = show, ended
        self._ticket: Ticket[None] | None = None
        self._waiting: asyncio.Task[None] | None = None
        self._sent = 0
        self._since: float | None = None
        self._last = 0.0
        self._state: LiveState | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a session, or one is being made."""
        return self._ticket is not None

    @property
    def answers(self) -> bool:
        """Whether there is a session that has answered lately."""
        return self.is_open and self.overdue() < PATIENCE

    def begin(self, request: Play) -> None:
        """Begin a session; the one before ends."""
        self.end()
        self._state, self._since, self._last = None, time.monotonic(), time.monotonic()
        ticket = self._workspace.backend.ask(
            request, worker=WORKER, line=WORKER, on_push=lambda *each: self._pushed(ticket, *each)
        )
        self._ticket = ticket
        self._waiting = asyncio.get_running_loop().create_task(self._wait(ticket))

    def tell(self, command: Command) -> None:
        """Tell the session something; nothing where there is none."""
        if self._ticket is not None:
            self._sent += 1
            if self._since is None:
                self._since = time.monotonic()
            self._workspace.backend.tell(self._ticket, Told(self._sent, command))

    def end(self) -> None:
        """End the session, after the step that it is in."""
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._workspace.backend.cancel(ticket)

    def kill(self) -> None:
        """End the session, whatever it does."""
        self._ticket = None
        self._workspace.backend.restart(WORKER)

    def overdue(self) -> float:
        """For how many seconds the worker has not said what it should have; 0 where it has."""
        if self._ticket is None:
            return 0.0
        state, now = self._state, time.monotonic()
        if self._since is not None:
            return now - self._since
        if state is None or state.doing == "paused":
            return 0.0
        pause = 1 / state.rate if state.rate else 0.0
        return max(0.0, now - self._last - pause)

    def _pushed(self, ticket: Ticket[None], topic: str, value: Any) -> None:
        if ticket is not self._ticket:
            return
        self._last = time.monotonic()
        if isinstance(value, LiveState):
            self._state = value
            if value.heard >= self._sent:
                self._since = None
        self._show(topic, value)

    async def _wait(self, ticket: Ticket[None]) -> None:
        try:
            await ticket
        except StaleError:
            return
        except RequestError as error:
            if ticket is self._ticket:
                self._ticket = None
                self._ended(error.problem, error.details)
