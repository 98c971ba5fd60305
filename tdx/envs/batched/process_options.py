"""Options of worker processes: how many there are, and how they start."""

from __future__ import annotations

import itertools
import multiprocessing
import os
from dataclasses import dataclass

from tdx.foundation.errors import ArgumentError, did_you_mean


@dataclass(frozen=True)
class ProcessOptions:
    """Options of worker processes.

    Args:
        start_method: ``forkserver``, ``spawn`` or ``fork``.
        threads: Number of torch threads of each worker.
        daemon: True for daemon processes, which cannot have child processes.
        timeout: Seconds without a reply from any worker until they count as hung. ``None``: no
            limit.
        shutdown_timeout: Seconds for the workers to close their envs.
    """

    start_method: str
    threads: int
    daemon: bool
    timeout: float | None
    shutdown_timeout: float


def resolve_start_method(name: str | None) -> str:
    """Validate the start method, or choose the default.

    The default is ``forkserver``: workers are forked from a clean process that has imported torch
    and runs no threads. ``fork`` would copy the parent, including locks held by threads that do
    not exist in the copy and a CUDA state that cannot be used there. ``spawn`` is as safe, but
    imports torch in each worker.

    Raises:
        ArgumentError: The start method is not available on this system.
    """
    known = multiprocessing.get_all_start_methods()
    if name is None:
        return "forkserver" if "forkserver" in known else "spawn"
    if name not in known:
        raise ArgumentError(
            f"mp_start_method {name!r} is not available on this system",
            hint=did_you_mean(name, known, f"use one of {', '.join(known)}"),
        )
    return name


def resolve_process_count(processes: int | None, num_workers: int) -> int:
    """Validate the number of processes, or choose the default: one per core that may be used.

    There is at most one process per env.

    Raises:
        ArgumentError: It is not an integer of at least 1.
    """
    if processes is None:
        processes = usable_cores()
    elif type(processes) is not int or processes < 1:
        raise ArgumentError(
            f"processes must be an integer of at least 1, got {processes!r}",
            hint="pass the number of processes, or leave it out for one per core",
        )
    return min(processes, num_workers)


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def split_rows(num_workers: int, processes: int) -> list[range]:
    """Return the envs of each process: consecutive ones, as equal in number as possible."""
    bounds = [num_workers * index // processes for index in range(processes + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(bounds)]


def describe_workers(rows: range) -> str:
    """Return the name of a process in messages, by the envs in it."""
    if len(rows) == 1:
        return f"worker {rows[0]}"
    return f"the process of workers {rows[0]} to {rows[-1]}"
