"""Client of the workers: submit, cancel and kill; a worker that dies is started again on demand."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tdx.foundation.processes import ExitReason, WarmProgram
from tdx.inspection.overview import Problem
from tdx.tui.backend.activity import Activity
from tdx.tui.backend.messages import (
    Answer,
    Cancel,
    Failure,
    Push,
    Request,
    Send,
    Submit,
    WorkerEvent,
    worker_title,
)
from tdx.tui.backend.process import WorkerProcess, warm_up

T = TypeVar("T")
CANCELLED = Problem("TDX000", "cancelled", "the worker restarts when needed")
"""Problem of a request whose worker the user has killed."""


class RequestError(Exception):
    """A request that failed; the details are a traceback, or the end of the worker's output."""

    def __init__(self, problem: Problem, details: str = "") -> None:
        super().__init__(problem.message)
        self.problem = problem
        self.details = details

    @property
    def sentence(self) -> str:
        """Message and hint on one line."""
        hint = self.problem.hint
        return f"{self.problem.message} ({hint})" if hint else self.problem.message

    @property
    def is_cancelled(self) -> bool:
        """True if the user has killed the worker."""
        return self.problem is CANCELLED


class SupersededError(RequestError):
    """A request that a newer one in the same slot has replaced."""


class WorkerDiedError(RequestError):
    """A request whose worker has died."""


@dataclass
class Ticket(Generic[T]):
    """A running request; await it for the answer."""

    number: int
    future: asyncio.Future[T]
    # Called with topic and value of each intermediate value
    on_push: Callable[[str, Any], None] | None = None
    slot: str | None = None  # slot of the request, see :meth:`Backend.ask`
    # Returns what the worker is doing, or was doing when it died; ``None`` if nothing is known
    read_activity: Callable[[], Activity | None] = lambda: None

    def __await__(self) -> Any:
        return self.future.__await__()


PUSH_INTERVAL = 1 / 30
"""Seconds between two deliveries of intermediate values; only the latest are delivered."""
HOLD_SECONDS = 0.15
"""Seconds after a key press without deliveries, so that its effect is drawn first."""
MAX_HOLD_SECONDS = 0.5
"""Maximum number of seconds between two deliveries, however many keys are pressed."""
OUTPUT_INTERVAL = 1.0
"""Seconds between two reports of what the workers print."""
_MAX_OUTPUT_TAIL = 4000
"""Number of bytes of the output of a worker that are shown when it has died."""


@dataclass
class _WorkerHandle:
    """A worker with its requests."""

    process: WorkerProcess
    received: deque[object] = field(default_factory=deque)
    tickets: dict[int, Ticket[Any]] = field(default_factory=dict)
    pushed: dict[tuple[int, str], object] = field(default_factory=dict)
    delivery: asyncio.TimerHandle | None = None
    delivered: float = 0.0


