"""What stands between a question and its answer: tickets, and why there may be no answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from tdx.inspection.overview import Problem
from tdx.tui.backend.messages import Request

T = TypeVar("T")
CANCELLED = Problem("TDX000", "cancelled", "another worker is started when it is needed")
"""What becomes of a request whose worker was killed by the user."""


class RequestError(Exception):
    """A request that was not answered.

    Args:
        problem: why, for the user.
        details: a traceback, or the last words of the worker.
    """

    def __init__(self, problem: Problem, details: str = "") -> None:
        super().__init__(problem.message)
        self.problem = problem
        self.details = details


class StaleError(RequestError):
    """A request whose answer is no longer wanted."""


class DiedError(RequestError):
    """A request whose worker ended by itself."""


@dataclass
class Ticket(Generic[T]):
    """A request that is under way; await it for the answer.

    Args:
        number: tells it from all others.
        future: the answer.
        on_push: called with topic and value of what comes on the way.
    """

    number: int
    future: asyncio.Future[T]
    on_push: Callable[[str, Any], None] | None = None
    line: str | None = None

    def __await__(self) -> Any:
        return self.future.__await__()


class Backend(Protocol):
    """Whoever answers requests; tests have one without a process."""

    def ask(
        self,
        request: Request[T],
        *,
        worker: str = "look",
        line: str | None = None,
        on_push: Callable[[str, Any], None] | None = None,
    ) -> Ticket[T]:
        """Ask something; await the ticket for the answer.

        Args:
            request: what is asked.
            worker: which worker is asked; each name is a process of its own.
            line: of requests in the same line only the last counts: those before it are
                cancelled, and their tickets raise :class:`StaleError`.
            on_push: called with topic and value of what comes on the way, at most 30 times a
                second.
        """

    def cancel(self, ticket: Ticket[Any]) -> None:
        """Tell the worker that an answer is no longer wanted; it may look, or not."""

    def tell(self, ticket: Ticket[Any], value: Any) -> None:
        """Send something to a request that is being answered."""

    def restart(self, worker: str) -> None:
        """Kill a worker whatever it does; its requests raise, and the next one finds a new one."""

    def hold(self) -> None:
        """Keep back for a moment what is pushed: the user has pressed a key."""

    def close(self) -> None:
        """End all workers; nothing is left behind."""
