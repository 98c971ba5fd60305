"""Write a file or a folder whole, or not at all."""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tdx.errors import ArgumentError, OutputError, TdxError
from tdx.rollouts.formats.registry import Format
from tdx.rollouts.track import sync_folder

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SPARE = 2**18
"""Bytes for what a library writes beside the numbers."""
_FULL_TEXT = {os.strerror(number).lower(): number for number in _FULL}


def check_free(path: Path, kind: Format, folder: bool, force: bool) -> None:
    """Make sure that nothing is overwritten, before any work is done.

    Args:
        path: where to write.
        kind: the format.
        folder: whether a folder is written.
        force: whether what is there is overwritten, if it is of that format.

    Raises:
        ArgumentError: something is there, and may not or must not be overwritten.
    """
    if not os.path.lexists(path):
        return
    if path.is_dir() != folder or (folder and not _is_ours(path, kind)):
        raise ArgumentError(f"{path} is there and is no {kind.name}", hint="name another place")
    if not force:
        raise ArgumentError(f"{path} is there already", hint="--force overwrites it")


def _is_ours(path: Path, kind: Format) -> bool:
    inside = list(path.iterdir())
    if kind.is_folder:
        return not inside or kind.is_in(path)
    return all(kind.is_in(each) for each in inside)


@contextmanager
def whole_or_nothing(path: Path) -> Iterator[Path]:
    """A place beside ``path``; what is there at the end takes its place, in one step.

    Raises:
        OutputError: it cannot be written.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove(part)
            yield part
            _sync(part)
            if path.is_dir():
                old = path.with_name(f".{path.name}.old")
                _remove(old)
                path.rename(old)
                part.rename(path)
                _remove(old)
            else:
                part.replace(path)
            sync_folder(path.parent)
    finally:
        _remove(part)


def _sync(path: Path) -> None:
    for each in [path, *(path.rglob("*") if path.is_dir() else ())]:
        sync_folder(each)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        try:
            path.unlink(missing_ok=True)
        except OSError:
            return


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Say in one line that something cannot be written, whatever library found it out.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        yield
    except (TdxError, BrokenPipeError):
        raise
    except Exception as error:
        number = _errno_of(error)
        if number is None:
            raise
        hint = "make room, or name another place" if number in _FULL else "name another place"
        reason = os.strerror(number).lower()
        raise OutputError(f"cannot write {path}: {reason}", hint=hint) from error


def check_room(file: Path, size: int) -> None:
    """Make sure that so many bytes more can be written, for a library that does not survive less.

    Args:
        file: what is written to.
        size: bytes.

    Raises:
        OSError: there is no room for them.
    """
    needed = size + _SPARE
    space = os.statvfs(file.parent)
    if needed > space.f_bavail * space.f_frsize:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if most != resource.RLIM_INFINITY and needed + file.stat().st_size > most:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))


def _errno_of(error: BaseException | None) -> int | None:
    """The number of the system's error; some libraries only quote its text."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError) and error.errno:
            return abs(error.errno)
        text = str(error).lower()
        for reason, number in _FULL_TEXT.items():
            if reason in text:
                return number
        found = re.search(r"errno[ =:]+(\d+)", text)
        if found:
            return int(found.group(1))
        error = error.__cause__ or error.__context__
    return None
