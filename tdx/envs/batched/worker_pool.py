"""Pool of worker processes: start, requests and shutdown."""

from __future__ import annotations

import pickle
import selectors
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.util import Finalize
from typing import Any

import torch

from tdx.core.envs.failures import ENV_ERROR_HINT
from tdx.envs.batched import protocol
from tdx.envs.batched.env_creator import EnvFactory
from tdx.envs.batched.metadata import EnvMetaData
from tdx.envs.batched.process_options import ProcessOptions, describe_workers
from tdx.envs.batched.worker import WorkerSettings, run_worker
from tdx.foundation.errors import ArgumentError, TdxError, WorkerError, WorkerTimeoutError
from tdx.foundation.processes import FunctionChild, delay_interrupts, kill_all

_STARTING = "startup"
_CREATING = "env construction"
_IN_MAIN_PROCESS = "SerialEnv, or --batching serial, runs the envs in the main process"
_CREATING_HINT = f"{ENV_ERROR_HINT}; {_IN_MAIN_PROCESS}"
_IMPORT_TIMEOUT = 120.0
_GRACE = 5.0
"""Seconds in which a worker may close its envs after its parent has exited."""


@dataclass(frozen=True, eq=False)
class _Worker:
    index: int
    rows: range
    child: FunctionChild


class WorkerPool:
    """Worker processes, each with some of the envs.

    If a worker fails, or the parent is interrupted while waiting, all workers are ended before
    the error is raised.

    Args:
        factories: Factory of each env.
        groups: Envs of each process.
        options: Options of the processes.
    """

    def __init__(
        self, factories: Sequence[EnvFactory], groups: Sequence[range], options: ProcessOptions
    ) -> None:
        self.options = options
        self.groups = tuple(groups)
        self.snapshots: dict[int, bytes] = {}
        self._factories = factories
        self._workers: list[_Worker] = []
        # Replies that arrived before they were requested.
        self._early: dict[int, bytes] = {}
        # Operation during which a process has exited.
        self._exited: dict[int, str] = {}
        self._selector = selectors.DefaultSelector()
        # Runs when the pool is collected, and at exit before multiprocessing waits for children.
        self._finalizer = Finalize(
            self,
            _shut_down,
            (self._workers, self._selector, options.shutdown_timeout),
            exitpriority=100,
        )
        try:
            self._start()
            self.metadata: list[EnvMetaData] = self._await_ready()
        except BaseException:
            self.kill()
            raise

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.child.pid for worker in self._workers]

    def _start(self) -> None:
        for index in range(len(self.groups)):
            # A worker that is not in the list yet would not be ended by an interrupt.
            with delay_interrupts():
                self._workers.append(self._start_one(index))

    def _start_one(self, index: int) -> _Worker:
        rows, options = self.groups[index], self.options
        # Distinct for each env, and it follows torch.manual_seed.
        seed = (torch.initial_seed() + 1 + rows[0]) % 2**63
        factories = [self._factories[row] for row in rows]
        try:
            child = FunctionChild(
                run_worker,
                (factories, WorkerSettings(seed, options.threads)),
                name=describe_workers(rows),
                method=options.start_method,
                daemon=options.daemon,
                grace=_GRACE,
                siblings=[worker.child for worker in self._workers],
            )
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise ArgumentError(
                f"create_env_fn of worker {rows[0]} cannot be sent to a process: {error}",
                hint="create objects that cannot be pickled inside the function; "
                f"{_IN_MAIN_PROCESS}",
            ) from error
        self._selector.register(child.connection, selectors.EVENT_READ, (index, False))
        self._selector.register(child.sentinel, selectors.EVENT_READ, (index, True))
        return _Worker(index, rows, child)

    def restart(self, index: int) -> None:
        """Start a process again that has exited; its envs are new ones."""
        old = self._workers[index]
        self._unregister(old)
        self._exited.pop(index, None)
        old.child.connection.close()
        with delay_interrupts():
            old.child.kill()
            self._workers[index] = self._start_one(index)
        self._gather([index], _STARTING, _IMPORT_TIMEOUT)
        self._gather([index], _CREATING, self.options.timeout)

    def _await_ready(self) -> list[EnvMetaData]:
        indices = range(len(self._workers))
        limit = self.options.timeout
        # The time for imports in a new process does not count against the env's timeout.
        self._gather(indices, _STARTING, None if limit is None else max(limit, _IMPORT_TIMEOUT))
        replies = self._gather(indices, _CREATING, limit)
        return [each for index in indices for each in protocol.unpack(replies[index])]

    def request(
        self, messages: Mapping[int, bytes], recover: Callable[[int], bool] | None = None
    ) -> dict[int, bytes]:
        """Send a message to workers, and wait for their replies.

        Args:
            messages: Message for each process, by index.
            recover: Called with the index of a process that has exited; returns True if it was
                restarted and gets the message again.

        Raises:
            WorkerError: A worker raised an error or exited. All are ended.
            WorkerTimeoutError: A worker did not reply in time. All are ended.
        """
        operation = ""
        try:
            for index, message in messages.items():
                operation = protocol.COMMANDS[message[:1]]
                self._send(index, message, operation)
            while True:
                try:
                    return self._wait(messages, operation, self.options.timeout)
                except _ExitedError as exited:
                    if recover is None or not recover(exited.index):
                        raise self._exit_error(exited.index, exited.operation) from None
                    self._send(exited.index, messages[exited.index], operation)
        except BaseException:
            self.kill()
            raise

    def attach(self, kind: bytes, contents: Mapping[int, Any]) -> None:
        """Send objects with shared memory in them.

        Args:
            kind: Command of the protocol.
            contents: Object for each process, by index.

        Raises:
            WorkerError: A worker raised an error or exited. All are ended.
        """
        try:
            operation = protocol.COMMANDS[kind]
            for index, content in contents.items():
                self._send(index, kind, operation)
                self._workers[index].child.connection.send(content)
            self._gather(contents, operation, self.options.timeout)
        except BaseException:
            self.kill()
            raise

    def _send(self, index: int, message: bytes, operation: str) -> None:
        try:
            self._workers[index].child.connection.send_bytes(message)
        except OSError:
            raise self._exit_error(index, operation) from None

    def _gather(
        self, workers: Iterable[int], operation: str, limit: float | None
    ) -> dict[int, bytes]:
        try:
            return self._wait(workers, operation, limit)
        except _ExitedError as exited:
            raise self._exit_error(exited.index, exited.operation) from None

    def _wait(
        self, workers: Iterable[int], operation: str, limit: float | None
    ) -> dict[int, bytes]:
        """Wait for the replies of some workers. The limit restarts with each reply."""
        requested = set(workers)
        for index in requested & self._exited.keys():
            raise _ExitedError(index, self._exited[index])
        replies = {index: self._early.pop(index) for index in requested if index in self._early}
        pending = requested - set(replies)
        deadline = None if limit is None else time.monotonic() + limit
        while pending:
            remaining = None if deadline is None else deadline - time.monotonic()
            is_open = remaining is None or remaining > 0
            events = self._selector.select(remaining) if is_open else []
            if not events and deadline is not None and time.monotonic() >= deadline:
                raise _timeout_error(self.groups[min(pending)], operation, limit)
            for key, _ in events:
                index, ended = key.data
                if ended and self._workers[index].child.connection.poll():
                    continue
                reply = None if ended else self._receive(index)
                # A worker that has started creates its env while others still start.
                has_started = operation == _STARTING and index not in pending
                current = _CREATING if has_started else operation
                if reply is None:
                    self._unregister(self._workers[index])
                    self._exited[index] = current
                    if index in pending:
                        self._early.update(replies)
                        raise _ExitedError(index, current)
                    break
                if reply[:1] == protocol.FAILED:
                    raise _reply_error(self.groups[index], reply, current)
                if reply[:1] == protocol.SNAPSHOT:
                    self.snapshots[index] = reply
                    continue
                (replies if index in pending else self._early)[index] = reply
                pending.discard(index)
                # A reply shows that the machine is only slow.
                deadline = None if limit is None else time.monotonic() + limit
        return replies

    def _unregister(self, worker: _Worker) -> None:
        for source in (worker.child.connection, worker.child.sentinel):
            if source in self._selector.get_map():
                self._selector.unregister(source)

    def _receive(self, index: int) -> bytes | None:
        try:
            return self._workers[index].child.connection.recv_bytes()
        except (EOFError, OSError):
            return None

    def _exit_error(self, index: int, operation: str) -> WorkerError:
        reason = self._workers[index].child.exit_reason
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
            kill_all([worker.child for worker in self._workers])
            self._finalizer()


