"""Targets of exports: what may be replaced, atomic replacement, and errors of the disk."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tdx.foundation.container import make_folders
from tdx.foundation.errors import ArgumentError, OutputError, TdxError
from tdx.foundation.files import FULL, atomic_folder, atomic_path, check_replaceable
from tdx.rollouts.formats.interface import Format

_FULL_TEXT = {os.strerror(number).lower(): number for number in FULL}


def check_export_target(path: Path, kind: Format, folder: bool, force: bool) -> None:
    """Check that an export may be written, before any work is done.

    Args:
        path: Target.
        kind: Format of the export.
        folder: Whether a folder is written.
        force: Whether an existing export of that format is replaced.

    Raises:
        ArgumentError: The target exists and may not be replaced, or is a link.
    """
    if not folder:
        check_replaceable(path, force=force)
        return
    check_no_link(path)
    if not os.path.lexists(path):
        return
    if not path.is_dir() or not _is_export(path, kind):
        raise ArgumentError(f"{path} exists and is not {kind.name}", hint="name another place")
    if not force:
        raise ArgumentError(f"{path} already exists", hint="use --force to replace it")


def check_no_link(folder: Path) -> None:
    """Refuse a symbolic link as the target folder.

    Raises:
        ArgumentError: It is a link.
    """
    if folder.is_symlink():
        raise ArgumentError(
            f"{folder} is a symbolic link to {os.readlink(folder)}",
            hint="name the folder itself; tdx neither replaces nor follows links",
        )


def _is_export(path: Path, kind: Format) -> bool:
    inside = list(path.iterdir())
    if kind.is_folder:
        return kind.is_in(path) or all(map(kind.is_in, inside))
    return all(kind.is_in(each) for each in inside)


@contextmanager
def replace_atomically(path: Path, *, folder: bool) -> Iterator[Path]:
    """Yield a temporary file or folder, which replaces ``path`` when the block ends.

    If the block raises, or the process is killed, ``path`` is unchanged.

    Args:
        path: Target; missing folders around it are created.
        folder: Whether a folder is written.

    Raises:
        OutputError: It cannot be written.
    """
    with _report_write_errors(path):
        make_folders(path.parent)
        with atomic_folder(path) if folder else atomic_path(path) as part:
            yield part


@contextmanager
def _report_write_errors(path: str | Path) -> Iterator[None]:
    """Turn the errors of all libraries about a full or read-only disk into one line.

    Raises:
        OutputError: The path cannot be written.
    """
    try:
        yield
    except (TdxError, BrokenPipeError):
        raise
    except Exception as error:
        number = _errno_of(error)
        if number is None:
            raise
        hint = "make room, or name another place" if number in FULL else "name another place"
        reason = os.strerror(number).lower()
        raise OutputError(f"cannot write {path}: {reason}", hint=hint) from error


def _errno_of(error: BaseException | None) -> int | None:
    """Return the error number of the system; some libraries only quote its text."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        if isinstance(error, OSError) and error.errno:
            return abs(error.errno)
        text = str(error).lower()
        for reason, number in _FULL_TEXT.items():
            if reason in text:
                return number
        found = re.search(r"(?:errno|os error)[ =:]+(\d+)", text)
        if found:
            return int(found.group(1))
        error = error.__cause__ or error.__context__
    return None
