"""Container: a folder of named parts that is opened once, and survives crashes and strangers.

A folder from an untrusted source may contain links that lead out of it. Every part is opened
relative to the folder above it, without following links (:mod:`tdx.foundation.folders`).

A container is valid at every moment: new parts are written and flushed under new names, then the
manifest that lists them is replaced (:meth:`Container.replace`). Folders are flushed as well as
files: without that, a power loss takes a new file away. What killed writers leave behind has a
:func:`temporary_name`, and is removed by the next writer.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self, TypeVar

from tdx.foundation.errors import OutputError, StorageError, explain_os_error
from tdx.foundation.folders import (
    HAS_DESCRIPTORS,
    Folder,
    lock_file,
    open_folder,
    set_permissions,
    sync_path,
    write_at,
)
from tdx.foundation.untrusted import MAX_NESTING

NEW_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL
TEMPORARY_FILE = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")
"""Names of :func:`temporary_name`."""
_UNTRUSTED = "tdx did not write this file; do not use files from a source that you do not trust"
_MAX_FILES = 100_000
_ATTEMPTS = 10
_END = b', "check": "%08x"}\n'
_END_LENGTH = len(_END % 0)
Content = TypeVar("Content")


def temporary_name(name: str) -> str:
    """Return an unpredictable name for a temporary file in the folder of a file."""
    return f".{name[:100]}.{os.urandom(8).hex()}.tmp"


class UnsyncedError(OutputError):
    """A file or folder is in place, but a power loss may bring the old one back."""

    def __init__(self, target: str | Path, error: OSError) -> None:
        super().__init__(
            f"{target} is written, but may be lost at a power failure: {explain_os_error(error)}",
            hint="check the disk, then write it again",
        )


@dataclass(frozen=True, slots=True)
class Container:
    """An open folder, which error messages call ``path``.

    Paths of parts are relative to it, with ``/`` as separator. Every method raises
    :class:`StorageError` for a path that leads out of the folder, or contains a link.
    """

    path: Path
    folder: Folder

    @classmethod
    @contextmanager
    def open(cls, path: str | Path, name: Path | None = None) -> Iterator[Self]:
        """Open a folder, which messages call ``name``. Links in ``path`` itself are followed."""
        folder = open_folder(path)
        try:
            yield cls(Path(path) if name is None else name, folder)
        finally:
            folder.close()

    @contextmanager
    def subfolder(self, name: str, *, create: bool = False) -> Iterator[Container]:
        """Open a folder below this one; ``""`` is this folder itself.

        ``create`` creates missing folders, and flushes their names to disk. A missing folder is a
        FileNotFoundError, and a part of the path that is no folder a StorageError.
        """
        current = self.folder
        try:
            for part in _split_path(name) if name else ():
                inner = _open_folder(current, part, name, create=create)
                if current is not self.folder:
                    current.close()
                current = inner
            yield Container(self.path / name, current)
        finally:
            if current is not self.folder:
                current.close()

    def names(self) -> list[str]:
        """Return the names of the files and folders directly in the folder."""
        return self.folder.names()

    def walk(
        self, enters: Callable[[str], bool] = lambda path: True
    ) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Yield each file and folder below the folder, with its path.

        ``enters`` returns True for the path of a folder whose content is yielded as well.
        """
        pending = [""]
        while pending:
            folder = pending.pop()
            with self.subfolder(folder) as inner:
                for entry in inner.folder.entries():
                    path = f"{folder}/{entry.name}" if folder else entry.name
                    yield path, entry
                    if entry.is_dir(follow_symlinks=False) and enters(path):
                        pending.append(path)

    def check_links(
        self, enters: Callable[[str], bool] = lambda path: True, most: int = _MAX_FILES
    ) -> dict[str, int]:
        """Refuse anything but regular files and folders; return the size of every file by path.

        Raises:
            StorageError: There is a link or a device, or an implausible number of files.
        """
        sizes: dict[str, int] = {}
        for count, (path, entry) in enumerate(self.walk(enters)):
            if count >= most or path.count("/") > MAX_NESTING:
                raise StorageError(f"{self.path} has too many files", hint=_UNTRUSTED)
            if entry.is_file(follow_symlinks=False):
                sizes[path] = entry.stat(follow_symlinks=False).st_size
            elif not entry.is_dir(follow_symlinks=False):
                kind = "a symbolic link" if entry.is_symlink() else "not a regular file"
                raise StorageError(f"{self.path / path} is {kind}", hint=_UNTRUSTED)
        return sizes

    def is_replaced(self) -> bool:
        """Return True if the folder was replaced or removed since it was opened."""
        return not self.folder.is_at(self.path)

    def lock(self, *, shared: bool = False, wait: bool = False) -> bool:
        """Keep other processes from locking the folder; return False if one has locked it already.

        The folder itself is locked until it is closed, so no lock file remains, however the process
        ends. A file system without locks does not protect it. Several processes may share a lock.
        """
        return self.folder.lock(shared=shared, wait=wait)

    def sync(self) -> None:
        """Flush the names in the folder to disk."""
        self.folder.sync()

    # Reading

    def open_file(self, name: str, flags: int = os.O_RDONLY, mode: int = 0o666) -> IO[bytes]:
        """Open a regular file; with ``os.O_CREAT`` in its flags, missing folders are created too.

        Raises:
            FileNotFoundError: It does not exist.
            StorageError: It is not a regular file.
        """
        parent, _, last = name.rpartition("/")
        _split_path(name)
        with self.subfolder(parent, create=bool(flags & os.O_CREAT)) as folder:
            descriptor = _open_regular(folder.folder, last, name, flags, mode)
        modes = {os.O_RDONLY: "rb", os.O_WRONLY: "wb", os.O_RDWR: "r+b"}
        return os.fdopen(descriptor, modes[flags & (os.O_WRONLY | os.O_RDWR)])

    def read(self, name: str, limit: int | None = None) -> bytes:
        """Return the content of a file of at most ``limit`` bytes.

        Raises:
            FileNotFoundError: It does not exist.
            StorageError: It is larger, or not a regular file.
        """
        with self.open_file(name) as file:
            data = file.read(-1 if limit is None else limit + 1)
        if limit is not None and len(data) > limit:
            raise StorageError(
                f"{self.path / name} has more than {limit:,} bytes", hint="use a file of tdx"
            )
        return data

    # Writing

    def replace(
        self, name: str, data: str | bytes, *, sync: bool = True, completes: bool = False
    ) -> None:
        """Replace a file atomically; missing folders are created.

        ``completes`` is True if this switches the container to its new state: if only the flush of
        the folder fails then, the error is an :class:`UnsyncedError`.
        """
        parent, _, last = name.rpartition("/")
        _split_path(name)
        with self.subfolder(parent, create=True) as folder:
            target = self.path if completes else None
            with folder.replacing(last, sync=sync, target=target) as file:
                file.write(data.encode() if isinstance(data, str) else data)

    @contextmanager
    def replacing(
        self,
        name: str,
        *,
        sync: bool = True,
        mode: int | None = None,
        target: Path | None = None,
    ) -> Iterator[IO[bytes]]:
        """Yield a locked temporary file that replaces a file of this folder when the block ends.

        If it cannot be written, the old file remains. ``mode`` has the permission bits, by default
        those of the umask. If only the flush of the folder fails, the error is an
        :class:`UnsyncedError` for ``target``, which is complete then, or the OSError without one.
        """
        temporary = temporary_name(name)
        descriptor = _open_regular(self.folder, temporary, temporary, NEW_FILE_FLAGS, 0o666)
        try:
            with os.fdopen(descriptor, "wb") as file:
                lock_file(descriptor)
                if mode is not None:
                    set_permissions(descriptor, mode)
                yield file
                file.flush()
                if sync:
                    os.fsync(descriptor)
                if not HAS_DESCRIPTORS:
                    # Windows does not rename an open file. Its lock ends before that, which does no
                    # harm: nobody takes so new a file for an abandoned one.
                    file.close()
                self.folder.rename(temporary, name)
        except BaseException:
            with suppress(OSError):
                self.folder.remove_file(temporary)
            raise
        if sync:
            try:
                self.folder.sync()
            except OSError as error:
                if target is None:
                    raise
                raise UnsyncedError(target, error) from error

    def write(
        self,
        name: str,
        blocks: Iterable[bytes | memoryview],
        *,
        offset: int | None = None,
        sync: bool = True,
    ) -> str:
        """Write blocks into a part, and return their CRC-32 in eight hexadecimal digits.

        They go to ``offset`` in a part that may exist; without one, the part is new. Missing
        folders are created.

        Raises:
            FileExistsError: The part exists, and there is no ``offset``.
            StorageError: It has another hard link, outside of the folder.
        """
        crc, position = 0, offset or 0
        flags = NEW_FILE_FLAGS if offset is None else os.O_WRONLY | os.O_CREAT
        with self.open_file(name, flags) as file:
            if os.fstat(file.fileno()).st_nlink != 1:
                raise StorageError(
                    f"{name!r} is a hard link to a file outside the dump, which would change too",
                    hint="copy the dump with `cp -r`, and resume the copy",
                )
            for block in blocks:
                write_all(file.fileno(), block, position)
                crc, position = zlib.crc32(block, crc), position + len(block)
            if sync:
                os.fsync(file.fileno())
        return f"{crc:08x}"

    def remove(self, name: str, *, sync: bool = False) -> None:
        """Remove a file or link; unless that is flushed, a power loss may bring it back."""
        parent, _, last = name.rpartition("/")
        with self.subfolder(parent) as folder:
            folder.folder.remove_file(last)
            if sync:
                folder.sync()

    def list_temporary(self, enters: Callable[[str], bool] = lambda path: True) -> list[str]:
        """Return the paths of temporary files; see :meth:`walk`."""
        return [
            path
            for path, entry in self.walk(enters)
            if TEMPORARY_FILE.fullmatch(entry.name) and not entry.is_dir(follow_symlinks=False)
        ]

    def discard(self, names: Iterable[str]) -> None:
        """Remove what killed writers left, as far as that is possible."""
        for name in names:
            with suppress(OSError):
                self.remove(name)


