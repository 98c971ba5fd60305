"""Options of worker processes: how many there are, and how they start."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from tdx.foundation.errors import ArgumentError
from tdx.foundation.processes import usable_cores


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


def split_rows(num_workers: int, processes: int) -> list[range]:
    """Return the envs of each process: consecutive ones, as equal in number as possible."""
    bounds = [num_workers * index // processes for index in range(processes + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(bounds)]


def describe_workers(rows: range) -> str:
    """Return the name of a process in messages, by the envs in it."""
    if len(rows) == 1:
        return f"worker {rows[0]}"
    return f"the process of workers {rows[0]} to {rows[-1]}"
