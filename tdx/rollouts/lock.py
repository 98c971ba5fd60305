"""One writer per dump: a lock of the kernel on its folder, which ends with the process."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tdx.confined_files import open_folder
from tdx.errors import ArgumentError

_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)


@contextmanager
def only_writer(folder: Path) -> Iterator[int]:
    """Keep other processes from writing a dump.

    The folder itself is locked, so no lock file is left behind, whatever ends the process. On a
    file system without locks nobody is kept from anything.

    Args:
        folder: An existing folder.

    Yields:
        Its descriptor.

    Raises:
        ArgumentError: Another process writes it, or has just replaced it.
    """
    with open_folder(folder) as root:
        try:
            fcntl.flock(root, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _TAKEN:
                raise _is_written(folder) from None
        if not os.path.samestat(os.fstat(root), os.stat(folder)):
            raise _is_written(folder)
        yield root


def _is_written(folder: Path) -> ArgumentError:
    return ArgumentError(
        f"another process is writing {folder}",
        hint="name another folder, or wait: --resume continues where it stopped",
    )


def check_unwritten(folder: Path) -> None:
    """Make sure that nobody writes a dump at this moment.

    Raises:
        ArgumentError: Another process does.
    """
    if folder.is_dir() and os.access(folder, os.R_OK):
        with only_writer(folder):
            pass
