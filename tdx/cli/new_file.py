"""Write a file that is not there yet, or that may be overwritten."""

from __future__ import annotations

import sys
from pathlib import Path

from tdx.errors import ArgumentError, OutputError

STDOUT = "-"


def write_new(
    path: str | Path, text: str, *, force: bool = False, create_folder: bool = False
) -> None:
    """Write a text to a file, whole or not at all; ``-`` is stdout.

    Args:
        path: where to.
        text: what to write.
        force: whether a file that is there is overwritten.
        create_folder: whether folders that are missing are made.

    Raises:
        ArgumentError: the file is there and may not be overwritten.
        OutputError: it cannot be written.
    """
    if str(path) == STDOUT:
        sys.stdout.write(text)
        return
    check_free(path, force=force)
    target = Path(path)
    unfinished = target.with_name(f".{target.name}.unfinished")
    try:
        if create_folder:
            target.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(target)
    except OSError as error:
        unfinished.unlink(missing_ok=True) if target.parent.is_dir() else None
        reason = (error.strerror or str(error)).lower()
        raise OutputError(f"cannot write {path}: {reason}", hint="name another place") from error


def check_free(path: str | Path, *, force: bool = False) -> None:
    """Make sure that nothing is overwritten, before any work is done.

    Raises:
        ArgumentError: the file is there and may not be overwritten.
    """
    if str(path) != STDOUT and not force and Path(path).exists():
        raise ArgumentError(f"{path} is there already", hint="--force overwrites it")