def read_folder(path: Path, read: Callable[[Container], Content]) -> Content:
    """Read a folder through one descriptor, so that everything comes from the same state.

    If another process replaces the folder meanwhile, and removes the old one, it is read again.
    """
    for _ in range(_ATTEMPTS):
        with Container.open(path) as container:
            try:
                return read(container)
            except OSError:
                if not container.is_replaced():
                    raise
    raise replaced_error(path)


def replaced_error(path: Path) -> StorageError:
    """Return the error for a folder that was replaced while it was read."""
    return StorageError(f"{path} was replaced while it was read", hint="open it again")


def make_folders(path: str | Path, mode: int = 0o777) -> None:
    """Create a folder, if it is missing, and those above it, and flush their names to disk.

    ``mode`` has the permission bits of the folder itself; its parents have those of the umask.
    """
    folder = Path(path)
    if folder.is_dir():
        # A process may have been killed right after it made the folder. One that has something was
        # flushed before. A folder that may not be listed was made by someone else.
        with suppress(PermissionError):
            if not any(folder.iterdir()):
                sync_path(folder.absolute().parent)
        return
    # Below a file, the folder itself is what fails: "not a directory", not "file exists".
    if folder.parent != folder and not folder.parent.is_file():
        make_folders(folder.parent)
    with Container.open(folder.absolute().parent) as parent:
        if not _make_folder(parent.folder, folder.name, mode) and not folder.is_dir():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))


