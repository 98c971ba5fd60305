"""Folder of a dump: names of its files, opening without following links, lock, damaged files."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar, TypeVar

from tdx.foundation.confined_files import (
    open_below,
    open_folder,
    open_subfolder,
    unlink_below,
    write_below,
)
from tdx.foundation.errors import ArgumentError, StorageError, TdxError
from tdx.foundation.files import SYSTEM_HINTS, UnsyncedError
from tdx.foundation.serialization import Entries, Entry, Result
from tdx.foundation.untrusted import MAX_NESTING
from tdx.rollouts.dump.encoding import Fields

MANIFEST = "manifest.json"
INDEX = "chunks.jsonl"
DATA, RAW = "data", "raw"
TRACKS = (DATA, RAW)
STATE = "state"
SHARDS, SHARD_INDEX = "shards", "shards.jsonl"
DAMAGED_FOLDER = "damaged"
"""Folder for the files that a repair replaced."""
POLICY_COPY = "policy"
"""Name, without suffix, of the copy of a policy's file."""
POLICY_COPIES = frozenset(f"{POLICY_COPY}{suffix}" for suffix in (".safetensors", ".npy", ".json"))
"""Names that the copy of a policy's file can have."""
TEMPORARY_FILE = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")
"""Name of an unfinished file; see :mod:`tdx.foundation.files`."""
_MAX_FILES = 100_000
_ATTEMPTS = 10
_NOT_OURS = "tdx did not write it; do not use dumps from a source that you do not trust"
Content = TypeVar("Content")
_LOCKED = (errno.EWOULDBLOCK, errno.EACCES)
_STATE_SUFFIX = ".state"
_PARTS = (*TRACKS, STATE, SHARDS, DAMAGED_FOLDER)
"""Folders of a dump."""


@contextmanager
def open_dump_folder(folder: Path, outer: int | None = None, name: str = "") -> Iterator[int]:
    """Open the folder of a dump for reading; yields its descriptor.

    Args:
        folder: The folder.
        outer: Descriptor of a folder above it; ``None``: ``folder`` itself is opened.
        name: Name of the folder relative to ``outer``.

    Raises:
        StorageError: It does not exist, or cannot be read.
    """
    try:
        with open_folder(folder) if outer is None else open_subfolder(outer, name) as root:
            yield root
    except TdxError:
        raise
    except (FileNotFoundError, NotADirectoryError):
        raise missing_dump(folder) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        hint = SYSTEM_HINTS.get(error.errno or 0, "check its permissions")
        raise StorageError(f"cannot read {folder}: {reason}", hint=hint) from error


def read_dump_folder(folder: Path, read: Callable[[int], Content]) -> Content:
    """Read a dump through one descriptor, so that everything comes from the same dump.

    If another process replaces the folder meanwhile, and removes the old one, it is read again.

    Args:
        folder: Folder of the dump.
        read: Reads it by its descriptor.

    Raises:
        StorageError: It does not exist, or cannot be read.
    """
    for _ in range(_ATTEMPTS):
        with open_dump_folder(folder) as root:
            try:
                return read(root)
            except StorageError:
                if not is_replaced(root, folder):
                    raise
    raise replaced_dump(folder)


def raise_if_unreadable(error: Exception) -> None:
    """Raise an error again if the system could not read a file, which may be intact.

    Args:
        error: Error of reading a dump: that of the system, or one that it caused.
    """
    cause = error.__cause__ or error
    if isinstance(cause, OSError) and cause.errno in SYSTEM_HINTS:
        raise error


def is_replaced(root: int, folder: Path) -> bool:
    """Return True if another process replaced or removed a folder since it was opened."""
    try:
        return not os.path.samestat(os.fstat(root), os.stat(folder))
    except OSError:
        return True


def replaced_dump(folder: Path) -> StorageError:
    """Return the error for a dump that was replaced while it was read."""
    return StorageError(f"{folder} was replaced while it was read", hint="open it again")


def missing_dump(folder: Path) -> StorageError:
    """Return the error for a folder without a manifest."""
    return StorageError(
        f"{folder} has no dump: {MANIFEST} is missing",
        hint="`tdx list dumps DIR` lists those below a folder",
    )


