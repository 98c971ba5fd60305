"""Engines that run numbered tasks in other processes: local ones, Ray, or Slurm.

An engine only starts and watches processes. The tasks are the shards of a dump; the settings of a
sweep are tasks of this machine only.
"""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import chdir, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import cloudpickle

from tdx.foundation.errors import (
    ArgumentError,
    MissingPackageError,
    WorkerError,
    did_you_mean,
    get_first_line,
    install_extra,
    summarize_error,
)
from tdx.foundation.processes import FunctionChild, delay_interrupts, kill_all, usable_cores
from tdx.foundation.safe_path import safe_path

Item = TypeVar("Item")
Returned = TypeVar("Returned")
Returned_co = TypeVar("Returned_co", covariant=True)
_KILLED_HINT = "the system kills processes when memory runs out"
_MAIN_HINT = f"{_KILLED_HINT}; a script needs if __name__ == '__main__'"
_RAY_ADDRESS = "RAY_ADDRESS"
_CONNECT_SECONDS = 5.0
_SLURM_MINUTES = 24 * 60
_SLURM_MEMORY_GB = 4
_POLL_SECONDS = 0.5


class Job(Protocol[Returned_co]):
    """Function of the number of a task, which is sent to other processes.

    Attributes:
        noun: What a task is, in error messages.
    """

    @property
    def noun(self) -> str: ...
    def __call__(self, task: int, /) -> Returned_co: ...


class ClusterJob(Job[Returned_co], Protocol[Returned_co]):
    """A job that Slurm can run too.

    Attributes:
        log_folder: Folder for the logs of Slurm.
    """

    @property
    def log_folder(self) -> Path: ...


class Engine(Protocol[Returned]):
    """Runs tasks in other processes.

    Attributes:
        slots: Largest number of tasks to submit before others have ended. ``None``: unlimited.
    """

    slots: int | None

    def submit(self, tasks: Sequence[int]) -> None:
        """Start tasks."""

    def collect(self, seconds: float) -> list[tuple[int, Returned | WorkerError]]:
        """Return the tasks that ended since the last call, with what the job returned.

        Waits for the first one. A task whose process died has an error instead.

        Args:
            seconds: Longest time to wait.
        """

    def close(self) -> None:
        """End all processes that still run."""


class LocalEngine(Generic[Returned]):
    """Runs tasks in processes of this machine.

    Args:
        job: Job to run.
        workers: Number of processes. ``None``: one per CPU core.
    """

    def __init__(self, job: Job[Returned], workers: int | None = None) -> None:
        self.slots: int | None = workers or usable_cores()
        self._job, self._pickled = job, _pickle(job)
        self._idle: list[FunctionChild] = []
        self._running: dict[Connection, tuple[int, FunctionChild]] = {}

    def submit(self, tasks: Sequence[int]) -> None:
        for task in tasks:
            # An interrupt in between would leave a process that close() does not know.
            with delay_interrupts():
                child = self._idle.pop() if self._idle else self._start()
                self._running[child.connection] = (task, child)
                # A process that has been killed while it was idle is noticed in collect().
                with suppress(OSError):
                    child.connection.send(task)

    def _start(self) -> FunctionChild:
        return FunctionChild(
            _run_tasks,
            (self._pickled,),
            name=f"the process of a {self._job.noun}",
            preload=[type(self._job).__module__],
        )

    def collect(self, seconds: float) -> list[tuple[int, Returned | WorkerError]]:
        collected: list[tuple[int, Returned | WorkerError]] = []
        for connection in wait(list(self._running), seconds):
            assert isinstance(connection, Connection)
            task, child = self._running.pop(connection)
            try:
                result, error = connection.recv()
            except (EOFError, OSError):
                reason = child.exit_reason
                message = f"the process of {self._job.noun} {task} {reason}"
                collected.append((task, WorkerError(message, hint=_MAIN_HINT)))
                connection.close()
                continue
            self._idle.append(child)
            if error is not None:
                raise error
            collected.append((task, result))
        return collected

    def close(self) -> None:
        children = [*self._idle, *(child for _, child in self._running.values())]
        kill_all(children)
        for child in children:
            child.connection.close()
        self._idle, self._running = [], {}


def _run_tasks(connection: Connection, job: bytes) -> None:
    """Run the tasks whose numbers the parent sends, until it closes the connection."""
    with suppress(EOFError, OSError):
        while True:
            task, error = connection.recv(), None
            try:
                result = _run_pickled(job, task)
            except Exception as raised:
                result, error = None, raised
            try:
                connection.send((result, error))
            except (pickle.PicklingError, TypeError, AttributeError) as refused:
                reason = summarize_error(error or refused)
                connection.send((None, WorkerError(f"the result cannot be sent: {reason}")))


