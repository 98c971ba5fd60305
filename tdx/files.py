"""Files and folders on disk: replaced atomically, opened without following symbolic links."""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tdx.errors import ArgumentError, StorageError

_THROUGH = ("/dev/", "/proc/")


def is_stream(path: str | Path) -> bool:
    """True if ``path`` is a character device, pipe or socket, which is written through.

    Links below ``/dev`` and ``/proc`` (``/dev/stdout``, ``/dev/fd/63``) are streams whatever they
    lead to: the shell or the kernel made them.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    if stat.S_ISCHR(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        return True
    return os.path.islink(path) and os.path.abspath(path).startswith(_THROUGH)


def check_replaceable(path: str | Path, *, force: bool) -> None:
    """Refuse a target that may not be written, before any work is done.

    Streams are always accepted. Symbolic links are refused, with or without ``force``: replacing
    one would turn the link into a file, following it would overwrite a file elsewhere.

    Args:
        path: File to be written.
        force: Whether an existing regular file may be replaced.

    Raises:
        ArgumentError: ``path`` is a link, a folder or a block device, or exists without ``force``.
    """
    if is_stream(path) or not os.path.lexists(path):
        return
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        raise ArgumentError(
            f"{path} is a symbolic link to {os.readlink(path)}",
            hint="name the file itself; tdx neither replaces nor follows links",
        )
    if stat.S_ISDIR(mode):
        raise ArgumentError(f"{path} is a folder", hint="name a file in it")
    if not stat.S_ISREG(mode):
        raise ArgumentError(f"{path} is not a regular file", hint="name another file")
    if not force:
        raise ArgumentError(f"{path} already exists", hint="use --force to replace it")


@contextmanager
def atomic_write(
    path: str | Path, *, sync: bool = True, mode: int | None = None
) -> Iterator[IO[bytes]]:
    """Write a file that appears under its name complete, or not at all.

    The data goes to a fresh temporary file in the same folder, which takes the place of ``path``
    when the block ends; if it raises, or the process is killed, the old file remains. A stream
    (:func:`is_stream`) is written through instead.

    Args:
        path: Target. Links, folders and block devices are refused: see :func:`check_replaceable`.
        sync: Whether the data is on disk before the name changes.
        mode: Permission bits; by default those of the file that is replaced, else the umask's.

    Yields:
        A binary file.

    Raises:
        ArgumentError: The target is not a regular file.
        OSError: It cannot be written.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with atomic_write(folder / "a.txt") as file:
        ...     _ = file.write(b"text")
        >>> [path.name for path in folder.iterdir()]
        ['a.txt']
    """
    if is_stream(path):
        with _open_stream(path) as stream:
            yield stream
        return
    check_replaceable(path, force=True)
    target = Path(path)
    temporary = target.with_name(_fresh_name(target.name))
    descriptor = os.open(temporary, _NEW_FILE, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            permissions = _permissions(target) if mode is None else mode
            if permissions is not None:
                os.fchmod(file.fileno(), permissions)
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    if sync:
        sync_path(target.parent)


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Like :func:`atomic_write`, for libraries that open a file by its name and seek in it.

    What killed processes left of earlier calls is removed. A stream gets a copy in the end.

    Yields:
        Path of a fresh, empty file.

    Raises:
        ArgumentError: The target is not a regular file.
        OSError: It cannot be written.
    """
    if is_stream(path):
        with tempfile.TemporaryDirectory(prefix="tdx-") as folder:
            yield (copied := Path(folder) / Path(path).name)
            with copied.open("rb") as source, _open_stream(path) as stream:
                shutil.copyfileobj(source, stream)
        return
    check_replaceable(path, force=True)
    target = Path(path)
    with _scratch_folder(target, mode=0o700) as folder:
        part = folder / target.name
        part.touch()
        yield part
        permissions = _permissions(target)
        if permissions is not None:
            os.chmod(part, permissions)
        sync_path(part)
        os.replace(part, target)
        sync_path(target.parent)


def write_atomically(path: str | Path, data: str | bytes, *, sync: bool = True) -> None:
    """Write a whole file with :func:`atomic_write`; text is encoded as UTF-8.

    Raises:
        OSError: It cannot be written.
    """
    with atomic_write(path, sync=sync) as file:
        file.write(data.encode() if isinstance(data, str) else data)


_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def _open_stream(path: str | Path) -> IO[bytes]:
    """Open a stream without truncating what it leads to, so that ``>> file`` appends."""
    found = _DESCRIPTOR.fullmatch(os.path.abspath(path))
    if found:
        number = {"stdout": 1, "stderr": 2}.get(found[1]) or int(found[2] or 0)
        return os.fdopen(os.dup(number), "wb")
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CLOEXEC), "wb")


_DESCRIPTOR = re.compile(r"/dev/(stdout|stderr)|/(?:dev|proc/self)/fd/(\d+)")


def _fresh_name(name: str) -> str:
    return f".{name[:100]}.{secrets.token_hex(8)}.tmp"


def _permissions(target: Path) -> int | None:
    with suppress(OSError):
        found = target.lstat().st_mode
        if stat.S_ISREG(found):
            return stat.S_IMODE(found)
    return None


