"""Write a dump: create or replace it, lock an interrupted one, append chunks, report progress.

A dump can be opened with every finished chunk after any crash.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from tensordict import TensorDictBase

from tdx.foundation.container import TEMPORARY_FILE, Container, make_folders
from tdx.foundation.errors import ArgumentError, StorageError, explain_os_error
from tdx.foundation.files import atomic_folder, check_no_link, report_write_errors
from tdx.rollouts.dump.encoding import pack, unpack
from tdx.rollouts.dump.entries import select_entries, select_storable
from tdx.rollouts.dump.folder import (
    DAMAGED_FOLDER,
    DATA,
    INDEX,
    MANIFEST,
    POLICY_COPIES,
    RAW,
    SHARD_INDEX,
    SHARDS,
    STATE,
    StateFile,
    lock_for_writing,
    read_state,
    remove_leftovers,
)
from tdx.rollouts.dump.index import Chunk, IndexEntry, Position, append_entry
from tdx.rollouts.dump.manifest import Manifest
from tdx.rollouts.dump.track import Track, checksum

_MAX_THREADS = 8
"""Number of files that are written concurrently."""
RESUME_HINT = "make room, then --resume continues after the last finished chunk"
_FILES = frozenset(
    {MANIFEST, INDEX, DATA, RAW, STATE, SHARDS, SHARD_INDEX, DAMAGED_FOLDER, *POLICY_COPIES}
)
_RERUN = "make room, then run the command again"
_EXISTING = "--resume continues it, --force replaces it"


class DumpWriter:
    """Appends chunks to a dump.

    A chunk counts as soon as the index has its line: its numbers, and the state to resume from, are
    on the disk before that. Use it as a context manager. The manifest needs ``flags``; ``end`` is
    the end of the index; ``hint`` is that of the error if the disk is full.
    """

    def __init__(
        self, root: Container, manifest: Manifest, end: Position, hint: str = RESUME_HINT
    ) -> None:
        if manifest.flags is None:
            raise ValueError("the manifest has no flags")
        self.folder, self.manifest = root.path, manifest
        self._root, self._flags, self._end, self._hint = root, manifest.flags, end, hint
        self._dim = len(manifest.batch_size)
        self._tracks = {track.name for track, _ in manifest.tracks}
        self._transforms = manifest.transforms
        self._has_descriptions = bool(manifest.steps)
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        self._pool = self._resources.enter_context(ThreadPoolExecutor(_MAX_THREADS, "tdx-sync"))
        with report_write_errors(self.folder, full_hint=self._hint):
            index = self._root.open_file(INDEX, os.O_WRONLY | os.O_CREAT)
            self._index = self._resources.enter_context(index)
            # Cut off the incomplete line of a killed process.
            self._index.truncate(self._end.offset)
        return self

    def __exit__(self, *error: object) -> None:
        self._resources.close()

    def append(
        self,
        chunk: TensorDictBase,
        raw: TensorDictBase | None,
        state: dict[str, Any] | None,
        *,
        partial: bool = False,
    ) -> None:
        """Add a chunk ``[*B, T]``, and wait until it is on the disk.

        Args:
            chunk: The rollout's entries.
            raw: Raw steps of the base env, if they are stored.
            state: State to resume from after the chunk; ``None``: the rollout cannot be resumed.
            partial: True if the env failed in the chunk, so that a resumed rollout repeats it.
        """
        manifest = self.manifest
        with report_write_errors(self.folder, full_hint=self._hint):
            if self._has_descriptions:
                # They state the number of steps.
                for track, _ in manifest.tracks:
                    track.remove_descriptions(self._root)
                self._has_descriptions = False
            sums, raw_steps = self._write(DATA, self.select(chunk), manifest.steps), 0
            if raw is not None:
                raw_steps = raw.shape[self._dim]
                sums |= self._write(RAW, raw, manifest.raw_steps)
            new = [track for track, _ in manifest.tracks if track.name not in self._tracks]
            for track in new:
                track.sync_folders(self._root)
            ended = manifest.episodes.add(*self._flags.read(chunk, self._dim))
            before = manifest.state
            if not partial:
                manifest.state = self._save_state(state, manifest.steps + chunk.shape[self._dim])
            added = Chunk(chunk.shape[self._dim], raw_steps, sums, partial)
            changed = manifest.transforms != self._transforms
            entry = IndexEntry(
                added,
                ended,
                manifest.episodes.running(),
                tuple(new),
                manifest.transforms if changed or not manifest.chunks else None,
                None if partial else manifest.state,
            )
            self._end = append_entry(self._index.fileno(), entry, self._end)
            self._transforms = manifest.transforms
            self._tracks.update(track.name for track in new)
            manifest.chunks.append(added)
            if partial:
                self._describe()
            if before is not None and before != manifest.state:
                with suppress(FileNotFoundError):
                    self._root.remove(before.path)

    def _write(self, name: str, data: TensorDictBase, start: int) -> dict[str, str]:
        track: Track | None = getattr(self.manifest, name)
        if track is None:
            track = Track.of(name, data, self._dim)
            setattr(self.manifest, name, track)
        return track.write(self._root, track.columns(data), start, self._pool)

    def _save_state(self, state: dict[str, Any] | None, steps: int) -> StateFile | None:
        if state is None:
            return None
        block = pack(state)
        file = StateFile.after(steps, zlib.crc32(block))
        self._root.replace(file.path, block)
        return file

    def finish(self) -> None:
        """Mark the dump as complete."""
        self.manifest.complete = True
        with report_write_errors(self.folder, full_hint=self._hint):
            self._describe()
            self.manifest.state = None
            self.manifest.save_header(self._root, self._end)
        with suppress(OSError):
            remove_leftovers(self._root, None)

    def _describe(self) -> None:
        for track, steps in self.manifest.tracks:
            track.write_descriptions(self._root, steps)

    def checksums(self, chunk: TensorDictBase) -> dict[str, str]:
        """Return the checksums that a chunk's entries would have."""
        track = self.manifest.data
        assert track is not None
        columns = track.columns(self.select(chunk))
        return {track.file(path): checksum(column) for path, column in columns.items()}

    def read_state(self) -> dict[str, Any] | None:
        """Return the state that was saved with the last finished chunk."""
        if self.manifest.state is None:
            return None
        try:
            state: dict[str, Any] = unpack(read_state(self._root, self.manifest.state))
        except (OSError, ValueError) as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(
                f"cannot read {self.folder / self.manifest.state.path}: {explain_os_error(error)}",
                hint=f"`tdx verify {self.folder} --repair` keeps the chunks, and --resume then "
                "runs their steps again",
            ) from error
        return state

    def select(self, chunk: TensorDictBase) -> TensorDictBase:
        """Return the entries of a chunk ``[*B, T]`` that the dump stores."""
        if self.manifest.keys is None:
            return select_storable(chunk)
        return select_entries(chunk, self.manifest.keys)


