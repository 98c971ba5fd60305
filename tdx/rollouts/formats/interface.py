"""What exporters and importers of all formats share: options, results, readers, and the note."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdx.errors import ArgumentError, StorageError
from tdx.rollouts.dump.entries import Parts
from tdx.rollouts.dump.manifest import Manifest
from tdx.rollouts.formats.arrays import Array, FileColumn
from tdx.rollouts.formats.untrusted_files import check_key
from tdx.untrusted import MAX_ENVS, checked_shape, parse_json


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What can be asked of an export, beside where and what.

    Args:
        episodes: which ones, by their place in ``tdx show``; all by default.
        fps: frames a second.
        split: whether each episode gets a file of its own.
        lossy: whether a film is to be small and to play everywhere, rather than to be exact.
        name: of the file or folder.
    """

    episodes: tuple[int, ...] | None = None
    fps: int = 30
    split: bool = False
    lossy: bool = False
    name: str = ""


@dataclass(frozen=True, slots=True)
class ExportedEntry:
    """An entry of a dump, and where it is in the file.

    Args:
        key: as people write it: ``next.reward``.
        place: its name in the file.
        shape: in one step of one env.
        dtype: such as ``"float32"``.
    """

    key: str
    place: str
    shape: tuple[int, ...]
    dtype: str

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        shape = list(self.shape)
        return {"key": self.key, "place": self.place, "shape": shape, "dtype": self.dtype}


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written, or would be.

    Args:
        source: the dump.
        path: what was written.
        format: its format.
        steps: of each env.
        batch_size: of the envs.
        episodes: how many are in it, those that still ran too.
        size: how many bytes it has; of a dry run about as many, none where that is not known.
        entries: what of the dump is in it.
        notes: what else is worth knowing.
        written: whether it was written.
    """

    source: str
    path: str
    format: str
    steps: int
    batch_size: tuple[int, ...]
    episodes: int
    size: int | None
    entries: tuple[ExportedEntry, ...]
    notes: tuple[str, ...]
    written: bool

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "source": self.source,
            "path": self.path,
            "format": self.format,
            "written": self.written,
            "steps": self.steps,
            "batch_size": list(self.batch_size),
            "episodes": self.episodes,
            "bytes": self.size,
            "notes": list(self.notes),
            "entries": [each.to_dict() for each in self.entries],
        }


@dataclass(frozen=True, slots=True)
class Imported:
    """The dump that was made.

    Args:
        source: the file or folder that was read.
        format: its format.
        path: the dump.
        summary: what a list of dumps says of it, as plain data.
        notes: what else is worth knowing.
    """

    source: str
    format: str
    path: str
    summary: dict[str, Any]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            **self.summary,
            "imported": self.source,
            "format": self.format,
            "notes": list(self.notes),
        }


VERSION = 1


@dataclass(frozen=True, slots=True)
class ExportColumn:
    """An entry and what it is called in a file.

    Args:
        track: ``data``, or ``raw`` for what the env itself gave.
        path: its key.
        name: in the file.
    """

    track: str
    path: Parts
    name: str

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {"track": self.track, "key": list(self.path), "name": self.name}


NOTE = "tdx"
"""What the note that goes with the numbers is called."""


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """What an export is going to write.

    Args:
        entries: what of the dump, and where.
        episodes: how many.
        size: of the numbers in bytes, before they are compressed; none where it is not known.
        notes: what is worth knowing.
    """

    entries: tuple[ExportedEntry, ...]
    episodes: int
    size: int | None
    notes: tuple[str, ...] = ()


class ColumnReader(ABC):
    """A file that is read from its first step to its last.

    Attributes:
        note: what tdx put down beside the numbers; none in a file of somebody else.
        env: the env that the data comes from, and the arguments it was made with, if the file says.
    """

    note: Mapping[str, Any] | None = None
    env: tuple[str, Mapping[str, Any]] | None = None

    @abstractmethod
    def columns(self) -> Mapping[str, FileColumn]:
        """Every column by its name."""

    @abstractmethod
    def rows(self, names: Sequence[str], start: int, stop: int) -> Mapping[str, Array]:
        """Some steps of columns, ``[n, ...]``.

        Steps are asked for in order: none twice, none left out.
        """

    def is_at_end(self) -> bool:
        """Whether no step is left that was not asked for."""
        return True

    def notes(self) -> tuple[str, ...]:
        """What is worth knowing about a file of somebody else."""
        return ()


def parse_note(text: str | bytes, path: Path) -> dict[str, Any]:
    """Parse the note of a file; see :func:`check_note`."""
    try:
        note = parse_json(text, path)
    except StorageError as error:
        raise _unclear(path) from error
    return check_note(note, path)


def check_note(note: Any, path: Path) -> dict[str, Any]:
    """Validate the note of a file.

    Raises:
        StorageError: It is of a newer version, or contradicts itself.
    """
    if not isinstance(note, dict) or "export" not in note:
        raise _unclear(path)
    if note["export"] != VERSION:
        raise StorageError(
            f"{path} is an export of version {note['export']}, "
            f"this release reads version {VERSION}",
            hint="read it with a newer release: pip install -U tdx",
        )
    try:
        batch = checked_shape(note["manifest"]["batch_size"], "batch_size")
        if not 1 <= math.prod(batch) <= MAX_ENVS:
            raise ValueError(f"batch_size is {batch}")
        manifest = Manifest.from_dict(note["manifest"])
        named = {(each["track"], tuple(each["key"])): each["name"] for each in note["columns"]}
        if not all(isinstance(name, str) for name in named.values()):
            raise TypeError("a column has no name")
        if manifest.data is None:
            raise ValueError("there is no data")
        for track, _ in manifest.tracks:
            for leaf in track.leaves:
                named[track.name, leaf]
    except _INVALID as error:
        raise _unclear(path) from error
    for track, _ in manifest.tracks:
        for leaf in track.leaves:
            check_key(leaf, path)
    return note


_INVALID = (
    *(KeyError, IndexError, TypeError, ValueError, AttributeError),
    *(OverflowError, RecursionError, MemoryError, StorageError, ArgumentError, AssertionError),
)
"""What reading a damaged or forged manifest can raise."""


def _unclear(path: Path) -> StorageError:
    return StorageError(
        f"what tdx noted in {path} cannot be understood", hint="export the dump again"
    )
