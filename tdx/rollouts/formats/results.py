"""What an export or an import did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Entry:
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
    entries: tuple[Entry, ...]
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
