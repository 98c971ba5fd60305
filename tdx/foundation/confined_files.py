"""Files below a folder, opened without following symbolic links.

A dump from an untrusted source may contain links that lead out of its folder. These functions open
each part of a path relative to the descriptor of the folder above it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tdx.foundation.errors import StorageError
from tdx.foundation.files import NEW_FILE_FLAGS, temporary_name

_UNTRUSTED = "tdx did not write this file; do not use files from a source that you do not trust"


@contextmanager
def open_folder(path: str | Path) -> Iterator[int]:
    """Open a folder, and yield its descriptor. Links in ``path`` itself are followed.

    Raises:
        OSError: The path does not exist or is not a folder.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_below(folder: int, name: str, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """Open a regular file below a folder without following any symbolic link.

    Args:
        folder: Descriptor of the folder, as from :func:`open_folder`.
        name: Path relative to the folder, with ``/`` as separator.
        flags: Flags of :func:`os.open`; with ``os.O_CREAT`` missing folders are created too.
        mode: Permission bits of a new file.

    Returns:
        A descriptor, which the caller must close.

    Raises:
        FileNotFoundError: The file does not exist.
        StorageError: The path leads out of the folder, or a part of it is a link or not regular.
        OSError: The file cannot be opened.
    """
    *parents, last = _split_path(name)
    with open_subfolder(folder, "/".join(parents), create=bool(flags & os.O_CREAT)) as inner:
        return _open_regular(inner, last, name, flags, mode)


def write_below(folder: int, name: str, data: str | bytes, *, sync: bool = True) -> None:
    """Replace a file below a folder atomically, without following any symbolic link.

    Args:
        folder: Descriptor of the folder, as from :func:`open_folder`.
        name: Path relative to the folder; missing folders are created.
        data: New content; text is encoded as UTF-8.
        sync: True to flush the data to disk before renaming.

    Raises:
        StorageError: The path leads out of the folder, or contains a link to a folder.
        OSError: The file cannot be written.
    """
    *parents, last = name.split("/")
    temporary = "/".join([*parents, temporary_name(last)])
    descriptor = open_below(folder, temporary, NEW_FILE_FLAGS)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        with open_subfolder(folder, "/".join(parents)) as inner:
            os.replace(temporary.rpartition("/")[2], last, src_dir_fd=inner, dst_dir_fd=inner)
            if sync:
                os.fsync(inner)
    except BaseException:
        with suppress(OSError, StorageError):
            unlink_below(folder, temporary)
        raise


def unlink_below(folder: int, name: str, *, sync: bool = False) -> None:
    """Remove a file or link below a folder.

    Args:
        folder: Descriptor of the folder.
        name: Path relative to the folder.
        sync: True to flush that to disk; without it, a power loss may bring the file back.

    Raises:
        FileNotFoundError: The file does not exist.
        StorageError: The path leads out of the folder, or contains a link to a folder.
    """
    parents, _, last = name.rpartition("/")
    with open_subfolder(folder, parents) as inner:
        os.unlink(last, dir_fd=inner)
        if sync:
            os.fsync(inner)


@contextmanager
def open_subfolder(folder: int, name: str, *, create: bool = False) -> Iterator[int]:
    """Open a folder below a folder without following links, and yield its descriptor.

    Args:
        folder: Descriptor of the outer folder.
        name: Path relative to the outer folder; ``""`` is that folder itself.
        create: True to create missing folders, and flush their names to disk.

    Raises:
        FileNotFoundError: The folder does not exist.
        StorageError: The path leads out of the folder, or a part of it is not a folder.
    """
    current = folder
    try:
        for part in _split_path(name) if name else ():
            inner = _open_single_subfolder(current, part, name, create=create)
            if current != folder:
                os.close(current)
            current = inner
        yield current
    finally:
        if current != folder:
            os.close(current)


def _split_path(name: str) -> list[str]:
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise StorageError(f"{name!r} is not a file name inside the folder", hint=_UNTRUSTED)
    return parts


def _open_single_subfolder(folder: int, part: str, name: str, *, create: bool) -> int:
    is_new = create and _make_subfolder(folder, part)
    try:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        inner = os.open(part, flags, dir_fd=folder)
    except NotADirectoryError:
        raise _not_regular(folder, part, name) from None
    try:
        if create and not is_new and not os.listdir(inner):
            # A process may have been killed right after it made the folder. One that has something
            # was flushed before.
            os.fsync(folder)
    except OSError:
        os.close(inner)
        raise
    return inner


def _make_subfolder(folder: int, part: str) -> bool:
    """Make a folder and flush its name, without which a power loss takes its files away too.

    Returns:
        False if it exists.
    """
    try:
        os.mkdir(part, dir_fd=folder)
    except FileExistsError:
        return False
    try:
        os.fsync(folder)
    except OSError:
        with suppress(OSError):
            os.rmdir(part, dir_fd=folder)
        raise
    return True


def _open_regular(folder: int, part: str, name: str, flags: int, mode: int) -> int:
    # Non-blocking, so that opening a pipe does not hang. The type is checked before truncating.
    safe = (flags & ~os.O_TRUNC) | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(part, safe, mode, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError:
        if _lstat_mode(folder, part) not in (None, stat.S_IFREG):
            raise _not_regular(folder, part, name) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_regular(folder, part, name)
    os.set_blocking(descriptor, True)
    if flags & os.O_TRUNC:
        os.ftruncate(descriptor, 0)
    return descriptor


def _lstat_mode(folder: int, part: str) -> int | None:
    with suppress(OSError):
        return stat.S_IFMT(os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode)
    return None


def _not_regular(folder: int, part: str, name: str) -> StorageError:
    kind = "a symbolic link" if _lstat_mode(folder, part) == stat.S_IFLNK else "not a regular file"
    return StorageError(f"{part!r} in {name!r} is {kind}", hint=_UNTRUSTED)