@contextmanager
def open_data(folder: Path | int, file: str, flags: int = os.O_RDONLY) -> Iterator[IO[bytes]]:
    """Open an existing file of a dump without following links.

    Args:
        folder: The dump's folder, or its descriptor.
        file: Relative to it, such as ``data/next/reward.memmap``.
        flags: As of :func:`os.open`: for reading by default, ``os.O_RDWR`` for writing too.

    Raises:
        FileNotFoundError: It does not exist.
        StorageError: It is a link, or not a regular file.
    """
    if not isinstance(folder, int):
        with open_folder(folder) as root, open_data(root, file, flags) as stream:
            yield stream
        return
    mode = "rb" if flags == os.O_RDONLY else "r+b"
    with os.fdopen(open_below(folder, file, flags), mode) as stream:
        yield stream


def write_all(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all bytes into an open file at an offset.

    Raises:
        OSError: It cannot be written.
    """
    left = memoryview(data)
    while left:
        count = os.pwrite(descriptor, left, offset)
        left, offset = left[count:], offset + count


def check_links(root: int, folder: Path) -> None:
    """Refuse a dump that contains anything but regular files and folders.

    Args:
        root: Descriptor of the dump's folder.
        folder: Name of the folder in error messages.

    Raises:
        StorageError: There is a link, a device, or an implausible number of files.
    """
    count = 0
    pending = [("", 0)]
    while pending:
        name, depth = pending.pop()
        with open_subfolder(root, name) as inner, os.scandir(inner) as entries:
            for entry in entries:
                count += 1
                path = f"{name}/{entry.name}" if name else entry.name
                if count > _MAX_FILES or depth > MAX_NESTING:
                    raise StorageError(f"{folder} has too many files for a dump", hint=_NOT_OURS)
                if entry.is_dir(follow_symlinks=False):
                    if name or path in (*TRACKS, STATE):
                        pending.append((path, depth + 1))
                elif not entry.is_file(follow_symlinks=False):
                    kind = "a symbolic link" if entry.is_symlink() else "not a regular file"
                    raise StorageError(f"{folder / path} is {kind}", hint=_NOT_OURS)


class LockedError(ArgumentError):
    """Another process writes the folder."""


@contextmanager
def lock_for_writing(folder: Path, *, shared: bool = False) -> Iterator[int]:
    """Keep other processes from writing a dump.

    The folder itself is locked, so no lock file remains, however the process ends. A file system
    without locks does not protect the dump.

    Args:
        folder: An existing folder.
        shared: Whether other processes with a shared lock are accepted.

    Yields:
        Its descriptor.

    Raises:
        LockedError: Another process writes it, or has just replaced it.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    with open_folder(folder) as root:
        try:
            fcntl.flock(root, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _LOCKED:
                raise _locked_error(folder) from None
        if not os.path.samestat(os.fstat(root), os.stat(folder)):
            raise _locked_error(folder)
        yield root


def _locked_error(folder: Path) -> LockedError:
    return LockedError(
        f"another process is writing {folder}",
        hint="name another folder, or wait: --resume continues where it stopped",
    )


def check_not_locked(folder: Path) -> None:
    """Check that no other process is writing a dump.

    Raises:
        ArgumentError: Another process is.
    """
    if folder.is_dir() and os.access(folder, os.R_OK):
        with lock_for_writing(folder):
            pass


@dataclass(frozen=True, slots=True)
class StateFile(Result):
    """File with the state to resume from after a chunk.

    Args:
        name: Name in the folder ``state``.
        crc32: Checksum of the file.
    """

    json_entries: ClassVar[Entries] = (Entry("file", "name"), "crc32")

    name: str
    crc32: str

    @property
    def path(self) -> str:
        """Path of the file, relative to the dump's folder."""
        return f"{STATE}/{self.name}"

    @classmethod
    def from_fields(cls, fields: Fields | None) -> StateFile | None:
        """Parse the output of :meth:`to_dict`.

        Raises:
            StorageError: A field is invalid, or the name is that of another file.
        """
        if fields is None:
            return None
        name = fields.text("file")
        if "/" in name or "\0" in name or not name.endswith(_STATE_SUFFIX) or name[0] == ".":
            raise fields.invalid("file", "the name of a state file")
        return cls(name, fields.crc32("crc32"))

    @classmethod
    def after(cls, steps: int, crc32: int) -> StateFile:
        """Return the state file after a number of steps."""
        return cls(f"{steps:012}{_STATE_SUFFIX}", f"{crc32:08x}")


def read_state(root: int, state: StateFile) -> bytes:
    """Return the content of a state file.

    Args:
        root: Descriptor of the dump's folder.
        state: The file.

    Raises:
        OSError: It cannot be read.
        ValueError: Its checksum differs.
        StorageError: It is a link.
    """
    with open_data(root, state.path) as file:
        block = file.read()
    if f"{zlib.crc32(block):08x}" != state.crc32:
        raise ValueError("its checksum differs")
    return block


def remove_leftovers(root: int, state: StateFile | None) -> None:
    """Remove state files that the index does not name, and temporary files of killed writers.

    Args:
        root: Descriptor of the dump's folder, which this process has locked.
        state: State file that the index names; ``None``: it names none.
    """
    current = None if state is None else state.name
    with suppress(FileNotFoundError):
        with open_subfolder(root, STATE) as folder:
            for name in os.listdir(folder):
                if name != current and name.endswith(_STATE_SUFFIX):
                    os.unlink(name, dir_fd=folder)
        if current is None:
            with suppress(OSError):
                os.rmdir(STATE, dir_fd=root)
    remove_temporary(root)


def remove_temporary(root: int) -> None:
    """Remove the temporary files of killed writers.

    Args:
        root: Descriptor of the dump's folder, which this process has locked.
    """
    for path in list(_list_temporary(root)):
        with suppress(OSError):
            unlink_below(root, path)


def is_left_unfinished(root: int) -> bool:
    """Return True if a process did not reach the end of :func:`remove_leftovers`."""
    return STATE in os.listdir(root) or any(_list_temporary(root))


def _list_temporary(root: int) -> Iterator[str]:
    """Yield the temporary files of killed writers: in the folder itself, and below each part."""
    pending = [""]
    while pending:
        name = pending.pop()
        with open_subfolder(root, name) as folder, os.scandir(folder) as entries:
            for entry in entries:
                path = f"{name}/{entry.name}" if name else entry.name
                if entry.is_dir(follow_symlinks=False):
                    if name.partition("/")[0] in TRACKS or path in _PARTS:
                        pending.append(path)
                elif TEMPORARY_FILE.fullmatch(entry.name):
                    yield path


class SetAside:
    """Keeps files of a dump in its folder for damaged files.

    Args:
        root: Descriptor of the dump's folder.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self.names: dict[str, str] = {}
        """Where each file is kept, by its former name."""

    def copy(self, file: str) -> None:
        """Copy a file."""
        with open_data(self._root, file) as stream:
            content = stream.read()
        write_below(self._root, self._choose_name(file), content)

    def move(self, file: str) -> None:
        """Move a file or a folder.

        Raises:
            FileNotFoundError: It does not exist.
            UnsyncedError: It is moved, but a power loss may bring it back.
        """
        parent, _, last = file.rpartition("/")
        with open_subfolder(self._root, parent) as source:
            os.stat(last, dir_fd=source, follow_symlinks=False)
            name = self._choose_name(file).rpartition("/")[2]
            with open_subfolder(self._root, DAMAGED_FOLDER) as target:
                os.rename(last, name, src_dir_fd=source, dst_dir_fd=target)
                try:
                    os.fsync(target)
                    os.fsync(source)
                except OSError as error:
                    raise UnsyncedError(self.names[file], error) from error

    def _choose_name(self, file: str) -> str:
        """Return a new name for a file: ``damaged/1-manifest.json``."""
        flat = file.replace("/", "-")
        with open_subfolder(self._root, DAMAGED_FOLDER, create=True) as folder:
            taken = set(os.listdir(folder))
        number = next(n for n in range(1, len(taken) + 2) if f"{n}-{flat}" not in taken)
        self.names[file] = f"{DAMAGED_FOLDER}/{number}-{flat}"
        return self.names[file]
