"""Pool of worker processes: start, requests and shutdown."""

from __future__ import annotations

import itertools
import pickle
import selectors
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.util import Finalize

import torch

from tdx.core.envs.failures import ENV_ERROR_HINT
from tdx.core.transforms.validation import check_integer
from tdx.envs.batched import protocol
from tdx.envs.batched.env_creator import EnvFactory
from tdx.envs.batched.metadata import EnvMetaData
from tdx.envs.batched.worker import run_worker
from tdx.foundation.errors import ArgumentError, TdxError, WorkerError, WorkerTimeoutError
from tdx.foundation.processes import FunctionChild, delay_interrupts, kill_all, usable_cores

_STARTING = "startup"
_CREATING = "env construction"
_IN_MAIN_PROCESS = "SerialEnv, or --batching serial, runs the envs in the main process"
_CREATING_HINT = f"{ENV_ERROR_HINT}; {_IN_MAIN_PROCESS}"
_IMPORT_TIMEOUT = 120.0
_GRACE = 5.0
"""Seconds in which a worker may close its envs after its parent has exited."""


@dataclass(frozen=True)
class ProcessOptions:
    """Options of worker processes."""

    start_method: str  # "forkserver", "spawn" or "fork"
    threads: int  # torch threads of each worker
    daemon: bool  # daemon processes cannot have child processes
    timeout: float | None  # seconds without a reply from any worker until they count as hung
    shutdown_timeout: float  # seconds for the workers to close their envs


def resolve_process_count(processes: int | None, num_workers: int) -> int:
    """Validate the number of processes, or choose the default: one per core that may be used.

    There is at most one process per env.
    """
    if processes is None:
        return min(usable_cores(), num_workers)
    hint = "pass the number of processes, or leave it out for one per core"
    return min(check_integer(processes, "processes", 1, hint), num_workers)


