"""What importers read: columns of a file, with time first."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tdx.errors import StorageError
from tdx.rollouts.formats.stored import VERSION
from tdx.rollouts.formats.wire import Array
from tdx.rollouts.manifest import Manifest

NOTE = "tdx"
"""What the note that goes with the numbers is called."""


@dataclass(frozen=True, slots=True)
class Found:
    """A column of a file.

    Args:
        dtype: as NumPy has it.
        shape: all of it, time first.
    """

    dtype: Any
    shape: tuple[int, ...]


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


def read_note(text: str | bytes, path: object) -> dict[str, Any]:
    """The note of a file, from its JSON; see :func:`checked_note`."""
    try:
        note = json.loads(text)
    except ValueError:
        note = None
    return checked_note(note, path)


def checked_note(note: Any, path: object) -> dict[str, Any]:
    """The note of a file.

    Raises:
        StorageError: it is of a newer version, or cannot be understood.
    """
    unclear = StorageError(
        f"what tdx noted in {path} cannot be understood", hint="export the dump again"
    )
    if not isinstance(note, dict) or "export" not in note:
        raise unclear
    if note["export"] != VERSION:
        raise StorageError(
            f"{path} is an export of version {note['export']}, "
            f"this release reads version {VERSION}",
            hint="read it with a newer release: pip install -U tdx",
        )
    try:
        manifest = Manifest.from_dict(note["manifest"])
        named = {(each["track"], tuple(each["key"])): each["name"] for each in note["columns"]}
        for track, _ in manifest.tracks:
            for leaf in track.leaves:
                named[track.name, leaf]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise unclear from error
    return note