class _ExitedError(Exception):
    """A process has exited during an operation."""

    def __init__(self, index: int, operation: str) -> None:
        super().__init__(index, operation)
        self.index, self.operation = index, operation


def _reply_error(rows: range, reply: bytes, operation: str) -> BaseException:
    failure: protocol.Failure = protocol.unpack(reply)
    index = rows[min(failure.place, len(rows) - 1)]
    # Raise the error that creating the env in this process would raise.
    is_original = operation == _CREATING and failure.is_tdx_error()
    error = failure.original(index) if is_original else failure.to_worker_error(index, operation)
    if operation == _CREATING and isinstance(error, TdxError) and error.hint == ENV_ERROR_HINT:
        error.hint = _CREATING_HINT
    return error


def _timeout_error(rows: range, operation: str, limit: float | None) -> WorkerTimeoutError:
    return WorkerTimeoutError(
        f"{describe_workers(rows)} did not respond within {limit:g} s during {operation}",
        hint="increase worker_timeout if the env is slow; in a pipeline it is a field of env",
    )


def _shut_down(
    workers: list[_Worker], selector: selectors.BaseSelector, shutdown_timeout: float
) -> None:
    try:
        for worker in workers:
            with suppress(OSError):
                worker.child.connection.send_bytes(protocol.CLOSE)
        deadline = time.monotonic() + shutdown_timeout
        for worker in workers:
            worker.child.wait(max(deadline - time.monotonic(), 0.0))
    finally:
        with delay_interrupts():
            kill_all([worker.child for worker in workers])
            selector.close()
            for worker in workers:
                worker.child.connection.close()
            workers.clear()
