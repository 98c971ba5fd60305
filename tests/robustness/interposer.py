"""Run functions in forks whose calls of the system are recorded, and one of them fails.

``interpose.c`` sits between the process and the C library, so that calls of HDF5, Arrow and libav
are seen like those of Python. It is compiled when it is needed.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.cli.processes import start_function

_SOURCE = Path(__file__).with_name("interpose.c")
_VARIABLE = "TDX_INTERPOSE"
_KILL_AFTER_S = 120
_RECORD = struct.Struct("4i6q")

SHORT, KILL = -1, -2
"""Instead of an error: only half of the bytes are written; the processes are killed."""
ERRORS = {
    "ENOSPC": errno.ENOSPC,
    "EIO": errno.EIO,
    "EDQUOT": errno.EDQUOT,
    "EINTR": errno.EINTR,
    "EMFILE": errno.EMFILE,
    "short": SHORT,
    "killed": KILL,
}
KINDS = {
    "w": "write",
    "s": "fsync",
    "n": "rename",
    "o": "open",
    "t": "truncate",
    "u": "unlink",
    "d": "mkdir",
    "l": "link",
    "r": "read",
}
ERRORS_OF = {
    "w": ("ENOSPC", "EIO", "EDQUOT", "EINTR", "short", "killed"),
    "s": ("EIO", "ENOSPC", "EDQUOT", "EINTR", "killed"),
    "n": ("EIO", "ENOSPC", "EDQUOT", "killed"),
    "o": ("EIO", "ENOSPC", "EMFILE", "EINTR"),
    "t": ("EIO", "ENOSPC", "EINTR", "killed"),
    "u": ("EIO", "killed"),
    "d": ("ENOSPC", "EIO", "EDQUOT", "killed"),
    "l": ("EIO", "ENOSPC"),
    "r": ("EIO", "EINTR"),
}
"""Errors that each kind of call can have."""


class Fault(NamedTuple):
    """A call that fails.

    Args:
        number: Number of the call, counted from 1; 0: none fails.
        error: Name of the error.
        lasting: Whether all later calls that need space fail too, as on a full disk.
    """

    number: int = 0
    error: str = "EIO"
    lasting: bool = False


NONE = Fault()


@dataclass(frozen=True, slots=True)
class Call:
    """A recorded call.

    Args:
        kind: A key of :data:`KINDS`.
        number: Its number; 0 for stores into a mapping, which cannot fail.
        flags: Flags of ``open``, ``unlinkat`` or ``renameat2``.
        result: Its result, or a negative error number; of ``open``: 1 if the file is new.
        inode: Inode of the file or new folder.
        offset: Offset of a write, or new size.
        path: Absolute path.
        other: Second absolute path.
        data: Bytes that were written.
    """

    kind: str
    number: int
    flags: int
    result: int
    inode: int
    offset: int
    path: str
    other: str
    data: bytes

    def __str__(self) -> str:
        other = f" to {self.other}" if self.other else ""
        return f"call {self.number}, {KINDS[self.kind]} of {self.path}{other}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Exit code and output of a process, and its calls."""

    code: int
    out: str
    err: str
    calls: list[Call]


class _Control(ctypes.Structure):
    """As in ``interpose.c``."""

    _fields_ = (
        *(
            (name, ctypes.c_int32)
            for name in ("active", "error", "at", "sticky", "count", "holder")
        ),
        ("folder", ctypes.c_char * 1024),
        ("log", ctypes.c_char * 1024),
    )


def restart_interposed() -> None:
    """Replace this process by one whose calls can be recorded, unless it is one already."""
    if _VARIABLE in os.environ:
        return
    folder = tempfile.mkdtemp(prefix="tdx-interpose-")
    library, control = f"{folder}/interpose.so", f"{folder}/control"
    compiler = ("gcc", "-shared", "-fPIC", "-O1", "-Wall", "-o", library, str(_SOURCE), "-ldl")
    subprocess.run(compiler, check=True)
    Path(control).write_bytes(bytes(ctypes.sizeof(_Control)))
    added = {"LD_PRELOAD": library, _VARIABLE: control}
    os.execve(sys.executable, sys.orig_argv, os.environ | added)


class Interposer:
    """Runs functions in forks of this process, which :func:`restart_interposed` prepared."""

    def __init__(self) -> None:
        path = os.environ[_VARIABLE]
        with open(path, "r+b") as file:
            self._control = _Control.from_buffer(mmap.mmap(file.fileno(), 0))
        self._log = Path(path).with_name("log")

    def close(self) -> None:
        """Remove the library."""
        shutil.rmtree(self._log.parent)

    def run(
        self, work: Callable[[], object], folder: Path, fault: Fault = NONE, *, quiet: bool = False
    ) -> Outcome:
        """Call a function in a fork, in a folder whose calls are recorded.

        Args:
            work: Called there; what it raises is printed.
            folder: Absolute path without links.
            fault: The call that fails.
            quiet: Whether nothing is recorded.
        """
        control = self._control
        self._log.unlink(missing_ok=True)
        control.folder, control.log = os.fsencode(folder), os.fsencode(self._log)
        control.count = control.holder = 0
        control.at, control.sticky = fault.number, fault.lasting
        control.error = ERRORS[fault.error]

        def prepare() -> None:
            os.chdir(folder)
            os.setpgid(0, 0)
            signal.alarm(_KILL_AFTER_S)
            control.active = not quiet

        streams = {number: os.memfd_create(f"stream{number}") for number in (1, 2)}
        try:
            child = start_function(work, streams, prepare)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            control.active = 0
            texts = []
            for stream in streams.values():
                with open(stream, "rb", closefd=False) as file:
                    file.seek(0)
                    texts.append(file.read().decode())
        finally:
            control.active = 0
            for stream in streams.values():
                os.close(stream)
        return Outcome(code, texts[0], texts[1], list(self._read_log()))

    def _read_log(self) -> Iterator[Call]:
        if not self._log.exists():
            return
        log = self._log.read_bytes()
        place = 0
        while place < len(log):
            op, flags, number, _, result, inode, offset, *sizes = _RECORD.unpack_from(log, place)
            place += _RECORD.size
            parts = []
            for size in sizes:
                parts.append(log[place : place + size])
                place += size
            path, other = (os.fsdecode(part) for part in parts[:2])
            yield Call(chr(op), number, flags, result, inode, offset, path, other, parts[2])
