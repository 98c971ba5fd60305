"""Atomic replacement of files and folders."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tdx.foundation.container import Container, UnsyncedError, temporary_name
from tdx.foundation.errors import (
    ArgumentError,
    OutputError,
    StorageError,
    TdxError,
    UnknownNameError,
    explain_os_error,
    find_similar_names,
)
from tdx.foundation.folders import HAS_DESCRIPTORS, lock_file, open_folder, sync_path

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a disk, a quota or a file that is full."""
_CHECK_DISK = "check the disk, and the messages of the system"
_MAKE_ROOM = "make room, then run the command again"
SYSTEM_HINTS = {
    errno.EIO: _CHECK_DISK,
    errno.EROFS: _CHECK_DISK,
    errno.ESTALE: _CHECK_DISK,
    errno.EMFILE: "close other files of this process, or raise its limit: ulimit -n",
    errno.ENFILE: "close other programs: the system has too many open files",
    errno.ENOMEM: "close other programs",
    errno.ENOSPC: _MAKE_ROOM,
    errno.EDQUOT: _MAKE_ROOM,
    errno.EFBIG: _MAKE_ROOM,
}
"""Hints for errors of the disk or of the limits of the system, by their numbers."""
PIPELINE_SUFFIXES = (".yaml", ".yml", ".json")
"""Suffixes of pipeline files."""
ARTIFACT_FILE = "artifact.json"
CONTRACT_FILE = "contract.yaml"
"""File in the folder of a contract."""
_STREAM_FOLDERS = ("/dev/", "/proc/")


def is_stream(path: str | Path) -> bool:
    """Return True if ``path`` is a character device, pipe or socket, which is written directly.

    Links below ``/dev`` and ``/proc``, such as ``/dev/stdout`` and ``/dev/fd/63``, are always
    streams, because the shell or the kernel created them.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    if stat.S_ISCHR(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        return True
    return os.path.islink(path) and os.path.abspath(path).startswith(_STREAM_FOLDERS)


def is_contract(path: str | Path) -> bool:
    """Return True for the folder of a contract."""
    return os.path.isdir(path) and os.path.lexists(os.path.join(path, CONTRACT_FILE))


def is_artifact(path: str | Path) -> bool:
    """Return True for the folder of an exported chain."""
    return os.path.isdir(path) and os.path.lexists(os.path.join(path, ARTIFACT_FILE))


def suggest_file(path: str | Path, suffixes: Sequence[str] = (), after: str = "") -> str | None:
    """Return a hint with the files beside a missing one whose names are similar.

    ``after`` is what follows the path in what the user typed, such as ``:make``.
    """
    path = Path(path)
    with suppress(OSError):
        files = [
            file.name for file in path.parent.iterdir() if not suffixes or file.suffix in suffixes
        ]
        if similar := find_similar_names(path.name, files, cutoff=0.8):
            names = [f"{path.with_name(name)}{after}" for name in similar]
            return f"did you mean {' or '.join(names)}?"
    return None


def missing_file_error(path: str | Path, after: str = "") -> UnknownNameError:
    """Return the error for a missing file, with files of similar names; see :func:`suggest_file`.

    For a Python file, only those are suggested.
    """
    suffixes = (".py",) if Path(path).suffix == ".py" else ()
    hint = (
        suggest_file(path, suffixes, after) or f"check the path{' before the colon' * bool(after)}"
    )
    return UnknownNameError(f"no file {path}", hint=hint)


def check_replaceable(path: str | Path, *, force: bool) -> None:
    """Check that a target may be written, before any work is done.

    Streams are always accepted, and existing regular files with ``force``. Symbolic links are
    rejected even with ``force``: replacing a link would turn it into a file, and following it would
    overwrite a file elsewhere.

    Raises:
        ArgumentError: ``path`` is a link, a folder or a block device, or exists without ``force``.
    """
    if is_stream(path) or not os.path.lexists(path):
        return
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        raise ArgumentError(
            f"{path} is a symbolic link to {os.readlink(path)}",
            hint="give the path of the file itself; tdx neither replaces nor follows links",
        )
    if stat.S_ISDIR(mode):
        raise ArgumentError(f"{path} is a folder", hint="give the path of a file in it")
    if not stat.S_ISREG(mode):
        raise ArgumentError(f"{path} is not a regular file", hint="give the path of another file")
    if not force:
        raise ArgumentError(f"{path} already exists", hint="use --force to replace it")


def check_no_link(folder: Path) -> None:
    """Refuse a symbolic link as the target folder."""
    if folder.is_symlink():
        raise ArgumentError(
            f"{folder} is a symbolic link to {os.readlink(folder)}",
            hint="name the folder itself; tdx neither replaces nor follows links",
        )


def check_replaceable_folder(
    folder: Path, noun: str, is_own: Callable[[Path], bool], *, force: bool
) -> None:
    """Check that a folder may be written: missing, empty, or with ``force`` one that ``is_own``.

    Raises:
        ArgumentError: It is a link, holds something else than ``noun``, or exists.
    """
    check_no_link(folder)
    if not os.path.lexists(folder) or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not folder.is_dir() or not is_own(folder):
        raise ArgumentError(
            f"{folder} exists and is not {noun}", hint="choose the path of a new folder"
        )
    if not force:
        raise ArgumentError(f"{folder} already exists", hint="use --force to replace it")


@contextmanager
def atomic_write(
    path: str | Path, *, sync: bool = True, mode: int | None = None
) -> Iterator[IO[bytes]]:
    """Replace a file atomically: readers see either the old or the complete new file.

    The data is written to a temporary file in the same folder, which is renamed to ``path`` when
    the block ends. If the block raises or the process is killed, the old file remains. Temporary
    files of earlier processes that were killed are removed. A stream (:func:`is_stream`) is written
    directly. The default mode is that of the replaced file, or of the umask.

    Raises:
        ArgumentError: The target is not a regular file; see :func:`check_replaceable`.
        OSError: The target cannot be written.
    """
    if is_stream(path):
        with _open_stream(path) as stream:
            yield stream
        return
    check_replaceable(path, force=True)
    target = Path(path)
    _remove_abandoned(target)
    permissions = _permissions(target) if mode is None else mode
    with (
        Container.open(target.parent) as folder,
        folder.replacing(target.name, sync=sync, mode=permissions, target=target) as file,
    ):
        yield file


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Like :func:`atomic_write`, for libraries that open a file by name and seek in it.

    Yields the path of a new, empty file. If the target is a stream, the file is copied to it when
    the block ends.
    """
    if is_stream(path):
        import tempfile

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
        _sync_exchange(target)


