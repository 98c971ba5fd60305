"""What importers read: columns of a file, with time first."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tdx.errors import ArgumentError, StorageError
from tdx.rollouts.formats.found import Found
from tdx.rollouts.formats.stored import VERSION
from tdx.rollouts.formats.untrusted_files import check_key
from tdx.rollouts.formats.wire import Array
from tdx.rollouts.manifest import Manifest
from tdx.untrusted import MAX_ENVS, parse_json, validate_shape

__all__ = ["NOTE", "Found", "Reader", "checked_note", "read_note"]

NOTE = "tdx"
"""What the note that goes with the numbers is called."""


class Reader(ABC):
    """A file that is read from its first step to its last.

    Attributes:
        note: what tdx put down beside the numbers; none in a file of somebody else.
        env: the env that the data comes from, and the arguments it was made with, if the file says.
    """

    note: Mapping[str, Any] | None = None
    env: tuple[str, Mapping[str, Any]] | None = None

    @abstractmethod
    def columns(self) -> Mapping[str, Found]:
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


def read_note(text: str | bytes, path: Path) -> dict[str, Any]:
    """Parse the note of a file; see :func:`checked_note`."""
    try:
        note = parse_json(text, path)
    except StorageError as error:
        raise _unclear(path) from error
    return checked_note(note, path)


def checked_note(note: Any, path: Path) -> dict[str, Any]:
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
        batch = validate_shape(note["manifest"]["batch_size"], "batch_size")
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
