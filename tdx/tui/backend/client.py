"""The app's side of its workers: ask, cancel, kill; a worker that dies is started again."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tdx.inspection.overview import Problem
from tdx.tui.backend.messages import Answer, Ask, Cancel, Failure, Push, Ready, Request, Tell
from tdx.tui.backend.news import News, name_of
from tdx.tui.backend.process import WorkerProcess
from tdx.tui.backend.tickets import (
    CANCELLED,
    Backend,
    DiedError,
    RequestError,
    StaleError,
    Ticket,
)

__all__ = [
    "CANCELLED",
    "Backend",
    "DiedError",
    "ProcessBackend",
    "RequestError",
    "StaleError",
    "Ticket",
]

T = TypeVar("T")
PUSH_INTERVAL = 1 / 30
"""Seconds between two deliveries of what is pushed; in between only the latest is kept."""
HOLD = 0.06
"""Seconds after a key in which nothing is delivered, so that its answer is drawn alone."""
MOST_HELD = 0.25
"""Seconds between two deliveries however many keys are pressed."""
TIDY_EVERY = 1.0
"""Seconds between two looks at how much the workers have written."""


@dataclass
class _Held:
    """A worker and what it was asked."""

    process: WorkerProcess
    tickets: dict[int, Ticket[Any]] = field(default_factory=dict)
    pushed: dict[tuple[int, str], Any] = field(default_factory=dict)
    delivery: asyncio.TimerHandle | None = None
    delivered: float = 0.0
    ready: bool = False


class ProcessBackend:
    """Workers that are processes, each started when it is first asked.

    Args:
        on_end: called with the name of a worker that ended by itself, how, and what it last said.
        on_news: called with all else that is worth a line in a log.
    """

    def __init__(
        self,
        on_end: Callable[[str, str, str], None] | None = None,
        on_news: Callable[[News], None] | None = None,
    ) -> None:
        self.on_end = on_end
        self.on_news = on_news
        self._workers: dict[str, _Held] = {}
        self._numbers = itertools.count(1)
        self._quiet_until = 0.0
        self._tidying: asyncio.TimerHandle | None = None

    def ask(
        self,
        request: Request[T],
        *,
        worker: str = "look",
        line: str | None = None,
        on_push: Callable[[str, Any], None] | None = None,
    ) -> Ticket[T]:
        """See :meth:`Backend.ask`."""
        held = self._workers.get(worker) or self._started(worker)
        if line is not None:
            for before in [each for each in held.tickets.values() if each.line == line]:
                self.cancel(before)
                self._settle(held, before.number, StaleError(_SUPERSEDED))
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        ticket = Ticket(next(self._numbers), future, on_push, line)
        held.tickets[ticket.number] = ticket
        held.process.send(Ask(ticket.number, request))
        return ticket

    def cancel(self, ticket: Ticket[Any]) -> None:
        """See :meth:`Backend.cancel`."""
        self._send_to(ticket, Cancel(ticket.number))

    def tell(self, ticket: Ticket[Any], value: Any) -> None:
        """See :meth:`Backend.tell`."""
        self._send_to(ticket, Tell(ticket.number, value))

    def restart(self, worker: str) -> None:
        """See :meth:`Backend.restart`."""
        held = self._workers.pop(worker, None)
        if held is not None:
            held.process.kill()
            self._listen_to(worker, held, last=True)
            held.process.close()
            self._tell(News(worker, "killed", f"the process of {name_of(worker)} was ended"))
            self._fail_all(held, RequestError(CANCELLED))

    def hold(self) -> None:
        """See :meth:`Backend.hold`."""
        self._quiet_until = asyncio.get_running_loop().time() + HOLD

    def close(self) -> None:
        """See :meth:`Backend.close`."""
        for worker in list(self._workers):
            self.restart(worker)
        if self._tidying is not None:
            self._tidying.cancel()

    def pids(self) -> dict[str, int]:
        """The process id of each worker that runs."""
        return {name: held.process.pid for name, held in self._workers.items()}

    def is_ready(self, worker: str = "look") -> bool:
        """Whether a worker has started and listens."""
        return worker in self._workers and self._workers[worker].ready

    def _started(self, name: str) -> _Held:
        loop = asyncio.get_running_loop()

        def in_loop(callback: Callable[..., None], *args: Any) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(callback, *args)

        process = WorkerProcess(
            lambda message: in_loop(self._received, name, process, message),
            lambda: in_loop(self._ended, name, process),
        )
        held = _Held(process)
        self._workers[name] = held
        self._tell(News(name, "started", f"process {process.pid} started, for {name_of(name)}"))
        if self._tidying is None:
            self._tidying = loop.call_later(TIDY_EVERY, self._tidy)
        return held

    def _tidy(self) -> None:
        """See that an env that prints without end does not fill the disk."""
        for name, held in self._workers.items():
            self._listen_to(name, held)
            held.process.output.trim()
        self._tidying = None
        if self._workers:
            self._tidying = asyncio.get_running_loop().call_later(TIDY_EVERY, self._tidy)

    def _listen_to(self, name: str, held: _Held, *, last: bool = False) -> None:
        """Pass on what a worker has printed."""
        text, left_out = held.process.output.fresh(last=last)
        if text:
            self._tell(News(name, "printed", text, left_out=left_out))

    def _tell(self, news: News) -> None:
        if self.on_news is not None:
            self.on_news(news)

    def _received(self, name: str, process: WorkerProcess, message: object) -> None:
        held = self._workers.get(name)
        if held is None or held.process is not process:
            return
        if isinstance(message, Ready):
            held.ready = True
        elif isinstance(message, Push):
            held.pushed[message.number, message.topic] = message.value
            self._schedule_delivery(held)
        elif isinstance(message, Answer):
            self._deliver(held)
            self._settle(held, message.number, message.value)
        elif isinstance(message, Failure):
            self._deliver(held)
            problem, details = message.problem, message.details
            told = "\n".join(each for each in (problem.hint, details) if each)
            self._tell(News(name, "failed", problem.message, told))
            self._settle(held, message.number, RequestError(problem, details))

    def _schedule_delivery(self, held: _Held) -> None:
        if held.delivery is None:
            loop = asyncio.get_running_loop()
            due = max(held.delivered + PUSH_INTERVAL, self._quiet(held))
            held.delivery = loop.call_at(due, self._deliver_if_quiet, held)

    def _quiet(self, held: _Held) -> float:
        """The time before which nothing is to be delivered."""
        return min(self._quiet_until, held.delivered + MOST_HELD)

    def _deliver_if_quiet(self, held: _Held) -> None:
        held.delivery = None
        if asyncio.get_running_loop().time() < self._quiet(held):
            self._schedule_delivery(held)
        else:
            self._deliver(held)

    def _deliver(self, held: _Held) -> None:
        """Hand the latest of every topic to whoever asked."""
        if held.delivery is not None:
            held.delivery.cancel()
            held.delivery = None
        held.delivered = asyncio.get_running_loop().time()
        pushed, held.pushed = held.pushed, {}
        for (number, topic), value in pushed.items():
            ticket = held.tickets.get(number)
            if ticket is not None and ticket.on_push is not None:
                ticket.on_push(topic, value)

    def _settle(self, held: _Held, number: int, result: Any) -> None:
        ticket = held.tickets.pop(number, None)
        if ticket is None or ticket.future.done():
            return
        if isinstance(result, RequestError):
            ticket.future.set_exception(result)
            ticket.future.exception()  # nobody need await a ticket
        else:
            ticket.future.set_result(result)

    def _ended(self, name: str, process: WorkerProcess) -> None:
        held = self._workers.get(name)
        if held is None or held.process is not process:
            return
        del self._workers[name]
        process.kill()
        self._listen_to(name, held, last=True)
        said, how = process.last_words(), process.how_it_ended()
        process.close()
        self._fail_all(held, DiedError(_died(how), said))
        if self.on_end is not None:
            self.on_end(name, how, said)

    def _fail_all(self, held: _Held, error: RequestError) -> None:
        for number in list(held.tickets):
            self._settle(held, number, error)
        if held.delivery is not None:
            held.delivery.cancel()

    def _send_to(self, ticket: Ticket[Any], message: object) -> None:
        for held in self._workers.values():
            if ticket.number in held.tickets:
                held.process.send(message)


_SUPERSEDED = Problem("TDX000", "a newer request took its place")


def _died(how: str) -> Problem:
    message = f"the worker process ended: {how}" if how else "the worker process ended"
    return Problem("TDX000", message, "another is started when it is needed; F12 shows its output")