def write_atomically(path: str | Path, data: str | bytes, *, sync: bool = True) -> None:
    """Write data with :func:`atomic_write`; text is encoded as UTF-8."""
    with atomic_write(path, sync=sync) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def _open_stream(path: str | Path) -> IO[bytes]:
    """Open a stream without truncating its target, so that ``>> file`` appends."""
    found = _DESCRIPTOR.fullmatch(os.path.abspath(path))
    if found:
        number = {"stdout": 1, "stderr": 2}.get(found[1]) or int(found[2] or 0)
        return os.fdopen(os.dup(number), "wb")
    return os.fdopen(os.open(path, os.O_WRONLY | getattr(os, "O_CLOEXEC", 0)), "wb")


_DESCRIPTOR = re.compile(r"/dev/(stdout|stderr)|/(?:dev|proc/self)/fd/(\d+)")


def _permissions(target: Path) -> int | None:
    with suppress(OSError):
        found = target.lstat().st_mode
        if stat.S_ISREG(found):
            return stat.S_IMODE(found)
    return None


def _sync_exchange(target: Path) -> None:
    """Flush the name of what was just put in place; UnsyncedError if that fails."""
    try:
        sync_path(target.parent)
    except OSError as error:
        raise UnsyncedError(target, error) from error


@contextmanager
def report_write_errors(
    path: str | Path,
    hint: str = "name another place",
    *,
    full_hint: str | None = None,
    kind: type[TdxError] = OutputError,
) -> Iterator[None]:
    """Turn errors of the system into one sentence, with another hint if the disk is full."""
    try:
        yield
    except OSError as error:
        if isinstance(error, (TdxError, BrokenPipeError)):
            raise
        is_full = full_hint is not None and error.errno in FULL
        raise kind(
            f"cannot write {path}: {explain_os_error(error)}", hint=full_hint if is_full else hint
        ) from error