def write_all(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all bytes into an open file at an offset."""
    left = memoryview(data)
    while left:
        count = write_at(descriptor, left, offset)
        left, offset = left[count:], offset + count


def append_line(descriptor: int, line: bytes, offset: int, *, sync: bool) -> None:
    """Write a line at ``offset``, over what follows; remove it again if it cannot be written.

    After a failed flush the system shows the line, but it may not be on the disk, and a later flush
    would not tell.
    """
    try:
        write_all(descriptor, line, offset)
        if sync:
            os.fsync(descriptor)
    except OSError:
        with suppress(OSError):
            os.ftruncate(descriptor, offset)
            os.fsync(descriptor)
        raise


def seal(data: Mapping[str, object], seed: int = 0, indent: int | None = None) -> tuple[bytes, int]:
    r"""Return a JSON object as sealed text, and its checksum.

    A sealed text is a JSON object whose last member is ``"check"``: the CRC-32 of all bytes before
    it, in eight hexadecimal digits. CRC-32 detects every change within four successive bytes.
    Passing the checksum of the preceding text as ``seed`` chains texts, so that a removed, repeated
    or moved one is detected as well.

    Example:
        >>> seal({"steps": 3})[0]
        b'{"steps": 3, "check": "79556117"}\n'
    """
    body = json.dumps(data, indent=indent, allow_nan=False)[:-1].rstrip().encode()
    check = zlib.crc32(body, seed)
    return body + _END % check, check


def read_seal(text: bytes, seed: int = 0) -> int | None:
    """Return the checksum of a sealed text with its newline; ``None`` if it was changed."""
    check = zlib.crc32(text[:-_END_LENGTH], seed)
    return check if text[-_END_LENGTH:] == _END % check else None


def _split_path(name: str) -> list[str]:
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise StorageError(f"{name!r} is not a file name inside the folder", hint=_UNTRUSTED)
    return parts


def _open_folder(folder: Folder, part: str, name: str, *, create: bool) -> Folder:
    is_new = create and _make_folder(folder, part)
    try:
        inner = folder.open_folder(part)
    except NotADirectoryError:
        raise _not_regular(folder, part, name) from None
    try:
        if create and not is_new and not inner.names():
            # As in make_folders().
            folder.sync()
    except OSError:
        inner.close()
        raise
    return inner


def _make_folder(folder: Folder, part: str, mode: int = 0o777) -> bool:
    """Make a folder and flush its name; return False if it exists.

    Without that, a power loss takes its files away too.
    """
    try:
        folder.make_folder(part, mode)
    except FileExistsError:
        return False
    try:
        folder.sync()
    except OSError:
        with suppress(OSError):
            folder.remove_folder(part)
        raise
    return True


def _open_regular(folder: Folder, part: str, name: str, flags: int, mode: int) -> int:
    try:
        # The type is checked before truncating.
        descriptor = folder.open_file(part, flags & ~os.O_TRUNC, mode)
    except FileNotFoundError:
        raise
    except OSError:
        if folder.file_type(part) not in (None, stat.S_IFREG):
            raise _not_regular(folder, part, name) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_regular(folder, part, name)
    if flags & os.O_TRUNC:
        os.ftruncate(descriptor, 0)
    return descriptor


def _not_regular(folder: Folder, part: str, name: str) -> StorageError:
    is_link = folder.file_type(part) == stat.S_IFLNK
    kind = "a symbolic link" if is_link else "not a regular file"
    return StorageError(f"{part!r} in {name!r} is {kind}", hint=_UNTRUSTED)
