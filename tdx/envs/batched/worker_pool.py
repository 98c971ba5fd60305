"""Worker processes: starting them, asking them, and never leaving one behind."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import selectors
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize

import torch

from tdx.envs.batched import protocol
from tdx.envs.batched.factories import EnvFactory
from tdx.envs.batched.metadata import EnvMetaData
from tdx.envs.batched.shared_memory import TensorBlock
from tdx.envs.batched.worker import WorkerSettings, interrupts_held_back, run_worker
from tdx.errors import ArgumentError, WorkerError, WorkerTimeoutError, did_you_mean

_STARTING = "starting"
_MAKING = "making its env"
_IMPORT_WITHIN = 120.0
_KILL_AFTER = 2.0
_EXIT_WITHIN = 1.0


@dataclass(frozen=True)
class ProcessOptions:
    """How the worker processes are run.

    Args:
        start_method: ``forkserver``, ``spawn`` or ``fork``.
        threads: torch threads of each worker.
        daemon: whether they are daemons, which may not have processes of their own.
        timeout: seconds without any answer after which a worker counts as hung; ``None`` for
            never.
        shutdown_timeout: seconds that they get to close their envs.
    """

    start_method: str
    threads: int
    daemon: bool
    timeout: float | None
    shutdown_timeout: float


def start_method_or_default(name: str | None) -> str:
    """The start method to use.

    By default it is ``forkserver``: workers are forked from a fresh process that has torch
    loaded and runs no threads. ``fork`` would copy the parent, whose locks may be held by
    threads that do not exist in the copy and whose CUDA state cannot be used there; ``spawn``
    is as safe, but each worker imports torch anew.

    Raises:
        ArgumentError: there is no such method on this system.
    """
    known = multiprocessing.get_all_start_methods()
    if name is None:
        return "forkserver" if "forkserver" in known else "spawn"
    if name not in known:
        raise ArgumentError(
            f"mp_start_method {name!r} does not exist here",
            hint=did_you_mean(name, known, f"one of {', '.join(known)}"),
        )
    return name


@dataclass(frozen=True, eq=False)
class _Worker:
    index: int
    process: BaseProcess
    connection: Connection


class WorkerPool:
    """One process for each env.

    Whatever goes wrong with one of them, and whenever the parent is interrupted while it waits,
    all of them are ended before the error gets out.

    Args:
        factories: one for each worker.
        options: how to run them.
    """

    def __init__(self, factories: Sequence[EnvFactory], options: ProcessOptions) -> None:
        self._options = options
        self._workers: list[_Worker] = []
        # Answers that came before they were asked for.
        self._early: dict[int, bytes] = {}
        self._selector = selectors.DefaultSelector()
        # Runs when the pool is collected, and at exit before multiprocessing waits for children.
        self._finalizer = Finalize(
            self, _end, (self._workers, self._selector, options.shutdown_timeout), exitpriority=100
        )
        try:
            self._start(factories)
            self.metadata: list[EnvMetaData] = self._await_ready()
        except BaseException:
            self.kill()
            raise

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        pids = [worker.process.pid for worker in self._workers]
        return [pid for pid in pids if pid is not None]

    def _start(self, factories: Sequence[EnvFactory]) -> None:
        context = multiprocessing.get_context(self._options.start_method)
        # Started first, because its start would let held back interrupts through.
        resource_tracker.ensure_running()
        if self._options.start_method == "forkserver":
            _preload()
        for index, factory in enumerate(factories):
            settings = WorkerSettings(
                # Distinct for each worker, and it follows torch.manual_seed.
                seed=(torch.initial_seed() + 1 + index) % 2**63,
                num_threads=self._options.threads,
                environ=dict(os.environ),
            )
            # A worker that is not in the list yet would not be ended by an interrupt.
            with interrupts_held_back():
                self._workers.append(self._start_one(context, index, factory, settings))

    def _start_one(
        self, context: BaseContext, index: int, factory: EnvFactory, settings: WorkerSettings
    ) -> _Worker:
        mine, theirs = context.Pipe()
        inherited = [worker.connection for worker in self._workers] + [mine]
        not_mine = inherited if self._options.start_method == "fork" else []
        process = context.Process(  # type: ignore[attr-defined]
            target=run_worker,
            args=(factory, theirs, settings, not_mine),
            name=f"tdx-worker-{index}",
            daemon=self._options.daemon,
        )
        try:
            process.start()
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise ArgumentError(
                f"create_env_fn of worker {index} cannot be sent to a process: {error}",
                hint="let the function itself make what cannot be pickled",
            ) from error
        finally:
            theirs.close()
        self._selector.register(mine, selectors.EVENT_READ, (index, False))
        self._selector.register(process.sentinel, selectors.EVENT_READ, (index, True))
        return _Worker(index, process, mine)

    def _await_ready(self) -> list[EnvMetaData]:
        everyone = range(len(self._workers))
        limit = self._options.timeout
        # What a fresh process imports is not the env's to answer for.
        self._gather(everyone, _STARTING, None if limit is None else max(limit, _IMPORT_WITHIN))
        replies = self._gather(everyone, _MAKING, limit)
        return [protocol.unpack(replies[index]) for index in everyone]

    def ask(self, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        """Send each worker its message and wait for every answer.

        Raises:
            WorkerError: a worker raised or died; all are ended.
            WorkerTimeoutError: a worker did not answer; all are ended.
        """
        doing = ""
        try:
            for index, message in messages.items():
                doing = protocol.COMMANDS[message[:1]]
                self._send(index, message, doing)
            return self._gather(messages, doing, self._options.timeout)
        except BaseException:
            self.kill()
            raise

    def attach(self, block: TensorBlock) -> None:
        """Let every worker see the same memory.

        Raises:
            WorkerError: a worker raised or died; all are ended.
        """
        try:
            for worker in self._workers:
                self._send(worker.index, protocol.ATTACH, _STARTING)
                worker.connection.send((block, worker.index))
            self._gather(range(len(self._workers)), _STARTING, self._options.timeout)
        except BaseException:
            self.kill()
            raise

    def _send(self, index: int, message: bytes, doing: str) -> None:
        try:
            self._workers[index].connection.send_bytes(message)
        except OSError:
            raise self._death(index, doing) from None

    def _gather(self, asked: Iterable[int], doing: str, limit: float | None) -> dict[int, bytes]:
        asked = list(asked)
        replies = {index: self._early.pop(index) for index in asked if index in self._early}
        pending = set(asked) - set(replies)
        deadline = None if limit is None else time.monotonic() + limit
        while pending:
            left = None if deadline is None else deadline - time.monotonic()
            events = self._selector.select(left) if left is None or left > 0 else []
            if not events and deadline is not None and time.monotonic() >= deadline:
                raise _hung(min(pending), doing, limit)
            for key, _ in events:
                index, ended = key.data
                if ended and self._workers[index].connection.poll():
                    continue
                reply = None if ended else self._received(index)
                # A worker that has started is at what comes next, while others still start.
                busy_with = _MAKING if doing == _STARTING and index not in pending else doing
                if reply is None:
                    raise self._death(index, busy_with)
                if reply[:1] == protocol.FAILED:
                    raise _failure(index, reply, busy_with)
                (replies if index in pending else self._early)[index] = reply
                pending.discard(index)
                # Workers that answer show that the machine is only slow.
                deadline = None if limit is None else time.monotonic() + limit
        return replies

    def _received(self, index: int) -> bytes | None:
        try:
            return self._workers[index].connection.recv_bytes()
        except (EOFError, OSError):
            return None

    def _death(self, index: int, doing: str) -> WorkerError:
        process = self._workers[index].process
        process.join(_EXIT_WITHIN)
        code = process.exitcode
        hint = None
        if doing == _STARTING:
            hint = "does the script start its work under if __name__ == '__main__'?"
        elif code == -signal.SIGKILL:
            hint = "the system kills processes when memory runs out"
        return WorkerError(f"worker {index} {_manner_of_death(code)} in {doing}", hint=hint)

    def close(self) -> None:
        """Let the workers close their envs and end; end those that do not."""
        self._finalizer()

    def kill(self) -> None:
        """End every worker at once."""
        with interrupts_held_back():
            _end_at_once(self._workers)
            self._finalizer()


def _failure(index: int, reply: bytes, doing: str) -> BaseException:
    failure: protocol.Failure = protocol.unpack(reply)
    # The same error that making the env in this process would raise.
    if doing == _MAKING and failure.is_own():
        return failure.original(index)
    return failure.raised_in(index, doing)


def _manner_of_death(code: int | None) -> str:
    if code is None:
        return "died"
    if code >= 0:
        return f"died with exit code {code}"
    names = {each.value: each.name for each in signal.Signals}
    return f"was ended by {names.get(-code, f'signal {-code}')}"


def _preload() -> None:
    multiprocessing.set_forkserver_preload(["tdx.envs.batched.worker"])
    # It keeps interrupts blocked, and so does what it forks: both would print a traceback.
    with interrupts_held_back():
        forkserver.ensure_running()


def _hung(index: int, doing: str, limit: float | None) -> WorkerTimeoutError:
    return WorkerTimeoutError(
        f"worker {index} did not answer in {doing} within {limit:g} s",
        hint="set a larger worker_timeout if the env is that slow; a pipeline has it under env",
    )


def _end(workers: list[_Worker], selector: selectors.BaseSelector, shutdown_timeout: float) -> None:
    try:
        for worker in workers:
            _ask_to_close(worker)
        _join(workers, shutdown_timeout)
    finally:
        with interrupts_held_back():
            _end_at_once(workers)
            selector.close()
            for worker in workers:
                worker.connection.close()
            workers.clear()


def _ask_to_close(worker: _Worker) -> None:
    try:
        worker.connection.send_bytes(protocol.CLOSE)
    except OSError:
        return


def _end_at_once(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        if worker.process.is_alive():
            worker.process.terminate()
    _join(workers, _KILL_AFTER)
    for worker in workers:
        if worker.process.is_alive():
            worker.process.kill()
    _join(workers, _KILL_AFTER)


def _join(workers: Sequence[_Worker], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for worker in workers:
        worker.process.join(max(deadline - time.monotonic(), 0.0))
