"""Files of other formats: checks on untrusted ones before reading, and atomic exports."""

from __future__ import annotations

import errno
import os
import re
import resource
import stat
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tdx.errors import ArgumentError, OutputError, StorageError, TdxError
from tdx.files import atomic_folder, atomic_path, check_replaceable
from tdx.rollouts.formats.arrays import FileColumn, array_bytes, is_numeric
from tdx.rollouts.formats.registry import Format

DEFLATE_RATIO = 1100
"""Expansion that deflate (gzip, zip) can reach: 1032 to 1."""
ZSTD_RATIO = 33_000
"""Expansion that Zstandard, Blosc and the run lengths of Parquet reach on constant data."""
FREE_BYTES = 2**24
"""Number of bytes that a file may declare without storing them, such as fill values."""
MAX_STEP_BYTES = 2**30
"""Size of one step in one column."""
MAX_CHUNK_BYTES = 2**28
"""Size of a chunk that is decompressed as a whole."""
MAX_NOTE_BYTES = 2**28
"""Size of the note in an export: the manifest of the dump."""
MAX_COLUMNS = 10_000
MAX_FILES = 1_000_000
MAX_NAME_BYTES = 200
"""Size of a part of a key, which becomes a file name."""
_FORGED = "the file is damaged or was made to look larger than it is; do not use it"
_COPY = "copy the data into the folder, or do not use it"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SPARE = 2**18
"""Number of bytes for the metadata that a library writes."""
_FULL_TEXT = {os.strerror(number).lower(): number for number in _FULL}


def check_regular_file(path: Path) -> None:
    """Refuse anything but a file or folder as the source of an import.

    Raises:
        StorageError: It is a pipe, a device or a socket.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise StorageError(f"{path} is not a regular file", hint="save the data to a file first")


def check_folder(folder: Path) -> dict[str, int]:
    """Refuse links and anything but files and folders below a folder.

    Returns:
        Size of every file by its path relative to ``folder``, with ``/`` between its parts.

    Raises:
        StorageError: There is a link, a pipe or a device, or there are too many files.
    """
    sizes: dict[str, int] = {}
    pending = [""]
    while pending:
        inside = pending.pop()
        with os.scandir(folder / inside) as entries:
            for entry in entries:
                name = f"{inside}/{entry.name}" if inside else entry.name
                if entry.is_symlink():
                    raise StorageError(f"{folder / name} is a symbolic link", hint=_COPY)
                if entry.is_dir(follow_symlinks=False):
                    pending.append(name)
                elif entry.is_file(follow_symlinks=False):
                    sizes[name] = entry.stat(follow_symlinks=False).st_size
                else:
                    raise StorageError(f"{folder / name} is not a regular file", hint=_COPY)
                if len(sizes) + len(pending) > MAX_FILES:
                    raise StorageError(
                        f"{folder} has more than {MAX_FILES:,} files", hint="use larger chunks"
                    )
    return sizes


def check_expansion(claimed: int, stored: int, ratio: int, what: str) -> None:
    """Compare a declared size with the bytes that are stored for it.

    Args:
        claimed: Bytes after decompression.
        stored: Bytes in the file.
        ratio: Largest expansion of the compression.
        what: Name of the data in error messages.

    Raises:
        StorageError: The compression cannot have stored that much.
    """
    if claimed > stored * ratio + FREE_BYTES:
        raise StorageError(
            f"{what} declares {claimed:,} bytes, but only {stored:,} are stored", hint=_FORGED
        )


def check_columns(columns: Mapping[str, FileColumn], source: Path, target: Path) -> None:
    """Check the columns of a file before it is imported: shapes, sizes, and free disk space.

    Args:
        columns: Columns of the file.
        source: The file.
        target: Folder of the dump.

    Raises:
        StorageError: A column is invalid, or the disk has too little space.
    """
    if len(columns) > MAX_COLUMNS:
        raise StorageError(
            f"{source} has {len(columns):,} columns", hint=f"{MAX_COLUMNS:,} can be imported"
        )
    total = 0
    for name, each in columns.items():
        if not is_numeric(each.dtype):
            continue
        what = f"{name!r} in {source}"
        size = array_bytes(each.shape, each.dtype, what)
        if each.shape and array_bytes(each.shape[1:], each.dtype, what) > MAX_STEP_BYTES:
            raise StorageError(
                f"{what} has more than {MAX_STEP_BYTES:,} bytes in a step", hint=_FORGED
            )
        total += size
    place = next(each for each in (target, *target.absolute().parents) if each.is_dir())
    space = os.statvfs(place)
    free = space.f_bavail * space.f_frsize
    if total > free:
        raise StorageError(
            f"{source} needs {total:,} bytes as a dump, {free:,} are free at {place}",
            hint="make room, or name another place",
        )


def check_key(parts: Iterable[str], source: Path) -> None:
    """Refuse a key that cannot be the name of a file.

    Raises:
        StorageError: A part is empty, too long, or has control characters.
    """
    for part in parts:
        # "C" is the Unicode category of control, format, surrogate and unassigned characters.
        odd = any(unicodedata.category(sign)[0] == "C" for sign in part)
        if not part or odd or "/" in part or len(part.encode(errors="replace")) > MAX_NAME_BYTES:
            raise StorageError(
                f"{part[:MAX_NAME_BYTES]!r} in {source} cannot be a key", hint="rename the column"
            )


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
        return not inside or kind.is_in(path)
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
    with report_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(path) if folder else atomic_path(path) as part:
            yield part


@contextmanager
def report_write_errors(path: str | Path) -> Iterator[None]:
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
        hint = "make room, or name another place" if number in _FULL else "name another place"
        reason = os.strerror(number).lower()
        raise OutputError(f"cannot write {path}: {reason}", hint=hint) from error


def check_free_space(file: Path, size: int) -> None:
    """Check that bytes can be written, for a library that crashes on a full disk.

    Args:
        file: File that is written.
        size: Number of bytes.

    Raises:
        OSError: The disk is full, or the file would be too large.
    """
    needed = size + _SPARE
    space = os.statvfs(file.parent)
    if needed > space.f_bavail * space.f_frsize:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if most != resource.RLIM_INFINITY and needed + file.stat().st_size > most:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))


def _errno_of(error: BaseException | None) -> int | None:
    """Return the error number of the system; some libraries only quote its text."""
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