def check_target(folder: Path, force: bool, hint: str = _EXISTING) -> None:
    """Check that a dump may be written, before any work is done, and that nobody locks it."""
    if folder.is_dir() and os.access(folder, os.R_OK):
        with lock_for_writing(folder):
            pass
    check_free(folder, force, hint)


def check_free(folder: Path, force: bool, hint: str = _EXISTING, *, first: str = INDEX) -> None:
    """Check that a dump may be written, even if this process holds its lock.

    ``first`` is written first: a killed process may have left it, empty, and the copy of a policy
    after it, without the manifest that makes a dump of them.
    """
    if not has_dump(folder):
        names = set(os.listdir(folder)) if folder.is_dir() else set()
        names = {name for name in names if not TEMPORARY_FILE.fullmatch(name)}
        if first in names:
            start = folder / first
            is_free = names <= {first, *POLICY_COPIES} and not (
                os.listdir(start) if start.is_dir() else start.lstat().st_size
            )
        else:
            is_free = not names and (folder.is_dir() or not os.path.lexists(folder))
        if not is_free:
            raise ArgumentError(f"{folder} exists and is not a dump", hint="name a new folder")
        return
    if not force:
        raise ArgumentError(f"{folder} already has a dump", hint=hint)
    check_no_link(folder)
    others = sorted(
        path.name
        for path in folder.iterdir()
        if path.name not in _FILES and not TEMPORARY_FILE.fullmatch(path.name)
    )
    if others:
        raise ArgumentError(
            f"{folder} has {others[0]!r}, which does not belong to a dump",
            hint="move it elsewhere: --force replaces the whole folder",
        )


def has_dump(folder: Path) -> bool:
    """Return True if the folder has a manifest."""
    return os.path.lexists(folder / MANIFEST)


def write_policy(root: Container, copy: tuple[str, bytes] | None) -> None:
    """Write the copy (name and content) of a policy's file before the manifest that needs it."""
    for name in POLICY_COPIES.intersection(root.names()):
        # A killed process may have left that of another policy.
        root.remove(name)
    if copy is not None:
        root.replace(*copy)


@contextmanager
def create_dump(
    folder: Path,
    manifest: Manifest,
    *,
    policy_copy: tuple[str, bytes] | None = None,
    force: bool = False,
    atomic: bool = False,
) -> Iterator[DumpWriter]:
    """Create a dump, and lock it; an existing dump is exchanged in a single step.

    An ``atomic`` dump appears complete or not at all; another one grows in its folder.
    """
    check_target(folder, force)

    def start(root: Container) -> None:
        # The empty index marks the folder as a dump that begins; see check_free().
        root.replace(INDEX, b"")
        write_policy(root, policy_copy)
        manifest.save_header(root, manifest.start())

    with ExitStack() as stack:
        if atomic:
            stack.enter_context(report_write_errors(folder, full_hint=_RERUN))
            if has_dump(folder):
                stack.enter_context(lock_for_writing(folder))
            make_folders(folder.parent)
            part = stack.enter_context(atomic_folder(os.path.abspath(folder)))
            root = stack.enter_context(Container.open(part, folder))
            start(root)
        else:
            with report_write_errors(folder, full_hint=_RERUN):
                if has_dump(folder):
                    with (
                        lock_for_writing(folder),
                        atomic_folder(os.path.abspath(folder)) as part,
                        Container.open(part) as new,
                    ):
                        start(new)
                    root = stack.enter_context(lock_for_writing(folder))
                else:
                    make_folders(folder)
                    root = stack.enter_context(lock_for_writing(folder))
                    check_free(folder, False)
                    start(root)
        hint = _RERUN if atomic else RESUME_HINT
        yield stack.enter_context(DumpWriter(root, manifest, manifest.start(), hint))
