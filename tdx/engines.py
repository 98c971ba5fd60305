"""Engines that run numbered tasks in other processes: local ones, Ray, or Slurm.

An engine only starts and watches processes. The tasks are the shards of a dump, or the settings of
a sweep.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import chdir, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import cloudpickle

from tdx.envs.batched.process_options import resolve_start_method, usable_cores
from tdx.envs.batched.worker import delay_interrupts, end_with_parent, ignore_interrupts
from tdx.envs.batched.worker_pool import prepare_fork_server
from tdx.foundation.errors import (
    ArgumentError,
    MissingPackageError,
    WorkerError,
    did_you_mean,
    get_first_line,
    install_extra,
    summarize_error,
)
from tdx.foundation.processes import adopt_environ, safe_path

Item = TypeVar("Item")
Returned = TypeVar("Returned")
Returned_co = TypeVar("Returned_co", covariant=True)
_KILLED_HINT = "the system kills processes when memory runs out"
_MAIN_HINT = f"{_KILLED_HINT}; a script needs if __name__ == '__main__'"
_RAY_ADDRESS = "RAY_ADDRESS"
_CONNECT_SECONDS = 5.0
_SLURM_MINUTES = 24 * 60
_SLURM_MEMORY_GB = 4


class Job(Protocol[Returned_co]):
    """Function of the number of a task, which is sent to other processes.

    Attributes:
        noun: What a task is, in error messages.
        log_folder: Folder for the logs of Slurm.
        is_exclusive: True if each task needs a new process, and all cores of a machine.
        gpus: Number of GPUs of each task.
    """

    @property
    def noun(self) -> str: ...
    @property
    def log_folder(self) -> Path: ...
    @property
    def is_exclusive(self) -> bool: ...
    @property
    def gpus(self) -> int: ...
    def __call__(self, task: int, /) -> Returned_co: ...


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

    Each process has its own executor, so that a process that dies fails only its own task.

    Args:
        job: Job to run.
        workers: Number of processes. ``None``: one per CPU core, or one if the job is exclusive.
    """

    def __init__(self, job: Job[Returned], workers: int | None = None) -> None:
        self.slots: int | None = workers or (1 if job.is_exclusive else usable_cores())
        self._job, self._pickled = job, _pickle(job)
        self._idle: list[ProcessPoolExecutor] = []
        self._running: dict[Future[Any], tuple[int, ProcessPoolExecutor]] = {}

    def submit(self, tasks: Sequence[int]) -> None:
        for task in tasks:
            # An interrupt in between would leave a process that close() does not know.
            with delay_interrupts():
                executor = self._idle.pop() if self._idle else _process_pool(1)
                with _report_killed_server(), safe_path():
                    future = executor.submit(_run_pickled, self._pickled, task)
                self._running[future] = (task, executor)

    def collect(self, seconds: float) -> list[tuple[int, Returned | WorkerError]]:
        found: list[tuple[int, Returned | WorkerError]] = []
        for future in wait(self._running, seconds, "FIRST_COMPLETED").done:
            task, executor = self._running.pop(future)
            try:
                found.append((task, future.result()))
            except BrokenProcessPool:
                executor.shutdown(wait=False)
                message = f"the process of {self._job.noun} {task} was killed"
                found.append((task, WorkerError(message, hint=_MAIN_HINT)))
                continue
            if self._job.is_exclusive:
                executor.shutdown()
            else:
                self._idle.append(executor)
        return found

    def close(self) -> None:
        executors = [*self._idle, *(executor for _, executor in self._running.values())]
        for executor in executors:
            for process in list((executor._processes or {}).values()):
                process.kill()
            executor.shutdown(wait=True, cancel_futures=True)
        self._idle, self._running = [], {}


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


def map_in_processes(
    function: Callable[[Item], Returned], items: Sequence[Item], noun: str
) -> list[Returned]:
    """Apply a function to items in processes of this machine, one per CPU core at most.

    Args:
        function: Function that can be pickled.
        items: Its arguments.
        noun: What an item is, in error messages.

    Raises:
        WorkerError: A process was killed.
    """
    with _process_pool(len(items)) as pool:
        try:
            with _report_killed_server(), safe_path():
                results = pool.map(function, items)
            return list(results)
        except BrokenProcessPool as error:
            message = f"the process of one of {len(items)} {noun}s was killed"
            raise WorkerError(message, hint=_KILLED_HINT) from error


@contextmanager
def _report_killed_server() -> Iterator[None]:
    """Report that the fork server was killed while it started a process.

    Raises:
        WorkerError: It was.
    """
    try:
        yield
    except (EOFError, ConnectionError) as error:
        message = "a process could not be started: the fork server was killed"
        raise WorkerError(message, hint=_KILLED_HINT) from error


