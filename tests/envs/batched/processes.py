"""Helpers that inspect processes and shared memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 60.0


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be collected does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in ("Z", "X")


def becomes_true(condition: Callable[[], bool]) -> bool:
    """Whether it holds before patience runs out."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def all_end(pids: list[int]) -> bool:
    """Whether all of these processes are gone soon."""
    return becomes_true(lambda: not any(map(is_alive, pids)))


def shared_memory_files() -> set[str]:
    """The names of what torch and Python keep in the file system of shared memory.

    Concurrent tests keep folders there, and a browser its files.
    """
    return {name for name in os.listdir("/dev/shm") if name.startswith(("torch_", "psm_"))}


def open_descriptors() -> int:
    """How many file descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


def session_members(session: int) -> list[int]:
    """The processes of a session that run."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] not in ("Z", "X"):
            found.append(int(entry.name))
    return found
