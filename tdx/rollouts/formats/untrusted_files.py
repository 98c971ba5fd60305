"""Checks on untrusted files, before a library opens them or an array is allocated."""

from __future__ import annotations

import os
import stat
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path

from tdx.errors import StorageError
from tdx.rollouts.formats.arrays import FileColumn, array_bytes, is_numeric

DEFLATE_RATIO = 1100
"""Expansion that deflate (gzip, zip) can reach: 1032 to 1."""
ZSTD_RATIO = 33_000
"""Expansion that Zstandard, Blosc and the run lengths of Parquet reach on constant data."""
FREE_BYTES = 2**24
"""Bytes that a file may declare without storing them, such as arrays of a fill value."""
MAX_STEP_BYTES = 2**30
"""Size of one step in one column."""
MAX_CHUNK_BYTES = 2**28
"""Size of a chunk that is decompressed as a whole."""
MAX_NOTE_BYTES = 2**28
"""Size of the note in an export: the manifest of the dump."""
MAX_COLUMNS = 10_000
MAX_FILES = 1_000_000
MAX_NAME_BYTES = 200
"""Part of a key, which becomes a file name."""
_FORGED = "the file is damaged or was made to look larger than it is; do not use it"
_COPY = "copy the data into the folder, or do not use it"


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
        what: What an error message calls the data.

    Raises:
        StorageError: The compression cannot have stored that much.
    """
    if claimed > stored * ratio + FREE_BYTES:
        raise StorageError(
            f"{what} declares {claimed:,} bytes, but only {stored:,} are stored", hint=_FORGED
        )


def check_columns(columns: Mapping[str, FileColumn], source: Path, target: Path) -> None:
    """Check what a file is about to become: shapes, sizes, and room on the disk.

    Args:
        columns: Columns of the file.
        source: The file.
        target: Folder of the dump.

    Raises:
        StorageError: A column is impossible, or there is not enough room.
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
