"""Write a text to a new file, or over an existing one."""

from __future__ import annotations

import sys
from pathlib import Path

from tdx.errors import OutputError
from tdx.files import check_replaceable, write_atomically

STDOUT = "-"


def write_new(
    path: str | Path, text: str, *, force: bool = False, create_folder: bool = False
) -> None:
    """Write a text to a file atomically; ``-`` is stdout, and devices and pipes are written to.

    Args:
        path: Target.
        text: Content.
        force: Whether an existing file is replaced.
        create_folder: Whether missing folders are created.

    Raises:
        ArgumentError: The file exists and may not be replaced, or is a link.
        OutputError: It cannot be written.
    """
    if str(path) == STDOUT:
        sys.stdout.write(text)
        return
    check_free(path, force=force)
    sys.stdout.flush()
    try:
        if create_folder:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OutputError(f"cannot write {path}: {reason}", hint="name another place") from error


def check_free(path: str | Path, *, force: bool = False) -> None:
    """Check that a file may be written, before any work is done.

    Raises:
        ArgumentError: The file exists and may not be replaced, or is a link.
    """
    if str(path) != STDOUT:
        check_replaceable(path, force=force)