def sync_path(path: str | Path) -> None:
    """Flush a file, or a folder's list of files, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def open_folder(path: str | Path) -> Iterator[int]:
    """Open a folder that the user named; yields its descriptor.

    Raises:
        OSError: It does not exist, or is not a folder.
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
        name: Path relative to it, with ``/`` between its parts.
        flags: As of :func:`os.open`; folders on the way are created with ``os.O_CREAT``.
        mode: Permission bits of a new file.

    Returns:
        A descriptor; the caller closes it.

    Raises:
        FileNotFoundError: It does not exist.
        StorageError: The name leads out of the folder, or a part of it is a link or not regular.
        OSError: It cannot be opened.
    """
    *parents, last = _checked_parts(name)
    with subfolder(folder, "/".join(parents), create=bool(flags & os.O_CREAT)) as inner:
        return _open_regular(inner, last, name, flags, mode)


def write_below(folder: int, name: str, data: str | bytes, *, sync: bool = True) -> None:
    """Replace a file below a folder atomically, without following any symbolic link.

    Args:
        folder: Descriptor of the folder, as from :func:`open_folder`.
        name: Path relative to it; missing folders on the way are created.
        data: The whole content; text is encoded as UTF-8.
        sync: Whether the data is on disk before the name changes.

    Raises:
        StorageError: The name leads out of the folder, or a folder on the way is a link.
        OSError: It cannot be written.
    """
    *parents, last = name.split("/")
    temporary = "/".join([*parents, _fresh_name(last)])
    descriptor = open_below(folder, temporary, _NEW_FILE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        with subfolder(folder, "/".join(parents)) as inner:
            os.replace(temporary.rpartition("/")[2], last, src_dir_fd=inner, dst_dir_fd=inner)
            if sync:
                os.fsync(inner)
    except BaseException:
        with suppress(OSError, StorageError):
            unlink_below(folder, temporary)
        raise


def unlink_below(folder: int, name: str) -> None:
    """Remove a file, or the link of that name, below a folder.

    Raises:
        FileNotFoundError: It does not exist.
        StorageError: The name leads out of the folder, or a folder on the way is a link.
    """
    parents, _, last = name.rpartition("/")
    with subfolder(folder, parents) as inner:
        os.unlink(last, dir_fd=inner)


@contextmanager
def subfolder(folder: int, name: str, *, create: bool = False) -> Iterator[int]:
    """Open a folder below a folder without following links; yields its descriptor.

    Args:
        folder: Descriptor of the outer folder.
        name: Path relative to it; ``""`` is the folder itself.
        create: Whether missing folders are created.

    Raises:
        FileNotFoundError: It does not exist.
        StorageError: The name leads out of the folder, or a part of it is a link or no folder.
    """
    current = folder
    try:
        for part in _checked_parts(name) if name else ():
            inner = _open_subfolder(current, part, name, create=create)
            if current != folder:
                os.close(current)
            current = inner
        yield current
    finally:
        if current != folder:
            os.close(current)


def _checked_parts(name: str) -> list[str]:
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise StorageError(f"{name!r} is not a file name inside the folder", hint=_UNTRUSTED)
    return parts


def _open_subfolder(folder: int, part: str, name: str, *, create: bool) -> int:
    if create:
        with suppress(FileExistsError):
            os.mkdir(part, dir_fd=folder)
    try:
        wanted = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(part, wanted, dir_fd=folder)
    except NotADirectoryError:
        raise _not_regular(folder, part, name) from None


def _open_regular(folder: int, part: str, name: str, flags: int, mode: int) -> int:
    # Non-blocking, so that a pipe in the place of a file does not hang the process. The type is
    # checked before anything is truncated.
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


_UNTRUSTED = "tdx did not write it; do not use files from a source that you do not trust"


def remove_path(path: Path) -> None:
    """Remove a file, a link or a whole folder, if it exists; links are not followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Write a folder that appears under its name complete, or not at all.

    An existing folder is exchanged in one system call (``renameat2`` with ``RENAME_EXCHANGE``), so
    that at every moment the old or the new one has the name. Where the file system cannot
    exchange, the old folder is moved aside first.

    Yields:
        A fresh, empty folder next to ``path``.

    Raises:
        OSError: It cannot be written.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "result"
        >>> with atomic_folder(target) as folder:
        ...     _ = (folder / "a.txt").write_text("text")
        >>> (target / "a.txt").read_text()
        'text'
    """
    target = Path(path)
    with _scratch_folder(target) as part:
        yield part
        for each in [*part.rglob("*"), part]:
            if not each.is_symlink():
                sync_path(each)
        _take_place(part, target)
        sync_path(target.parent)


@contextmanager
def _scratch_folder(target: Path, mode: int = 0o777) -> Iterator[Path]:
    """Make a fresh folder next to ``target``; what is left under its name is removed in the end.

    It is locked, so that :func:`_remove_abandoned` can tell those of killed processes.
    """
    _remove_abandoned(target)
    folder = target.with_name(_fresh_name(target.name))
    folder.mkdir(mode)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    finally:
        remove_path(folder)
        os.close(descriptor)


def _remove_abandoned(target: Path) -> None:
    """Remove the temporary files of processes that were killed while they wrote ``target``."""
    pattern = re.compile(rf"[.]{re.escape(target.name[:100])}[.][0-9a-f]{{16}}[.]tmp")
    with suppress(OSError):
        for each in os.scandir(target.parent):
            if pattern.fullmatch(each.name) and _is_abandoned(each):
                remove_path(Path(each))


def _is_abandoned(entry: os.DirEntry[str]) -> bool:
    """True if no process has the lock, and the entry is older than the moment before locking."""
    try:
        if time.time() - entry.stat(follow_symlinks=False).st_mtime < _SECONDS_TO_LOCK:
            return False
        descriptor = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


_SECONDS_TO_LOCK = 60


def _take_place(part: Path, target: Path) -> None:
    if not os.path.lexists(target):
        os.rename(part, target)
        return
    if _exchange(part, target):
        return
    aside = target.with_name(_fresh_name(target.name))
    os.rename(target, aside)
    os.rename(part, target)
    remove_path(aside)


def _exchange(one: Path, other: Path) -> bool:
    """Let two paths swap names in one step; returns False where the system cannot."""
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of renameat2(2)
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return bool(rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0)
