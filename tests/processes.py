"""Helpers that fork, wait for processes, and check that none is left."""

from __future__ import annotations

import gc
import os
import resource
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

STATM = Path("/proc/self/statm")

PATIENCE = 300.0
"""Timeout of waiting tests, in seconds; long, because machines are shared and disks are slow."""


def fork() -> int:
    """Fork this process, which runs threads; the fork leaves its parent's garbage alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        # Finalizers of native libraries may need threads that a fork does not have.
        gc.freeze()
    return child


def is_alive(pid: int) -> bool:
    """Return True if a process is running and not a zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in ("Z", "X")


def becomes_true(condition: Callable[[], bool]) -> bool:
    """Return True if a condition holds before :data:`PATIENCE` runs out."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def all_ended(pids: list[int]) -> bool:
    """Return True if all processes end before :data:`PATIENCE` runs out."""
    return becomes_true(lambda: not any(map(is_alive, pids)))


def family(pid: int) -> list[int]:
    """Return the IDs of a process and all its descendants, including those in other sessions.

    Children of one parent are in the order in which they started.
    """
    # Not in the order of their IDs, which start again at a low number after the largest one.
    processes = sorted(_processes(), key=lambda process: (process.started, process.pid))
    kin = [pid]
    for parent in kin:
        kin += [process.pid for process in processes if process.parent == parent]
    return kin


def session_members(session: int) -> list[int]:
    """Return the IDs of the running processes of a session."""
    return [
        process.pid for process in _processes() if process.session == session and process.is_running
    ]


def group_members(group: int) -> list[int]:
    """Return the IDs of the running processes of a process group."""
    return [
        process.pid for process in _processes() if process.group == group and process.is_running
    ]


@dataclass(frozen=True)
class _Process:
    pid: int
    state: str
    parent: int
    group: int
    session: int
    started: int

    @property
    def is_running(self) -> bool:
        return self.state not in ("Z", "X")


def _processes() -> list[_Process]:
    """List the processes of this machine, without the program ``ps``."""
    processes = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, *numbers = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        processes.append(_Process(int(entry.name), state, *map(int, (*numbers[:3], numbers[18]))))
    return processes


def shared_memory_files() -> set[str]:
    """Return the files of torch and Python in shared memory.

    Files of other programs, such as browsers, are ignored.
    """
    return {name for name in os.listdir("/dev/shm") if name.startswith(("torch_", "psm_"))}


def resident_bytes() -> int:
    """Return the resident memory of this process; a test skips itself without :data:`STATM`."""
    return int(STATM.read_text().split()[1]) * resource.getpagesize()


def open_descriptors() -> int:
    """Return the number of open file descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))
