"""Backend that answers in the process of the app."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from tdx.inspection.overview import Problem
from tdx.tui.backend.client import Backend, RequestError, SupersededError, Ticket
from tdx.tui.backend.messages import Failure, Job, Request
from tdx.tui.backend.requests import CheckChain, InspectChain
from tdx.tui.backend.worker import answer
from tdx.tui.live.requests import RunSession

T = TypeVar("T")


class InlineBackend(Backend):
    """Backend that answers one request per turn of the event loop, in this process.

    A live session, which would block the loop, is never answered: its worker is starting.

    Args:
        looks: Inspect and check the chain; tests of other parts are faster without.
    """

    def __init__(self, *, looks: bool = True) -> None:
        super().__init__()
        self.looks = looks
        self._caches: dict[str, dict[str, Any]] = {}
        self._jobs: dict[int, Job] = {}
        self._open: dict[int, Ticket[Any]] = {}

    def ask(
        self,
        request: Request[T],
        *,
        worker: str = "look",
        slot: str | None = None,
        on_push: Callable[[str, Any], None] | None = None,
    ) -> Ticket[T]:
        loop = asyncio.get_running_loop()
        if isinstance(request, InspectChain | CheckChain) and not self.looks:
            return Ticket(0, loop.create_future())
        if slot is not None:
            for previous in [each for each in self._open.values() if each.slot == slot]:
                self.cancel(previous)
                self._fail(previous, SupersededError(Problem("TDX000", "superseded")))
        ticket: Ticket[T] = Ticket(next(self._numbers), loop.create_future(), on_push, slot)
        job = Job(on_push or _ignore_push, self._caches.setdefault(worker, {}))
        self._open[ticket.number], self._jobs[ticket.number] = ticket, job
        if not isinstance(request, RunSession):
            loop.call_soon(self._answer, ticket, request)
        return ticket

    def cancel(self, ticket: Ticket[Any]) -> None:
        if ticket.number in self._jobs:
            self._jobs[ticket.number].cancel()

    def send(self, ticket: Ticket[Any], value: Any) -> None:
        if ticket.number in self._jobs:
            self._jobs[ticket.number].send(value)

    def restart(self, worker: str) -> None:
        self._caches.pop(worker, None)

    def hold(self) -> None:
        """Intermediate values arrive at once."""

    def close(self) -> None:
        for cache in self._caches.values():
            for kept in cache.values():
                if hasattr(kept, "close"):
                    kept.close()
        self._caches.clear()

    def _answer(self, ticket: Ticket[Any], request: Request[Any]) -> None:
        job = self._jobs.pop(ticket.number)
        self._open.pop(ticket.number, None)
        if job.is_cancelled or ticket.future.done():
            return
        result = answer(ticket.number, request, job)
        if isinstance(result, Failure):
            self._fail(ticket, RequestError(result.problem, result.details))
        elif not ticket.future.done():
            ticket.future.set_result(result.value)

    def _fail(self, ticket: Ticket[Any], error: RequestError) -> None:
        self._open.pop(ticket.number, None)
        if not ticket.future.done():
            ticket.future.set_exception(error)
            ticket.future.exception()


def _ignore_push(topic: str, value: Any) -> None:
    """Ignore an intermediate value."""
