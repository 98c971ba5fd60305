"""Interface between the formats and the jobs: codecs, readers, options, plans and the note.

The note is the metadata that tdx stores in an export, so that it can be imported as the same dump.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tdx.errors import ArgumentError, StorageError
from tdx.rollouts.dump.entries import Parts
from tdx.rollouts.dump.manifest import Manifest
from tdx.rollouts.formats.arrays import Array, FileColumn
from tdx.rollouts.formats.files import check_key
from tdx.serialization import Entries, Entry, Result
from tdx.untrusted import MAX_ENVS, parse_json, validate_shape

NOTE = "tdx"
"""Name of the note in a file."""
VERSION = 1
"""Version of the note."""


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Options of an export.

    Args:
        episodes: Indices of the episodes, as in ``tdx show``. ``None``: all.
        fps: Frames per second of a video.
        split: Whether each episode gets its own file.
        lossy: Whether a video is small and plays everywhere, rather than exact.
        name: Name of the exported file or folder.
    """

    episodes: tuple[int, ...] | None = None
    fps: int = 30
    split: bool = False
    lossy: bool = False
    name: str = ""


@dataclass(frozen=True, slots=True)
class ExportColumn:
    """An entry of a dump and its name in a file.

    Args:
        track: ``data``, or ``raw`` for the raw steps of the base env.
        path: Key of the entry.
        name: Name in the file.
    """

    track: str
    path: Parts
    name: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"track": self.track, "key": list(self.path), "name": self.name}


@dataclass(frozen=True, slots=True)
class ExportedEntry(Result):
    """An entry of a dump, and its place in the file.

    Args:
        key: Key as text, such as ``next.reward``.
        place: Name in the file.
        shape: Shape in one step of one env.
        dtype: Name such as ``"float32"``.
    """

    key: str
    place: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """What an export will write.

    Args:
        entries: Entries and their places in the file.
        episodes: Number of episodes.
        size: Number of bytes before compression; ``None``: unknown.
        notes: Remarks for the user.
    """

    entries: tuple[ExportedEntry, ...]
    episodes: int
    size: int | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Exported(Result):
    """Result of an export, or of its dry run.

    Args:
        source: Folder of the dump.
        path: Exported file or folder.
        format: Name of the format.
        written: Whether it was written.
        steps: Number of steps of each env.
        batch_size: Batch size of the envs.
        episodes: Number of episodes, including those still running.
        size: Number of bytes, before compression in a dry run; ``None``: unknown.
        notes: Remarks for the user.
        entries: Entries and their places in the file.
    """

    json_entries: ClassVar[Entries] = (
        *("source", "path", "format", "written", "steps", "batch_size", "episodes"),
        *(Entry("bytes", "size"), "notes", "entries"),
    )

    source: str
    path: str
    format: str
    written: bool
    steps: int
    batch_size: tuple[int, ...]
    episodes: int
    size: int | None
    notes: tuple[str, ...]
    entries: tuple[ExportedEntry, ...]


@dataclass(frozen=True, slots=True)
class Imported:
    """Result of an import.

    Args:
        source: File or folder that was read.
        format: Name of its format.
        path: Folder of the new dump.
        summary: Result of :func:`~tdx.rollouts.dump.reading.summarize`.
        notes: Remarks for the user.
    """

    source: str
    format: str
    path: str
    summary: dict[str, Any]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            **self.summary,
            "imported": self.source,
            "format": self.format,
            "notes": list(self.notes),
        }


class ColumnReader(ABC):
    """Reads the columns of a file from the first step to the last.

    Attributes:
        note: Note of tdx; ``None`` in a file that tdx did not export.
        env: Id of the env and its arguments, if the file has them.
    """

    note: Mapping[str, Any] | None = None
    env: tuple[str, Mapping[str, Any]] | None = None

    @abstractmethod
    def columns(self) -> Mapping[str, FileColumn]:
        """Return every column by name."""

    @abstractmethod
    def read_steps(self, names: Sequence[str], start: int, stop: int) -> Mapping[str, Array]:
        """Read a range of steps, ``[n, ...]`` per column.

        Ranges are contiguous: each one starts where the previous one stopped.
        """

    def is_at_end(self) -> bool:
        """Return True if no step remains to be read."""
        return True

    def notes(self) -> tuple[str, ...]:
        """Return remarks for the user about a file that tdx did not export."""
        return ()


def parse_note(text: str | bytes, path: Path) -> dict[str, Any]:
    """Parse the note of a file; see :func:`check_note`."""
    try:
        note = parse_json(text, path)
    except StorageError as error:
        raise _invalid_note(path) from error
    return check_note(note, path)


def check_note(note: Any, path: Path) -> dict[str, Any]:
    """Validate the note of a file.

    Raises:
        StorageError: The note is of a newer version, or contradicts itself.
    """
    if not isinstance(note, dict) or "export" not in note:
        raise _invalid_note(path)
    if note["export"] != VERSION:
        raise StorageError(
            f"{path} is an export of version {note['export']}, "
            f"this release reads version {VERSION}",
            hint="read it with a newer release: pip install -U tdx",
        )
    try:
        batch = validate_shape(note["manifest"]["batch_size"], "batch_size")
        if not 1 <= math.prod(batch) <= MAX_ENVS:
            raise ValueError(f"batch_size is {batch}")
        manifest = Manifest.from_dict(note["manifest"])
        named = {(each["track"], tuple(each["key"])): each["name"] for each in note["columns"]}
        if not all(isinstance(name, str) for name in named.values()):
            raise TypeError("a column has no name")
        if manifest.data is None:
            raise ValueError("it has no data")
        for track, _ in manifest.tracks:
            for leaf in track.leaves:
                named[track.name, leaf]
    except _INVALID as error:
        raise _invalid_note(path) from error
    for track, _ in manifest.tracks:
        for leaf in track.leaves:
            check_key(leaf, path)
    return note


_INVALID = (
    *(KeyError, IndexError, TypeError, ValueError, AttributeError),
    *(OverflowError, RecursionError, MemoryError, StorageError, ArgumentError, AssertionError),
)
"""What parsing a damaged or forged manifest can raise."""


def _invalid_note(path: Path) -> StorageError:
    return StorageError(f"the note of tdx in {path} is invalid", hint="export the dump again")