class Backend:
    """Answers requests in worker processes, each started by its first request.

    ``on_exit`` is called with the name of a worker that has died, the reason and the end of its
    output, ``on_event`` with everything else that is worth a log entry.
    """

    def __init__(
        self,
        on_exit: Callable[[str, ExitReason, str], None] | None = None,
        on_event: Callable[[WorkerEvent], None] = lambda event: None,
    ) -> None:
        self.on_exit = on_exit
        self.on_event = on_event
        self._workers: dict[str, _WorkerHandle] = {}
        self._numbers = itertools.count(1)
        self._hold_until = 0.0
        self._output_timer: asyncio.TimerHandle | None = None
        self._warm: WarmProgram | None = None

    def ask(
        self,
        request: Request[T],
        *,
        worker: str = "look",
        slot: str | None = None,
        on_push: Callable[[str, Any], None] | None = None,
    ) -> Ticket[T]:
        """Submit a request; await the ticket for the answer.

        Each name of a worker is a separate process. A request cancels earlier ones in the same
        slot; their tickets raise :class:`SupersededError`. ``on_push`` is called with topic and
        value of each intermediate value, at most 30 times per second.
        """
        handle = self._workers.get(worker) or self._start_worker(worker)
        if slot is not None:
            for previous in [ticket for ticket in handle.tickets.values() if ticket.slot == slot]:
                self.cancel(previous)
                self._settle(handle, previous.number, SupersededError(_SUPERSEDED))
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        ticket = Ticket(next(self._numbers), future, on_push, slot, handle.process.activity.read)
        handle.tickets[ticket.number] = ticket
        handle.process.send(Submit(ticket.number, request))
        return ticket

    def cancel(self, ticket: Ticket[Any]) -> None:
        """Tell the worker to skip an answer; it may ignore that."""
        self._send_to(ticket, Cancel(ticket.number))

    def send(self, ticket: Ticket[Any], value: object) -> None:
        """Send a value to a running request."""
        self._send_to(ticket, Send(ticket.number, value))

    def restart(self, worker: str) -> None:
        """Kill a worker; its requests raise, and the next request starts a new one.

        Intermediate values that it has sent are delivered before.
        """
        handle = self._workers.get(worker)
        if handle is not None:
            handle.process.kill()
            self._receive(worker, handle)
            self._deliver(handle)
            self._remove(worker, handle)

    def release(self, worker: str) -> None:
        """End a worker that has nothing to do, since its memory goes back to the system only then.

        Where workers are not forked it stays: the next one would import everything again.
        """
        handle = self._workers.get(worker)
        if handle is not None and not handle.tickets and self._warm is not None:
            self._close(worker, handle)

    def _remove(self, worker: str, handle: _WorkerHandle) -> None:
        """Kill a worker and drop what it has sent."""
        if self._workers.get(worker) is handle:
            self._close(worker, handle)
            text = f"killed the worker for {worker_title(worker)}"
            self.on_event(WorkerEvent(worker, "killed", text))
            self._fail_all(handle, RequestError(CANCELLED))

    def _close(self, worker: str, handle: _WorkerHandle) -> None:
        """Kill a worker, and report the end of what it has printed."""
        del self._workers[worker]
        handle.process.kill()
        self._forward_output(worker, handle, last=True)
        handle.process.close()

    def hold(self) -> None:
        """Delay intermediate values for a moment, because the user has pressed a key."""
        self._hold_until = asyncio.get_running_loop().time() + HOLD_SECONDS

    def close(self) -> None:
        """Kill all workers."""
        for worker, handle in list(self._workers.items()):
            self._remove(worker, handle)
        if self._warm is not None:
            self._warm.kill()
        if self._output_timer is not None:
            self._output_timer.cancel()

    def pids(self) -> dict[str, int]:
        """Return the process id of each running worker."""
        return {name: handle.process.pid for name, handle in self._workers.items()}

    def _start_worker(self, name: str) -> _WorkerHandle:
        loop = asyncio.get_running_loop()

        def in_loop(callback: Callable[..., None], *args: object) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(callback, *args)

        def receive(message: object) -> None:
            handle.received.append(message)
            in_loop(self._receive, name, handle)

        def report_start() -> None:
            text = f"started process {process.pid} for {worker_title(name)}"
            self.on_event(WorkerEvent(name, "started", text))

        if self._warm is None or self._warm.has_ended:
            self._warm = warm_up()
        process = WorkerProcess(
            receive,
            lambda: in_loop(self._handle_exit, name, handle),
            lambda: None if self._output_timer else in_loop(self._schedule_output),
            lambda: in_loop(report_start),
            self._warm,
        )
        handle = _WorkerHandle(process)
        self._workers[name] = handle
        process.start()
        return handle

    def _schedule_output(self) -> None:
        if self._output_timer is None:
            loop = asyncio.get_running_loop()
            self._output_timer = loop.call_later(OUTPUT_INTERVAL, self._forward_outputs)

    def _forward_outputs(self) -> None:
        # Before the output is read: what is printed from now on is reported next time.
        self._output_timer = None
        for name, handle in self._workers.items():
            self._forward_output(name, handle)

    def _forward_output(self, name: str, handle: _WorkerHandle, *, last: bool = False) -> None:
        """Report what a worker has printed."""
        text, skipped_bytes = handle.process.output.read_new(last=last)
        if text:
            self.on_event(WorkerEvent(name, "printed", text, skipped_bytes=skipped_bytes))

    def _receive(self, name: str, handle: _WorkerHandle) -> None:
        """Handle the messages of a worker that have arrived."""
        for _ in range(len(handle.received)):
            if handle.received and self._workers.get(name) is handle:
                self._handle_message(name, handle, handle.received.popleft())

    def _handle_message(self, name: str, handle: _WorkerHandle, message: object) -> None:
        if isinstance(message, Push):
            # In the order of the latest values: a state comes after the views that it describes.
            handle.pushed.pop((message.number, message.topic), None)
            handle.pushed[message.number, message.topic] = message.value
            self._schedule_delivery(handle)
        elif isinstance(message, Answer):
            self._deliver(handle)
            self._settle(handle, message.number, message.value)
        elif isinstance(message, Failure):
            self._deliver(handle)
            problem, details = message.problem, message.details
            text = "\n".join(line for line in (problem.hint, details) if line)
            self.on_event(WorkerEvent(name, "failed", problem.message, text))
            self._settle(handle, message.number, RequestError(problem, details))

    def _schedule_delivery(self, handle: _WorkerHandle) -> None:
        if handle.delivery is None:
            loop = asyncio.get_running_loop()
            due = max(handle.delivered + PUSH_INTERVAL, self._hold_end(handle))
            handle.delivery = loop.call_at(due, self._deliver_unless_held, handle)

    def _hold_end(self, handle: _WorkerHandle) -> float:
        """Return the time before which nothing is delivered."""
        return min(self._hold_until, handle.delivered + MAX_HOLD_SECONDS)

    def _deliver_unless_held(self, handle: _WorkerHandle) -> None:
        handle.delivery = None
        if asyncio.get_running_loop().time() < self._hold_end(handle):
            self._schedule_delivery(handle)
        else:
            self._deliver(handle)

    def _deliver(self, handle: _WorkerHandle) -> None:
        """Deliver the latest value of each topic."""
        if handle.delivery is not None:
            handle.delivery.cancel()
            handle.delivery = None
        handle.delivered = asyncio.get_running_loop().time()
        pushed, handle.pushed = handle.pushed, {}
        for (number, topic), value in pushed.items():
            ticket = handle.tickets.get(number)
            if ticket is not None and ticket.on_push is not None:
                ticket.on_push(topic, value)

    def _settle(self, handle: _WorkerHandle, number: int, result: object) -> None:
        ticket = handle.tickets.pop(number, None)
        if ticket is None or ticket.future.done():
            return
        if isinstance(result, RequestError):
            ticket.future.set_exception(result)
            ticket.future.exception()  # a ticket need not be awaited
        else:
            ticket.future.set_result(result)

    def _handle_exit(self, name: str, handle: _WorkerHandle) -> None:
        if self._workers.get(name) is not handle:
            return
        self._receive(name, handle)
        self._deliver(handle)
        self._close(name, handle)
        output = handle.process.output.tail(_MAX_OUTPUT_TAIL)
        reason = handle.process.exit_reason
        hint = "it restarts when needed; F12 shows its output"
        if reason.hint is not None:
            hint = f"{reason.hint}; {hint}"
        problem = Problem("TDX000", f"the worker process {reason}", hint)
        self._fail_all(handle, WorkerDiedError(problem, output))
        if self.on_exit is not None:
            self.on_exit(name, reason, output)

    def _fail_all(self, handle: _WorkerHandle, error: RequestError) -> None:
        for number in list(handle.tickets):
            self._settle(handle, number, error)
        if handle.delivery is not None:
            handle.delivery.cancel()

    def _send_to(self, ticket: Ticket[Any], message: object) -> None:
        for handle in self._workers.values():
            if ticket.number in handle.tickets:
                handle.process.send(message)


_SUPERSEDED = Problem("TDX000", "superseded by a newer request")