def _pickle(job: Job[Any]) -> bytes:
    """Serialize a job for other processes.

    Raises:
        ArgumentError: It has an object that cannot be pickled.
    """
    try:
        pickled = cloudpickle.dumps(job)
    except Exception as error:
        raise ArgumentError(
            f"cannot be sent to other processes: {summarize_error(error)}",
            hint="name envs, stages and policies by their import path, or run it in this process",
        ) from error
    # The path has the current folder only if a user's code is there, as its last entry.
    path = [entry or os.getcwd() for entry in sys.path]
    return pickle.dumps((path, pickled))


def _run_pickled(job: bytes, task: int) -> Any:
    path, pickled = pickle.loads(job)
    sys.path += [entry for entry in path if entry not in sys.path]
    return pickle.loads(pickled)(task)


@dataclass(frozen=True, slots=True)
class _Mapping(Generic[Item, Returned]):
    function: Callable[[Item], Returned]
    items: Sequence[Item]
    noun: str

    def __call__(self, task: int, /) -> Returned:
        return self.function(self.items[task])


def map_in_processes(
    function: Callable[[Item], Returned], items: Sequence[Item], noun: str
) -> list[Returned]:
    """Apply a function to items in processes of this machine, one per CPU core at most.

    Raises:
        WorkerError: A process was killed.
    """
    engine = LocalEngine(_Mapping(function, items, noun))
    results: dict[int, Returned] = {}
    for task, result in run_tasks(engine, deque(range(len(items)))):
        if isinstance(result, WorkerError):
            raise result
        results[task] = result
    return [results[task] for task in range(len(items))]


def run_tasks(
    engine: Engine[Returned], waiting: deque[int], on_wait: Callable[[], object] | None = None
) -> Generator[tuple[int, Returned | WorkerError]]:
    """Run tasks; yield each with its result when it has ended, and close the engine.

    The caller may put a waiting task in again, or take out one that has not started. ``on_wait`` is
    called about twice per second.
    """
    running = 0
    try:
        while waiting or running:
            free = len(waiting) if engine.slots is None else engine.slots - running
            tasks = [waiting.popleft() for _ in range(min(free, len(waiting)))]
            if tasks:
                engine.submit(tasks)
            running += len(tasks)
            for task, result in engine.collect(_POLL_SECONDS):
                running -= 1
                yield task, result
            if on_wait is not None:
                on_wait()
    finally:
        engine.close()


class RayEngine(Generic[Returned]):
    """Runs tasks on a Ray cluster that is already running.

    The cluster is that of ``RAY_ADDRESS``, or the one on this machine.

    Args:
        job: Job to run.
        workers: Number of tasks at a time. ``None``: as many as the cluster has CPU cores for.

    Raises:
        MissingPackageError: Ray is not installed.
        WorkerError: No cluster is running.
    """

    def __init__(self, job: Job[Returned], workers: int | None = None) -> None:
        self.slots = workers
        try:
            import ray
        except ImportError as error:
            raise _missing_package("ray") from error
        self._ray: Any = ray
        self._refs: dict[Any, int] = {}
        self._is_mine = not ray.is_initialized()
        if self._is_mine:
            address = os.environ.get(_RAY_ADDRESS, "auto")
            try:
                host, _, port = address.removeprefix("ray://").rpartition(":")
                if host and port.isdecimal():
                    # Ray itself waits for half a minute.
                    place = (host.strip("[]"), int(port))
                    socket.create_connection(place, _CONNECT_SECONDS).close()
                # Ray puts the current folder first on the path of its workers.
                with chdir(os.sep):
                    ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
            except (OSError, ValueError, RuntimeError) as error:
                where = "on this machine" if address == "auto" else f"at {address}"
                raise WorkerError(
                    f"no Ray cluster is running {where}",
                    hint=f"start one with `ray start --head`, or set {_RAY_ADDRESS}",
                ) from error
        # Ray would repeat a task without reporting it.
        self._task: Any = ray.remote(max_retries=0, num_cpus=1)(_run_pickled)
        self._job, self._pickled = job, _pickle(job)

    def submit(self, tasks: Sequence[int]) -> None:
        for task in tasks:
            self._refs[self._task.remote(self._pickled, task)] = task

    def collect(self, seconds: float) -> list[tuple[int, Returned | WorkerError]]:
        refs = list(self._refs)
        ready, _ = self._ray.wait(refs, num_returns=1, timeout=seconds)
        if ready:
            ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0)
        collected: list[tuple[int, Returned | WorkerError]] = []
        for ref in ready:
            task = self._refs.pop(ref)
            try:
                collected.append((task, self._ray.get(ref)))
            except self._ray.exceptions.RayError as error:
                collected.append((task, _lost(self._job, task, error)))
        return collected

    def close(self) -> None:
        for ref in self._refs:
            with suppress(Exception):
                self._ray.cancel(ref, force=True)
        self._refs = {}
        if self._is_mine:
            self._ray.shutdown()


