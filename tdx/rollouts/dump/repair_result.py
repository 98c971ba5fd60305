"""Result of a repair, and the folder for the files that it replaces."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import ClassVar

from tdx.confined_files import open_subfolder, write_below
from tdx.rollouts.dump.folder import DAMAGED_FOLDER, open_data
from tdx.rollouts.dump.verification import Verification
from tdx.serialization import Entries, Result


@dataclass(frozen=True, slots=True)
class Repair(Result):
    """What a repair kept and lost.

    Args:
        steps: Number of steps of each env that remain.
        chunks: Number of chunks that remain.
        episodes: Number of ended episodes that remain.
        lost_steps: Number of steps that were cut off.
        lost_chunks: Number of chunks that were cut off.
        lost_episodes: Number of ended episodes that were cut off.
        is_exact: False if the index is so damaged that more than these may be lost.
        lost_shards: Damaged shards, which were set aside, and missing ones.
        set_aside: Where the replaced files are kept, relative to the dump's folder.
        rewritten: Files that were missing and follow from the others.
        verification: Result of verifying the repaired dump.
    """

    json_entries: ClassVar[Entries] = (
        *("steps", "chunks", "episodes", "lost_steps", "lost_chunks", "lost_episodes", "is_exact"),
        *("lost_shards", "set_aside", "rewritten", "verification"),
    )

    steps: int
    chunks: int
    episodes: int
    lost_steps: int
    lost_chunks: int
    lost_episodes: int
    is_exact: bool
    lost_shards: tuple[int, ...]
    set_aside: tuple[str, ...]
    rewritten: tuple[str, ...]
    verification: Verification

    @property
    def is_unchanged(self) -> bool:
        """True if there was nothing to repair."""
        return not (self.set_aside or self.rewritten)


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
        """
        parent, _, last = file.rpartition("/")
        with open_subfolder(self._root, parent) as source:
            os.stat(last, dir_fd=source, follow_symlinks=False)
            name = self._choose_name(file).rpartition("/")[2]
            with open_subfolder(self._root, DAMAGED_FOLDER) as target:
                os.rename(last, name, src_dir_fd=source, dst_dir_fd=target)
                os.fsync(target)
            os.fsync(source)

    def _choose_name(self, file: str) -> str:
        """Return a new name for a file: ``damaged/1-manifest.json``."""
        flat = file.replace("/", "-")
        with open_subfolder(self._root, DAMAGED_FOLDER, create=True) as folder:
            taken = set(os.listdir(folder))
        number = next(n for n in range(1, len(taken) + 2) if f"{n}-{flat}" not in taken)
        self.names[file] = f"{DAMAGED_FOLDER}/{number}-{flat}"
        return self.names[file]
