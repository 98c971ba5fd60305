"""Protocol of a format: its declaration, options, plans, results, and readers.

Loads neither torch nor the library of any format.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tdx.foundation.serialization import Entries, Entry, Result

if TYPE_CHECKING:
    from tdx.foundation.array_files import Array, FileColumn

NOTE = "tdx"
"""Name of the note in a file."""


@dataclass(frozen=True, slots=True)
class Format:
    """A format that dumps are exported to.

    Args:
        name: Name in ``--to`` and ``--from``.
        title: Description.
        suffixes: File suffixes; the first is that of a new export.
        mark: File that a folder of this format has; ``None``: the format is a file.
        packages: Modules that must be importable.
        extra: Extra of tdx that installs them.
        can_import: Whether it can be imported as a dump.
        has_frames: Whether it is a video, with nothing but the pixels.
        holds_raw: Whether raw steps of the base env are exported too.
        has_lossy: Whether a video can be smaller than an exact one.
    """

    name: str
    title: str
    suffixes: tuple[str, ...]
    mark: str | None = None
    packages: tuple[str, ...] = ()
    extra: str | None = None
    can_import: bool = True
    has_frames: bool = False
    holds_raw: bool = False
    has_lossy: bool = False

    @property
    def is_folder(self) -> bool:
        """True if an export is a folder."""
        return self.mark is not None

    def is_in(self, path: Path) -> bool:
        """Return True if a file or folder appears to have this format."""
        if self.mark is not None:
            return (path / self.mark).exists()
        return path.suffix.lower() in self.suffixes


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
class ExportColumn(Result):
    """An entry of a dump and its name in a file.

    Args:
        track: ``data``, or ``raw`` for the raw steps of the base env.
        path: Key of the entry.
        name: Name in the file.
    """

    json_entries: ClassVar[Entries] = ("track", Entry("key", "path"), "name")

    track: str
    path: tuple[str, ...]
    name: str


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

    def read_steps(self, names: Sequence[str], start: int, stop: int) -> Mapping[str, Array]:
        """Read a range of steps, ``[n, ...]`` per column.

        Ranges are contiguous: each one starts where the previous one stopped.
        """
        return {name: self.read_column(name, start, stop) for name in names}

    def read_column(self, name: str, start: int, stop: int) -> Array:
        """Read a range of steps of one column, ``[n, ...]``."""
        raise NotImplementedError(f"{type(self).__name__} has neither read_steps nor read_column")

    def is_at_end(self) -> bool:
        """Return True if no step remains to be read."""
        return True

    def notes(self) -> tuple[str, ...]:
        """Return remarks for the user about a file that tdx did not export."""
        return ()
