"""Engines that run the shards of a dump in other processes: local ones, Ray, or Slurm.

An engine only starts and watches processes. What they record follows from the plan in the folder
of the dump, which they all must reach under the same path.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from tdx.envs.batched.process_options import resolve_start_method, usable_cores
from tdx.envs.batched.worker import delay_interrupts, end_with_parent, ignore_interrupts
from tdx.envs.batched.worker_pool import prepare_fork_server
from tdx.errors import (
    ArgumentError,
    MissingPackageError,
    TdxError,
    WorkerError,
    did_you_mean,
    get_first_line,
)
from tdx.rollouts.recording.shards import ShardJob

Outcome = tuple[int, TdxError | None]
"""A shard that was recorded, or failed with an error."""
_KILLED_HINT = "the system kills processes when memory runs out"
_MAIN_HINT = f"{_KILLED_HINT}; a script needs if __name__ == '__main__'"
_RAY_ADDRESS = "RAY_ADDRESS"
_SLURM_MINUTES = 24 * 60
_SLURM_MEMORY_GB = 4


class Engine(Protocol):
    """Runs shards in other processes.

    Attributes:
        slots: Largest number of shards to submit before others have ended. ``None``: unlimited.
    """

    slots: int | None

    def submit(self, shards: Sequence[int]) -> None:
        """Start to record shards."""

    def collect(self, seconds: float) -> list[Outcome]:
        """Return the shards that ended since the last call; wait for the first one.

        Args:
            seconds: Longest time to wait.
        """

    def close(self) -> None:
        """End all processes that still run."""


class LocalEngine:
    """Runs shards in processes of this machine.

    Each process has its own executor, so that a process that dies fails only its own shard.

    Args:
        job: Records a shard.
        workers: Number of processes. ``None``: one per CPU core.
    """

    def __init__(self, job: ShardJob, workers: int | None = None) -> None:
        self.slots: int | None = workers or usable_cores()
        self._job = job
        self._idle: list[ProcessPoolExecutor] = []
        self._running: dict[Future[TdxError | None], tuple[int, ProcessPoolExecutor]] = {}

    def submit(self, shards: Sequence[int]) -> None:
        for shard in shards:
            # An interrupt in between would leave a process that close() does not know.
            with delay_interrupts():
                executor = self._idle.pop() if self._idle else process_pool(1)
                self._running[executor.submit(self._job, shard)] = (shard, executor)

    def collect(self, seconds: float) -> list[Outcome]:
        found: list[Outcome] = []
        for future in wait(self._running, seconds, "FIRST_COMPLETED").done:
            shard, executor = self._running.pop(future)
            try:
                found.append((shard, future.result()))
                self._idle.append(executor)
            except BrokenProcessPool:
                executor.shutdown(wait=False)
                found.append((shard, _killed(shard)))
        return found

    def close(self) -> None:
        executors = [*self._idle, *(executor for _, executor in self._running.values())]
        for executor in executors:
            for process in list((executor._processes or {}).values()):
                process.kill()
            executor.shutdown(wait=True, cancel_futures=True)
        self._idle, self._running = [], {}


def process_pool(workers: int) -> ProcessPoolExecutor:
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
    # Those of a fork server may be outdated.
    os.environ.update(environ)
    os.chdir(folder)


def _killed(shard: int) -> WorkerError:
    return WorkerError(f"the process of shard {shard} was killed", hint=_MAIN_HINT)


class RayEngine:
    """Runs shards as tasks of a Ray cluster that is already running.

    The cluster is that of ``RAY_ADDRESS``, or the one on this machine.

    Args:
        job: Records a shard.
        workers: Number of tasks at a time. ``None``: as many as the cluster has CPU cores for.

    Raises:
        MissingPackageError: Ray is not installed.
        WorkerError: No cluster is running.
    """

    def __init__(self, job: ShardJob, workers: int | None = None) -> None:
        self.slots = workers
        try:
            import ray
        except ImportError as error:
            raise _missing_package("ray") from error
        self._ray, self._refs = ray, {}
        self._is_mine = not ray.is_initialized()
        if self._is_mine:
            address = os.environ.get(_RAY_ADDRESS, "auto")
            try:
                ray.init(address, log_to_driver=False, logging_level="ERROR")
            except (ConnectionError, ValueError, RuntimeError) as error:
                place = "on this machine" if address == "auto" else f"at {address}"
                raise WorkerError(
                    f"no Ray cluster is running {place}",
                    hint=f"start one with `ray start --head`, or set {_RAY_ADDRESS}",
                ) from error
        # Ray would repeat a task without reporting it.
        self._task = ray.remote(max_retries=0, num_cpus=1)(_run_in_ray)
        self._job = job

    _refs: dict[Any, int]

    def submit(self, shards: Sequence[int]) -> None:
        for shard in shards:
            self._refs[self._task.remote(self._job, shard)] = shard

    def collect(self, seconds: float) -> list[Outcome]:
        refs = list(self._refs)
        ready, _ = self._ray.wait(refs, num_returns=1, timeout=seconds)
        if ready:
            ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0)
        found: list[Outcome] = []
        for ref in ready:
            shard = self._refs.pop(ref)
            try:
                found.append((shard, self._ray.get(ref)))
            except self._ray.exceptions.RayError as error:
                found.append((shard, _lost(shard, error)))
        return found

    def close(self) -> None:
        for ref in self._refs:
            with suppress(Exception):
                self._ray.cancel(ref, force=True)
        self._refs = {}
        if self._is_mine:
            self._ray.shutdown()


def _run_in_ray(job: ShardJob, shard: int) -> TdxError | None:
    return job(shard)


def _lost(shard: int, error: BaseException) -> WorkerError:
    reason = type(error).__name__
    return WorkerError(f"the process of shard {shard} was lost: {reason}", hint=_KILLED_HINT)


class SlurmEngine:
    """Runs shards as array jobs of Slurm, through submitit.

    Logs are written next to the folder of the dump. Slurm reads the partition, account, time limit
    and memory from ``SBATCH_PARTITION``, ``SBATCH_ACCOUNT``, ``SBATCH_TIMELIMIT`` and
    ``SBATCH_MEM_PER_NODE``.

    Args:
        job: Records a shard.
        workers: Number of jobs at a time. ``None``: as Slurm schedules them.
        cluster: ``slurm``, or ``local`` for processes of this machine.

    Raises:
        MissingPackageError: submitit is not installed.
        WorkerError: Slurm is not available on this machine.
    """

    def __init__(self, job: ShardJob, workers: int | None = None, cluster: str = "slurm") -> None:
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
        self._job, self._jobs = job, []
        folder = Path(job.folder)
        self._executor = submitit.AutoExecutor(folder.with_name(f"{folder.name}-slurm"), cluster)
        self._executor.update_parameters(
            name="tdx", timeout_min=_SLURM_MINUTES, cpus_per_task=1, mem_gb=_SLURM_MEMORY_GB
        )

    _jobs: list[tuple[int, Any]]

    def submit(self, shards: Sequence[int]) -> None:
        from submitit.core.utils import FailedJobError

        if not shards:
            return
        try:
            jobs = self._executor.map_array(self._job, shards)
        except FailedJobError as error:
            raise WorkerError(
                f"Slurm refuses the jobs: {get_first_line(error)}",
                hint="set SBATCH_PARTITION, SBATCH_ACCOUNT or SBATCH_TIMELIMIT as it requires, or "
                "submit fewer at a time: --workers N",
            ) from error
        self._jobs += zip(shards, jobs, strict=True)

    def collect(self, seconds: float) -> list[Outcome]:
        import time

        deadline = time.monotonic() + seconds
        while True:
            done = [(shard, job) for shard, job in self._jobs if job.done()]
            if done or time.monotonic() >= deadline:
                break
            time.sleep(min(seconds, 0.2))
        self._jobs = [each for each in self._jobs if each not in done]
        return [(shard, self._read(shard, job)) for shard, job in done]

    def _read(self, shard: int, job: Any) -> TdxError | None:
        from submitit.core.utils import FailedJobError, UncompletedJobError

        try:
            result: TdxError | None = job.result()
        except (FailedJobError, UncompletedJobError) as error:
            return _lost(shard, error)
        return result

    def close(self) -> None:
        for _, job in self._jobs:
            with suppress(Exception):
                job.cancel()
        self._jobs = []


def _missing_package(package: str, extra: str | None = None) -> MissingPackageError:
    return MissingPackageError(
        f"{package} is not installed", hint=f"pip install 'tdx[{extra or package}]'"
    )


def find_engine(name: str) -> Callable[[ShardJob, int | None], Engine]:
    """Return the function that creates an engine.

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


ENGINES: dict[str, Callable[[ShardJob, int | None], Engine]] = {
    "local": LocalEngine,
    "ray": RayEngine,
    "slurm": SlurmEngine,
}
