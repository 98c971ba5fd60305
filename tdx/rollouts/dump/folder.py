"""Folder of a dump: names of its parts, the lock of its writer, state files, and leftovers."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

from tdx.foundation.container import Container, read_folder
from tdx.foundation.errors import ArgumentError, StorageError
from tdx.foundation.files import SYSTEM_HINTS, report_read_errors
from tdx.foundation.serialization import Entries, Entry, Result
from tdx.foundation.untrusted import Fields

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
Content = TypeVar("Content")
_STATE_SUFFIX = ".state"
_PARTS = (*TRACKS, STATE, SHARDS, DAMAGED_FOLDER)
"""Folders of a dump."""


@contextmanager
def report_unreadable(folder: Path) -> Iterator[None]:
    """Turn errors of reading a dump into one sentence."""
    with report_read_errors(folder, missing=missing_dump(folder)):
        yield


def read_dump_folder(folder: Path, read: Callable[[Container], Content]) -> Content:
    """Read a dump through one descriptor, so that everything comes from the same dump."""
    with report_unreadable(folder):
        return read_folder(folder, read)


def raise_if_unreadable(error: Exception) -> None:
    """Raise an error of reading a dump again if it is the system's: the file may be intact."""
    cause = error.__cause__ or error
    if isinstance(cause, OSError) and cause.errno in SYSTEM_HINTS:
        raise error


def missing_dump(folder: Path) -> StorageError:
    """Return the error for a folder without a manifest."""
    return StorageError(
        f"{folder} has no dump: {MANIFEST} is missing",
        hint="`tdx list dumps DIR` lists those below a folder",
    )


def check_links(root: Container) -> None:
    """Refuse a dump that contains anything but regular files and folders."""
    root.check_links(lambda path: "/" in path or path in (*TRACKS, STATE))


class LockedError(ArgumentError):
    """Another process writes the folder."""


@contextmanager
def lock_for_writing(folder: Path, *, shared: bool = False) -> Iterator[Container]:
    """Keep other processes, but those with a shared lock too, from writing an existing folder.

    Raises:
        LockedError: Another process writes it, or has just replaced it.
    """
    with Container.open(folder) as root:
        if not root.lock(shared=shared) or root.is_replaced():
            raise LockedError(
                f"another process is writing {folder}",
                hint="name another folder, or wait: --resume continues where it stopped",
            )
        yield root


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
        """Parse the output of :meth:`to_dict`."""
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


def read_state(root: Container, state: StateFile) -> bytes:
    """Return the content of a state file.

    Raises:
        OSError: It cannot be read.
        ValueError: Its checksum differs.
        StorageError: It is a link.
    """
    block = root.read(state.path)
    if f"{zlib.crc32(block):08x}" != state.crc32:
        raise ValueError("its checksum differs")
    return block


def remove_leftovers(root: Container, state: StateFile | None) -> None:
    """Remove state files other than that of the index, and temporary files of killed writers.

    This process has locked the folder.
    """
    current = None if state is None else state.name
    with suppress(FileNotFoundError):
        with root.subfolder(STATE) as folder:
            for name in folder.names():
                if name != current and name.endswith(_STATE_SUFFIX):
                    folder.remove(name)
        if current is None:
            with suppress(OSError):
                root.folder.remove_folder(STATE)
    root.discard(list_temporary(root))


def list_temporary(root: Container) -> list[str]:
    """Return the temporary files of killed writers: in the folder itself, and below each part."""
    return root.list_temporary(lambda path: path in _PARTS or path.partition("/")[0] in TRACKS)
