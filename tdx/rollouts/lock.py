"""One writer for a dump: the kernel's lock on its folder, which ends with the process."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tdx.errors import ArgumentError

_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Keep other processes from writing a dump.

    No file is left behind, whatever ends the process. On a file system without locks nothing is
    kept from anybody.

    Args:
        folder: of the dump; it is there.

    Raises:
        ArgumentError: somebody writes it.
    """
    holder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _TAKEN:
                raise ArgumentError(
                    f"another process is writing {folder}",
                    hint="name another folder, or wait: --resume goes on where it was cut short",
                ) from None
        yield
    finally:
        os.close(holder)


def check_unwritten(folder: Path) -> None:
    """Make sure that nobody writes a dump at this moment.

    Raises:
        ArgumentError: somebody does.
    """
    if folder.is_dir() and os.access(folder, os.R_OK):
        with only_writer(folder):
            pass