def _lost(job: Job[Any], task: int, error: BaseException) -> WorkerError:
    reason = type(error).__name__
    return WorkerError(f"the process of {job.noun} {task} was lost: {reason}", hint=_KILLED_HINT)


class SlurmEngine(Generic[Returned]):
    """Runs tasks as array jobs of Slurm, through submitit.

    Slurm reads the partition, account, time limit and memory from ``SBATCH_PARTITION``,
    ``SBATCH_ACCOUNT``, ``SBATCH_TIMELIMIT`` and ``SBATCH_MEM_PER_NODE``.

    Args:
        job: Job to run.
        workers: Number of jobs at a time. ``None``: as Slurm schedules them.
        cluster: ``slurm``, or ``local`` for processes of this machine.

    Raises:
        MissingPackageError: submitit is not installed.
        WorkerError: Slurm is not available on this machine.
    """

    def __init__(
        self, job: ClusterJob[Returned], workers: int | None = None, cluster: str = "slurm"
    ) -> None:
        self.slots = workers
        try:
            import submitit
        except ImportError as error:
            raise _missing_package("submitit", extra="slurm") from error
        if cluster == "slurm" and shutil.which("sbatch") is None:
            raise WorkerError(
                "Slurm is not available: this machine has no sbatch",
                hint="run it on a login node, or use --on local",
            )
        self._job, self._run = job, partial(_run_pickled, _pickle(job))
        self._jobs: list[tuple[int, Any]] = []
        self._executor = submitit.AutoExecutor(job.log_folder, cluster)
        self._executor.update_parameters(
            name="tdx", timeout_min=_SLURM_MINUTES, cpus_per_task=1, mem_gb=_SLURM_MEMORY_GB
        )

    def submit(self, tasks: Sequence[int]) -> None:
        from submitit.core.utils import FailedJobError

        if not tasks:
            return
        try:
            with safe_path():
                jobs = self._executor.map_array(self._run, tasks)
        except FailedJobError as error:
            raise WorkerError(
                f"Slurm refuses the jobs: {get_first_line(error)}",
                hint="set SBATCH_PARTITION, SBATCH_ACCOUNT or SBATCH_TIMELIMIT as it requires, or "
                "submit fewer at a time: --workers N",
            ) from error
        self._jobs += zip(tasks, jobs, strict=True)

    def collect(self, seconds: float) -> list[tuple[int, Returned | WorkerError]]:
        deadline = time.monotonic() + seconds
        while True:
            done = [(task, job) for task, job in self._jobs if job.done()]
            if done or time.monotonic() >= deadline:
                break
            time.sleep(min(seconds, 0.2))
        self._jobs = [entry for entry in self._jobs if entry not in done]
        return [(task, self._read(task, job)) for task, job in done]

    def _read(self, task: int, job: Any) -> Returned | WorkerError:
        from submitit.core.utils import FailedJobError, UncompletedJobError

        try:
            result: Returned = job.result()
        except (FailedJobError, UncompletedJobError) as error:
            return _lost(self._job, task, error)
        return result

    def close(self) -> None:
        for _, job in self._jobs:
            with suppress(Exception):
                job.cancel()
        self._jobs = []


def _missing_package(package: str, extra: str | None = None) -> MissingPackageError:
    return MissingPackageError(f"{package} is not installed", hint=install_extra(extra or package))


ENGINES: dict[str, Callable[[Any, int | None], Engine[Any]]] = {
    "local": LocalEngine,
    "ray": RayEngine,
    "slurm": SlurmEngine,
}


def find_engine(name: str) -> Callable[[ClusterJob[Returned], int | None], Engine[Returned]]:
    """Return the function that creates an engine from a job and the number of workers.

    Raises:
        ArgumentError: The engine is unknown.
    """
    if name not in ENGINES:
        raise ArgumentError(
            f"unknown engine {name!r}",
            hint=did_you_mean(name, ENGINES, f"use one of {', '.join(ENGINES)}"),
        )
    return ENGINES[name]
