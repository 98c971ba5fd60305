"""Helpers that wait for processes and check that none is left."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 300.0
"""Timeout of waiting tests, in seconds; long, because machines are shared and disks are slow."""


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
    """Return the IDs of a process and all its descendants, including those in other sessions."""
    listed = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True).stdout
    parents = {int(line.split()[0]): int(line.split()[1]) for line in listed.splitlines()}
    kin = [pid]
    for one in kin:
        kin += [child for child, parent in parents.items() if parent == one]
    return kin


def session_members(session: int) -> list[int]:
    """Return the IDs of the running processes of a session."""
    members = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] not in ("Z", "X"):
            members.append(int(entry.name))
    return members


def shared_memory_files() -> set[str]:
    """Return the files of torch and Python in shared memory.

    Files of other programs, such as browsers, are ignored.
    """
    return {name for name in os.listdir("/dev/shm") if name.startswith(("torch_", "psm_"))}


def open_descriptors() -> int:
    """Return the number of open file descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))