def _process_pool(workers: int) -> ProcessPoolExecutor:
    """Return an executor in processes of this machine, which end with this one.

    Args:
        workers: Number of processes, at most one per CPU core.
    """
    method = resolve_start_method(None)
    if method == "forkserver":
        prepare_fork_server()
    return ProcessPoolExecutor(
        min(workers, usable_cores()),
        multiprocessing.get_context(method),
        _prepare_process,
        (dict(os.environ), os.getcwd()),
    )


def _prepare_process(environ: dict[str, str], folder: str) -> None:
    ignore_interrupts()
    end_with_parent(grace=0.0)
    adopt_environ(environ)
    os.chdir(folder)


class RayEngine(Generic[Returned]):
    """Runs tasks on a Ray cluster that is already running.

    The cluster is that of ``RAY_ADDRESS``, or the one on this machine. A task of an exclusive job
    reserves as many CPU cores as the smallest machine has.

    Args:
        job: Job to run.
        workers: Number of tasks at a time. ``None``: as many as the cluster has CPU cores for, or
            one per machine if the job is exclusive.

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
            _connect_to_ray(ray)
        # Ray would repeat a task without reporting it.
        options: dict[str, Any] = {"max_retries": 0, "num_cpus": 1}
        if job.gpus:
            options["num_gpus"] = job.gpus
        if job.is_exclusive:
            nodes = [each["Resources"] for each in self._ray.nodes() if each["Alive"]]
            cores = [each["CPU"] for each in nodes if each.get("CPU")]
            self.slots = min(workers or len(cores), len(cores))
            options |= {"num_cpus": min(cores), "max_calls": 1, "scheduling_strategy": "SPREAD"}
        self._task: Any = ray.remote(**options)(_run_pickled)
        self._job, self._pickled = job, _pickle(job)

    def submit(self, tasks: Sequence[int]) -> None:
        for task in tasks:
            self._refs[self._task.remote(self._pickled, task)] = task

    def collect(self, seconds: float) -> list[tuple[int, Returned | WorkerError]]:
        refs = list(self._refs)
        ready, _ = self._ray.wait(refs, num_returns=1, timeout=seconds)
        if ready:
            ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0)
        found: list[tuple[int, Returned | WorkerError]] = []
        for ref in ready:
            task = self._refs.pop(ref)
            try:
                found.append((task, self._ray.get(ref)))
            except self._ray.exceptions.RayError as error:
                found.append((task, _lost(self._job, task, error)))
        return found

    def close(self) -> None:
        for ref in self._refs:
            with suppress(Exception):
                self._ray.cancel(ref, force=True)
        self._refs = {}
        if self._is_mine:
            self._ray.shutdown()


def _connect_to_ray(ray: Any) -> None:
    """Connect to the cluster.

    Raises:
        WorkerError: No cluster is running.
    """
    address = os.environ.get(_RAY_ADDRESS, "auto")
    try:
        # Ray itself waits for half a minute.
        _check_connection(address)
        # Ray puts the current folder first on the path of its workers.
        with chdir(os.sep):
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:
        place = "on this machine" if address == "auto" else f"at {address}"
        raise WorkerError(
            f"no Ray cluster is running {place}",
            hint=f"start one with `ray start --head`, or set {_RAY_ADDRESS}",
        ) from error


def _check_connection(address: str) -> None:
    """Open and close a connection, unless the address does not name a host and a port.

    Raises:
        OSError: Nothing accepts connections there.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()


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
        self, job: Job[Returned], workers: int | None = None, cluster: str = "slurm"
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
        options: dict[str, Any] = {"cpus_per_task": 1, "mem_gb": _SLURM_MEMORY_GB}
        if job.is_exclusive:
            # All memory of the machine, too.
            options = {"slurm_exclusive": True, "slurm_mem": "0"}
        if job.gpus:
            options["gpus_per_node"] = job.gpus
        self._executor.update_parameters(name="tdx", timeout_min=_SLURM_MINUTES, **options)

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
        self._jobs = [each for each in self._jobs if each not in done]
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


def find_engine(name: str) -> Callable[[Job[Returned], int | None], Engine[Returned]]:
    """Return the function that creates an engine from a job and the number of workers.

    Args:
        name: ``local``, ``ray`` or ``slurm``.

    Raises:
        ArgumentError: The engine is unknown.
    """
    if name not in ENGINES:
        raise ArgumentError(
            f"unknown engine {name!r}",
            hint=did_you_mean(name, ENGINES, f"use one of {', '.join(ENGINES)}"),
        )
    return ENGINES[name]