@contextmanager
def report_read_errors(
    path: str | Path,
    hint: str = "check its permissions",
    *,
    missing: TdxError | None = None,
) -> Iterator[None]:
    """Turn errors of the system into one sentence, or into ``missing`` if there is no such path.

    ``hint`` is the next step unless the disk or a limit of the system is the cause.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, TdxError):
            raise
        if missing is not None and isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise missing from None
        raise StorageError(
            f"cannot read {path}: {explain_os_error(error)}",
            hint=SYSTEM_HINTS.get(error.errno or 0, hint),
        ) from error


def remove_path(path: Path) -> None:
    """Remove a file, link or folder if it exists, without following links."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield a new, empty folder that replaces ``path`` atomically when the block ends.

    An existing folder is exchanged in one system call (``renameat2`` with ``RENAME_EXCHANGE``). If
    the file system does not support that, the old folder is renamed first, which leaves a moment
    without a folder of that name.

    Raises:
        OSError: The folder cannot be written.
        OutputError: It is written, but the disk could not flush its name.
    """
    target = Path(path)
    with _scratch_folder(target) as part:
        yield part
        for file in [*part.rglob("*"), part]:
            if not file.is_symlink():
                sync_path(file)
        _move_into_place(part, target)
        _sync_exchange(target)


@contextmanager
def _scratch_folder(target: Path, mode: int = 0o777) -> Iterator[Path]:
    """Create a temporary folder next to ``target``, and remove it when the block ends.

    The folder is locked, so that :func:`_remove_abandoned` recognizes those of killed processes.
    """
    _remove_abandoned(target)
    folder = target.with_name(temporary_name(target.name))
    folder.mkdir(mode)
    handle = open_folder(folder)
    try:
        handle.lock(shared=False, wait=False)
        yield folder
    except UnsyncedError:
        # It holds what a power loss may bring back; a later write removes it.
        raise
    except BaseException:
        remove_path(folder)
        raise
    else:
        remove_path(folder)
    finally:
        handle.close()


def _remove_abandoned(target: Path) -> None:
    """Remove temporary files of processes that were killed while writing ``target``."""
    pattern = re.compile(rf"[.]{re.escape(target.name[:100])}[.][0-9a-f]{{16}}[.]tmp")
    with suppress(OSError):
        for entry in os.scandir(target.parent):
            if not pattern.fullmatch(entry.name):
                continue
            with suppress(OSError):
                # One that is not locked may be so new that its process locks it soon.
                if time.time() - entry.stat(follow_symlinks=False).st_mtime < _SECONDS_TO_LOCK:
                    continue
                if _is_abandoned(entry):
                    remove_path(Path(entry))


_SECONDS_TO_LOCK = 60


def _is_abandoned(entry: os.DirEntry[str]) -> bool:
    """Return True if no process has locked a temporary file or folder."""
    if HAS_DESCRIPTORS:
        descriptor = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    elif entry.is_file(follow_symlinks=False):
        descriptor = os.open(entry.path, os.O_RDONLY)
    else:
        # Windows locks no folders, so this one may still be in use.
        return False
    try:
        return lock_file(descriptor)
    finally:
        os.close(descriptor)


def _move_into_place(part: Path, target: Path) -> None:
    """Exchange a new folder with the one that it replaces, if there is one."""
    if not os.path.lexists(target):
        os.rename(part, target)
        return
    if _exchange(part, target):
        return
    aside = target.with_name(temporary_name(target.name))
    os.rename(target, aside)
    try:
        os.rename(part, target)
    except OSError:
        os.rename(aside, target)
        raise
    # The caller removes it after flushing the new name; a power loss may bring it back until then.
    os.rename(aside, part)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two paths in one system call; return False if that is not supported."""
    import ctypes

    at_fdcwd, rename_exchange = -100, 2  # see renameat2(2)
    try:
        # Windows has no handle of the program itself, and macOS no such function.
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):
        return False
    paths = (at_fdcwd, os.fsencode(one), at_fdcwd, os.fsencode(other))
    if rename(*paths, rename_exchange) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
        return False
    raise OSError(number, os.strerror(number), str(other))
