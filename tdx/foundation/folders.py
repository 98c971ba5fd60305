"""Open folders, and the few calls on files that differ between POSIX and Windows.

On Linux and macOS, an open folder is a descriptor, and its files are opened relative to it: they
come from the folder that was opened, even if its name is given to another one meanwhile. Windows
opens files by path only, so a folder is its absolute path there, and each part is checked for links
right before it is used. Windows cannot flush the entries of a folder either; NTFS journals them.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

HAS_DESCRIPTORS = os.open in os.supports_dir_fd
"""Whether the system opens files relative to the descriptor of a folder."""
# Without the last two, Windows translates line ends, and a child inherits the file.
_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOINHERIT", 0)


@dataclass(frozen=True, slots=True)
class Folder(ABC):
    """An open folder. Names are those of its files and folders; links are not followed.

    Args:
        descriptor: Its descriptor, to which names are relative. ``None`` on Windows.
        path: Its absolute path, without links. Empty if there is a descriptor.
    """

    descriptor: int | None
    path: str

    @abstractmethod
    def open_folder(self, name: str) -> Folder:
        """Open a folder in it.

        Raises:
            NotADirectoryError: It is something else, or a link.
            OSError: It cannot be opened.
        """

    @abstractmethod
    def open_file(self, name: str, flags: int, mode: int) -> int:
        """Open a file, and return its descriptor.

        Raises:
            OSError: It is a link, or cannot be opened.
        """

    @abstractmethod
    def sync(self) -> None:
        """Flush its entries to disk."""

    @abstractmethod
    def lock(self, *, shared: bool, wait: bool) -> bool:
        """Lock it until it is closed; return False if another process has locked it."""

    @abstractmethod
    def is_at(self, path: str | Path) -> bool:
        """Return True if it is what a path leads to."""

    @abstractmethod
    def duplicate(self) -> Folder:
        """Return the folder opened once more."""

    @abstractmethod
    def close(self) -> None:
        """Close it."""

    def file_type(self, name: str) -> int | None:
        """Return the type of a file (:func:`stat.S_IFMT`); ``None``: there is none."""
        with suppress(OSError):
            path = self._join(name)
            status = os.stat(path, dir_fd=self.descriptor, follow_symlinks=False)
            # A junction of Windows is a link that has the status of a folder.
            if stat.S_ISLNK(status.st_mode) or not getattr(status, "st_reparse_tag", 0):
                return stat.S_IFMT(status.st_mode)
        return None

    def make_folder(self, name: str, mode: int) -> None:
        """Create a folder."""
        os.mkdir(self._join(name), mode, dir_fd=self.descriptor)

    def read_link(self, name: str) -> str:
        """Return the target of a symbolic link, at a path below the folder."""
        return os.readlink(self._join(name), dir_fd=self.descriptor)

    def names(self) -> list[str]:
        """Return the names of its files and folders."""
        return os.listdir(self.path if self.descriptor is None else self.descriptor)

    def entries(self) -> Iterator[os.DirEntry[str]]:
        """Yield its files and folders."""
        # typeshed types the entries of a union of both as `DirEntry[Any]`.
        source: Any = self.path if self.descriptor is None else self.descriptor
        with os.scandir(source) as entries:
            yield from entries

    def rename(self, name: str, new: str, target: Folder | None = None) -> None:
        """Rename or move a file or folder to ``target``, by default this one; replaces a file."""
        other = target or self
        source, destination = self._join(name), other._join(new)
        os.replace(source, destination, src_dir_fd=self.descriptor, dst_dir_fd=other.descriptor)

    def remove_file(self, name: str) -> None:
        """Remove a file or link."""
        os.unlink(self._join(name), dir_fd=self.descriptor)

    def remove_folder(self, name: str) -> None:
        """Remove an empty folder."""
        os.rmdir(self._join(name), dir_fd=self.descriptor)

    def _join(self, name: str) -> str:
        return os.path.join(self.path, name)


class DescriptorFolder(Folder):
    """A folder of Linux or macOS."""

    __slots__ = ()
    descriptor: int

    @classmethod
    def open(cls, path: str | Path) -> Self:
        return cls(os.open(path, os.O_RDONLY | os.O_DIRECTORY | _FLAGS), "")

    def open_folder(self, name: str) -> Self:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | _FLAGS
        return type(self)(os.open(name, flags, dir_fd=self.descriptor), "")

    def open_file(self, name: str, flags: int, mode: int) -> int:
        # Non-blocking, so that opening a pipe does not hang.
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | _FLAGS
        descriptor = os.open(name, flags, mode, dir_fd=self.descriptor)
        os.set_blocking(descriptor, True)
        return descriptor

    def sync(self) -> None:
        os.fsync(self.descriptor)

    def lock(self, *, shared: bool, wait: bool) -> bool:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(self.descriptor, kind if wait else kind | fcntl.LOCK_NB)
        except OSError as error:
            # Any other error: the file system has no locks.
            return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
        return True

    def is_at(self, path: str | Path) -> bool:
        try:
            return os.path.samestat(os.fstat(self.descriptor), os.stat(path))
        except OSError:
            return False

    def duplicate(self) -> Self:
        return type(self)(os.dup(self.descriptor), "")

    def close(self) -> None:
        os.close(self.descriptor)


class PathFolder(Folder):
    """A folder of Windows, which other processes may lock and replace while it is open."""

    __slots__ = ()

    @classmethod
    def open(cls, path: str | Path) -> Self:
        resolved = Path(path).resolve(strict=True)
        if not resolved.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        return cls(None, str(resolved))

    def open_folder(self, name: str) -> Self:
        inner = self._join(name)
        if self.file_type(name) != stat.S_IFDIR:
            # One that is missing has another error.
            os.lstat(inner)
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), inner)
        return type(self)(None, inner)

    def open_file(self, name: str, flags: int, mode: int) -> int:
        if self.file_type(name) not in (None, stat.S_IFREG):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), self._join(name))
        return os.open(self._join(name), flags | _FLAGS, mode)

    def sync(self) -> None:
        """See :class:`Folder`; Windows has no such call."""

    def lock(self, *, shared: bool, wait: bool) -> bool:
        """See :class:`Folder`; Windows locks no folders, so other processes are not kept out."""
        return True

    def is_at(self, path: str | Path) -> bool:
        try:
            return os.path.samefile(self.path, path)
        except OSError:
            return False

    def duplicate(self) -> Self:
        return self

    def close(self) -> None:
        pass


def open_folder(path: str | Path) -> Folder:
    """Open a folder. Links are followed."""
    return DescriptorFolder.open(path) if HAS_DESCRIPTORS else PathFolder.open(path)


def sync_path(path: str | Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    if not HAS_DESCRIPTORS:
        if os.path.isfile(path):
            # Windows flushes only what is open for writing.
            with open(path, "r+b") as file:
                os.fsync(file.fileno())
        return
    descriptor = os.open(path, os.O_RDONLY | _FLAGS)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_path(file: IO[bytes], path: Path) -> str:
    """Return a path of an open file for libraries that open files by name.

    Its own path may lead to another file by now; Windows knows no other.
    """
    folder = {"linux": "/proc/self/fd", "darwin": "/dev/fd"}.get(sys.platform)
    return str(path) if folder is None else f"{folder}/{file.fileno()}"


def lock_file(descriptor: int) -> bool:
    """Lock an open file; return False if another process has, or the file system has no locks."""
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            import msvcrt

            # Windows locks a range of bytes, and others cannot read it: one far behind the end.
            os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            os.lseek(descriptor, 0, os.SEEK_SET)
    except OSError:
        return False
    return True


_LOCKED_BYTE = 2**30


def write_at(descriptor: int, data: memoryview, offset: int) -> int:
    """Write bytes into an open file at an offset; return how many were written."""
    if hasattr(os, "pwrite"):
        return os.pwrite(descriptor, data, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.write(descriptor, data)


def set_permissions(descriptor: int, mode: int) -> None:
    """Set the permission bits of an open file, where the system has them."""
    if hasattr(os, "fchmod"):
        os.fchmod(descriptor, mode)