def split_rows(num_workers: int, processes: int) -> list[range]:
    """Return the envs of each process: consecutive ones, as equal in number as possible."""
    bounds = [num_workers * index // processes for index in range(processes + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(bounds)]


def describe_workers(rows: range) -> str:
    """Return the name of a process in messages, by the envs in it."""
    if len(rows) == 1:
        return f"worker {rows[0]}"
    return f"the process of workers {rows[0]} to {rows[-1]}"


class WorkerPool:
    """Worker processes, each with some of the envs.

    If a worker fails, or the parent is interrupted while waiting, all workers are ended before
    the error is raised.
    """

    def __init__(
        self, factories: Sequence[EnvFactory], groups: Sequence[range], options: ProcessOptions
    ) -> None:
        self.options = options
        self.groups = tuple(groups)
        self._factories = factories
        self._children: list[FunctionChild] = []
        # Replies that arrived before they were requested.
        self._early: dict[int, bytes] = {}
        self._selector = selectors.DefaultSelector()
        # Runs when the pool is collected, and at exit before multiprocessing waits for children.
        self._finalizer = Finalize(
            self,
            _shut_down,
            (self._children, self._selector, options.shutdown_timeout),
            exitpriority=100,
        )
        try:
            for index in range(len(self.groups)):
                # A worker that is not in the list yet would not be ended by an interrupt.
                with delay_interrupts():
                    self._children.append(self._start(index))
            self.metadata: list[EnvMetaData] = self._await_ready()
        except BaseException:
            self.kill()
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [child.pid for child in self._children]

    def _start(self, index: int) -> FunctionChild:
        rows, options = self.groups[index], self.options
        # Distinct for each env, and it follows torch.manual_seed.
        seed = (torch.initial_seed() + 1 + rows[0]) % 2**63
        factories = [self._factories[row] for row in rows]
        try:
            child = FunctionChild(
                run_worker,
                (factories, seed, options.threads),
                name=describe_workers(rows),
                method=options.start_method,
                daemon=options.daemon,
                grace=_GRACE,
                siblings=self._children,
            )
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise ArgumentError(
                f"create_env_fn of worker {rows[0]} cannot be sent to a process: {error}",
                hint="create objects that cannot be pickled inside the function; "
                f"{_IN_MAIN_PROCESS}",
            ) from error
        self._selector.register(child.connection, selectors.EVENT_READ, (index, False))
        self._selector.register(child.sentinel, selectors.EVENT_READ, (index, True))
        return child

    def _await_ready(self) -> list[EnvMetaData]:
        indices = range(len(self._children))
        limit = self.options.timeout
        # The time for imports in a new process does not count against the env's timeout.
        self._wait(indices, _STARTING, None if limit is None else max(limit, _IMPORT_TIMEOUT))
        replies = self._wait(indices, _CREATING, limit)
        return [metadata for index in indices for metadata in protocol.unpack(replies[index])]

    def request(self, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        """Send messages to the workers of these indices, and wait for their replies.

        Raises:
            WorkerError: A worker raised an error or exited. All are ended.
            WorkerTimeoutError: A worker did not reply in time. All are ended.
        """
        operation = ""
        try:
            for index, message in messages.items():
                operation = protocol.COMMANDS[message[:1]]
                self._send(index, message, operation)
            return self._wait(messages, operation, self.options.timeout)
        except BaseException:
            self.kill()
            raise

    def attach(self, kind: bytes, contents: Mapping[int, object]) -> None:
        """Send objects with shared memory in them; Ctrl-C waits until the workers have them."""
        try:
            operation = protocol.COMMANDS[kind]
            # A worker fetches the memory from a thread of this process, which would print a
            # traceback if the worker were killed meanwhile.
            with delay_interrupts():
                for index, content in contents.items():
                    self._send(index, kind, operation)
                    self._children[index].connection.send(content)
                self._wait(contents, operation, self.options.timeout)
        except BaseException:
            self.kill()
            raise

    def _send(self, index: int, message: bytes, operation: str) -> None:
        try:
            self._children[index].connection.send_bytes(message)
        except OSError:
            raise self._exit_error(index, operation) from None

    def _wait(
        self, workers: Iterable[int], operation: str, limit: float | None
    ) -> dict[int, bytes]:
        """Wait for the replies of some workers. The limit restarts with each reply."""
        requested = set(workers)
        replies = {index: self._early.pop(index) for index in requested if index in self._early}
        pending = requested - set(replies)
        deadline = None if limit is None else time.monotonic() + limit
        while pending:
            remaining = None if deadline is None else deadline - time.monotonic()
            is_open = remaining is None or remaining > 0
            events = self._selector.select(remaining) if is_open else []
            if not events and deadline is not None and time.monotonic() >= deadline:
                raise WorkerTimeoutError(
                    f"{describe_workers(self.groups[min(pending)])} did not respond within "
                    f"{limit:g} s during {operation}",
                    hint="increase worker_timeout if the env is slow; in a pipeline it is a field "
                    "of env",
                )
            for key, _ in events:
                index, has_ended = key.data
                connection = self._children[index].connection
                if has_ended and connection.poll():
                    continue
                # A worker that has started creates its env while others still start.
                has_started = operation == _STARTING and index not in pending
                current = _CREATING if has_started else operation
                try:
                    reply = b"" if has_ended else connection.recv_bytes()
                except (EOFError, OSError):
                    reply = b""
                if not reply:
                    raise self._exit_error(index, current)
                if reply[:1] == protocol.FAILED:
                    raise _reply_error(self.groups[index], reply, current)
                (replies if index in pending else self._early)[index] = reply
                pending.discard(index)
                # A reply shows that the machine is only slow.
                deadline = None if limit is None else time.monotonic() + limit
        return replies

    def _exit_error(self, index: int, operation: str) -> WorkerError:
        reason = self._children[index].exit_reason
        hint = reason.hint
        if operation == _STARTING:
            hint = "does the script run its work under if __name__ == '__main__'?"
        name = describe_workers(self.groups[index])
        return WorkerError(f"{name} {reason} during {operation}", hint=hint)

    def close(self) -> None:
        """Ask the workers to close their envs and exit; kill them after a timeout."""
        self._finalizer()

    def kill(self) -> None:
        """End all workers immediately."""
        with delay_interrupts():
            kill_all(self._children)
            self._finalizer()


def _reply_error(rows: range, reply: bytes, operation: str) -> BaseException:
    failure: protocol.Failure = protocol.unpack(reply)
    index = rows[min(failure.place, len(rows) - 1)]
    # Raise the error that creating the env in this process would raise.
    is_original = operation == _CREATING and failure.is_tdx_error()
    error = failure.original(index) if is_original else failure.to_worker_error(index, operation)
    if operation == _CREATING and isinstance(error, TdxError) and error.hint == ENV_ERROR_HINT:
        error.hint = _CREATING_HINT
    return error


def _shut_down(
    children: list[FunctionChild], selector: selectors.BaseSelector, shutdown_timeout: float
) -> None:
    try:
        for child in children:
            with suppress(OSError):
                child.connection.send_bytes(protocol.CLOSE)
        deadline = time.monotonic() + shutdown_timeout
        for child in children:
            child.wait(max(deadline - time.monotonic(), 0.0))
    finally:
        with delay_interrupts():
            kill_all(children)
            selector.close()
            for child in children:
                child.connection.close()
            children.clear()
