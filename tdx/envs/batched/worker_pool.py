"""Pool of worker processes: start, requests and shutdown."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import selectors
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any

import torch

from tdx.core.envs.failures import ENV_ERROR_HINT
from tdx.envs.batched import protocol
from tdx.envs.batched.env_creator import EnvFactory
from tdx.envs.batched.metadata import EnvMetaData
from tdx.envs.batched.process_options import ProcessOptions, describe_workers
from tdx.envs.batched.worker import WorkerSettings, delay_interrupts, run_worker
from tdx.foundation.errors import ArgumentError, TdxError, WorkerError, WorkerTimeoutError
from tdx.foundation.processes import safe_path

_STARTING = "startup"
_CREATING = "env construction"
_START_AGAIN = "run it again: the system kills processes when memory runs out"
_IN_MAIN_PROCESS = "SerialEnv, or --batching serial, runs the envs in the main process"
_CREATING_HINT = f"{ENV_ERROR_HINT}; {_IN_MAIN_PROCESS}"
_IMPORT_TIMEOUT = 120.0
_TERMINATE_TIMEOUT = 2.0
_EXIT_TIMEOUT = 1.0


@dataclass(frozen=True, eq=False)
class _Worker:
    index: int
    rows: range
    process: BaseProcess
    connection: Connection


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
        pids = [worker.process.pid for worker in self._workers]
        return [pid for pid in pids if pid is not None]

    def _start(self) -> None:
        # Started first, because starting it would deliver the delayed interrupts.
        with safe_path():
            resource_tracker.ensure_running()
        if self.options.start_method == "forkserver":
            prepare_fork_server()
        for index in range(len(self.groups)):
            # A worker that is not in the list yet would not be ended by an interrupt.
            with delay_interrupts():
                self._workers.append(self._start_one(index))

    def _start_one(self, index: int) -> _Worker:
        context: Any = multiprocessing.get_context(self.options.start_method)
        rows = self.groups[index]
        settings = WorkerSettings(
            # Distinct for each env, and it follows torch.manual_seed.
            seed=(torch.initial_seed() + 1 + rows[0]) % 2**63,
            num_threads=self.options.threads,
            environ=dict(os.environ),
        )
        factories = [self._factories[row] for row in rows]
        mine, theirs = context.Pipe()
        inherited = [worker.connection for worker in self._workers] + [mine]
        others = inherited if self.options.start_method == "fork" else []
        process = context.Process(
            target=run_worker,
            args=(factories, theirs, settings, others),
            name=f"tdx-worker-{index}",
            daemon=self.options.daemon,
        )
        try:
            # Starts a fork server again that was killed.
            with safe_path():
                process.start()
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise ArgumentError(
                f"create_env_fn of worker {rows[0]} cannot be sent to a process: {error}",
                hint="create objects that cannot be pickled inside the function; "
                f"{_IN_MAIN_PROCESS}",
            ) from error
        except (EOFError, ConnectionError) as error:
            mine.close()
            name = describe_workers(rows)
            raise WorkerError(
                f"{name} could not be started: the fork server was killed", hint=_START_AGAIN
            ) from error
        finally:
            theirs.close()
        self._selector.register(mine, selectors.EVENT_READ, (index, False))
        self._selector.register(process.sentinel, selectors.EVENT_READ, (index, True))
        return _Worker(index, rows, process, mine)

    def restart(self, index: int) -> None:
        """Start a process again that has exited; its envs are new ones."""
        old = self._workers[index]
        self._unregister(old)
        self._exited.pop(index, None)
        old.connection.close()
        with delay_interrupts():
            _terminate([old])
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
                self._workers[index].connection.send(content)
            self._gather(contents, operation, self.options.timeout)
        except BaseException:
            self.kill()
            raise

    def _send(self, index: int, message: bytes, operation: str) -> None:
        try:
            self._workers[index].connection.send_bytes(message)
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
                if ended and self._workers[index].connection.poll():
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
        for source in (worker.connection, worker.process.sentinel):
            if source in self._selector.get_map():
                self._selector.unregister(source)

    def _receive(self, index: int) -> bytes | None:
        try:
            return self._workers[index].connection.recv_bytes()
        except (EOFError, OSError):
            return None

    def _exit_error(self, index: int, operation: str) -> WorkerError:
        process = self._workers[index].process
        process.join(_EXIT_TIMEOUT)
        code = process.exitcode
        hint = None
        if operation == _STARTING:
            hint = "does the script run its work under if __name__ == '__main__'?"
        elif code == -signal.SIGKILL:
            hint = "the system kills processes when memory runs out"
        name = describe_workers(self.groups[index])
        return WorkerError(f"{name} {_describe_exit(code)} during {operation}", hint=hint)

    def close(self) -> None:
        """Ask the workers to close their envs and exit; kill them after a timeout."""
        self._finalizer()

    def kill(self) -> None:
        """End all workers immediately."""
        with delay_interrupts():
            _terminate(self._workers)
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


def _describe_exit(code: int | None) -> str:
    if code is None:
        return "exited"
    if code >= 0:
        return f"exited with code {code}"
    names = {each.value: each.name for each in signal.Signals}
    return f"was killed by {names.get(-code, f'signal {-code}')}"


def prepare_fork_server() -> None:
    """Start the fork server, which imports torch once for all processes that it starts."""
    multiprocessing.set_forkserver_preload(["tdx.envs.batched.worker"])
    # The fork server and its children inherit the blocked interrupts; otherwise both would print
    # a traceback.
    with delay_interrupts(), safe_path():
        forkserver.ensure_running()


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
            _request_close(worker)
        _join(workers, shutdown_timeout)
    finally:
        with delay_interrupts():
            _terminate(workers)
            selector.close()
            for worker in workers:
                worker.connection.close()
            workers.clear()


def _request_close(worker: _Worker) -> None:
    try:
        worker.connection.send_bytes(protocol.CLOSE)
    except OSError:
        return


def _terminate(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        if worker.process.is_alive():
            worker.process.terminate()
    _join(workers, _TERMINATE_TIMEOUT)
    for worker in workers:
        if worker.process.is_alive():
            worker.process.kill()
    _join(workers, _TERMINATE_TIMEOUT)


def _join(workers: Sequence[_Worker], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for worker in workers:
        worker.process.join(max(deadline - time.monotonic(), 0.0))
