"""Writes a dump chunk by chunk, so that it opens with every finished one whatever happens."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tensordict import TensorDictBase

from tdx.errors import ArgumentError, OutputError, StorageError
from tdx.keys import NestedKey, format_key, key_parts, normal_key
from tdx.rollouts.episodes import Flags
from tdx.rollouts.lock import check_unwritten, only_writer
from tdx.rollouts.manifest import DATA, MANIFEST, RAW, Chunk, Manifest
from tdx.rollouts.packed import pack, unpack
from tdx.rollouts.track import Track, checksum, sync_files, sync_folder, write_atomically

_STATE = "state"
_AT_ONCE = 8
"""How many files are brought to the disk at once."""


class DumpWriter:
    """Appends chunks to a dump.

    A chunk counts from the moment on that the manifest names it: its numbers, and the state to go
    on from, are on the disk before that.

    Args:
        folder: of the dump.
        manifest: what is there already.
        flags: the keys of rewards and ends.
    """

    def __init__(self, folder: Path, manifest: Manifest, flags: Flags) -> None:
        self.folder, self.manifest = folder, manifest
        self._flags = flags
        self._dim = len(manifest.batch_size)
        self._pool = ThreadPoolExecutor(_AT_ONCE, "tdx-sync")

    @classmethod
    def create(cls, folder: Path, manifest: Manifest, flags: Flags, force: bool) -> DumpWriter:
        """Begin a dump in a new folder, which nobody else writes.

        Raises:
            ArgumentError: something is there, and may not or must not be overwritten.
            OutputError: it cannot be written there.
        """
        _check_free(folder, force)
        with _writing(folder):
            # The empty manifest goes first: at no moment is there a folder that is half a dump.
            manifest.save(folder)
            for name in (DATA, RAW, _STATE):
                shutil.rmtree(folder / name, ignore_errors=True)
            sync_folder(folder.parent)
            writer = cls(folder, manifest, flags)
        return writer

    def append(
        self,
        chunk: TensorDictBase,
        raw: TensorDictBase | None,
        state: dict[str, Any] | None,
        *,
        partial: bool = False,
    ) -> None:
        """Add a chunk ``[*B, T]``, and have it on the disk.

        Args:
            chunk: the rollout's entries.
            raw: what the env itself gave, where that is kept.
            state: all that is needed to go on after it; none where nobody will.
            partial: whether the env failed in it, so that one has to go on before it.

        Raises:
            OutputError: the disk is full, or cannot be written to.
        """
        manifest = self.manifest
        with _writing(self.folder):
            sums, raw_steps = {}, 0
            if manifest.data is None:
                manifest.data = Track.of(DATA, self._selected(chunk), self._dim)
            columns = manifest.data.columns(self._selected(chunk))
            sums = manifest.data.append(self.folder, columns, manifest.steps)
            if raw is not None:
                raw_steps = raw.shape[self._dim]
                if manifest.raw is None:
                    manifest.raw = Track.of(RAW, raw, self._dim)
                columns = manifest.raw.columns(raw)
                sums |= manifest.raw.append(self.folder, columns, manifest.raw_steps)
            sync_files((self.folder / name for name in sums), self._pool)
            manifest.episodes.add(*self._flags.read(chunk, self._dim))
            before = manifest.state
            if not partial:
                manifest.state = self._save_state(state, manifest.steps + chunk.shape[self._dim])
            manifest.chunks.append(Chunk(chunk.shape[self._dim], raw_steps, sums, partial))
            if partial:
                self._describe()
            manifest.save(self.folder)
            if before is not None and before != manifest.state:
                (self.folder / before).unlink(missing_ok=True)

    def _save_state(self, state: dict[str, Any] | None, steps: int) -> str | None:
        if state is None:
            return None
        name = f"{_STATE}/{steps:012}.state"
        (self.folder / _STATE).mkdir(exist_ok=True)
        index = self.manifest.episodes
        running = (index.starts, index.sums)
        write_atomically(self.folder / name, pack({**state, "running": running}))
        return name

    def finish(self) -> None:
        """Say that nothing is missing any more."""
        self.manifest.complete = True
        with _writing(self.folder):
            self._describe()
            self.manifest.save(self.folder)
        self._pool.shutdown()

    def _describe(self) -> None:
        for track, steps in self.manifest.tracks:
            track.describe(self.folder, steps)

    def drop_partial(self) -> None:
        """Leave out the chunk in which the env failed, and what belongs to it."""
        manifest = self.manifest
        if not manifest.chunks or not manifest.chunks[-1].partial:
            return
        del manifest.chunks[-1]
        state = self.state()
        rows = manifest.episodes.rows
        starts, sums = ([0] * rows, [0.0] * rows) if state is None else state["running"]
        manifest.episodes.cut(manifest.steps, starts, sums)

    def checksums(self, chunk: TensorDictBase) -> dict[str, str]:
        """The checksums that a chunk's entries would have."""
        track = self.manifest.data
        assert track is not None
        columns = track.columns(self._selected(chunk))
        return {track.file(path): checksum(column) for path, column in columns.items()}

    def state(self) -> dict[str, Any] | None:
        """What :meth:`append` was given with the last finished chunk."""
        if self.manifest.state is None:
            return None
        file = self.folder / self.manifest.state
        try:
            loaded: dict[str, Any] = unpack(file.read_bytes())
        except (OSError, ValueError, KeyError) as error:
            raise StorageError(
                f"{file} cannot be read: {error}", hint="roll out anew: --force overwrites the dump"
            ) from error
        return loaded

    def _selected(self, chunk: TensorDictBase) -> TensorDictBase:
        if self.manifest.keys is None:
            return chunk
        return selected(chunk, self.manifest.keys)


def selected(chunk: TensorDictBase, names: Iterable[str]) -> TensorDictBase:
    """The entries of these names, each at the root and below ``next``."""
    known = set(names)
    return chunk.select(*[key for key in all_keys(chunk) if known & set(names_of(key))])


def all_keys(tensordict: TensorDictBase) -> list[NestedKey]:
    """The keys of all entries."""
    return [normal_key(key) for key in tensordict.keys(True, True, is_leaf=_is_leaf)]


def names_of(key: NestedKey) -> tuple[str, ...]:
    """What an entry is called: ``next.reward`` is also ``reward``."""
    parts = key_parts(key)
    whole = format_key(key)
    return (whole, format_key(parts[1:])) if parts[0] == "next" and parts[1:] else (whole,)


def _is_leaf(kind: type) -> bool:
    return not issubclass(kind, TensorDictBase)


_GO_ON = "--resume goes on with it, --force overwrites it"


def check_target(folder: Path, force: bool, hint: str = _GO_ON) -> None:
    """Make sure that nothing is overwritten, before any work is done.

    Args:
        folder: of the dump.
        force: whether a dump that is there is overwritten.
        hint: what to do about one.

    Raises:
        ArgumentError: a dump is there and may not be overwritten, or is being written, or
            something else is there.
    """
    check_unwritten(folder)
    _check_free(folder, force, hint)


@contextmanager
def target(folder: Path) -> Iterator[None]:
    """Make the folder of a dump, and be the only one who writes it.

    Raises:
        ArgumentError: somebody writes it.
        OutputError: it cannot be made.
    """
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with only_writer(folder):
        yield


def _check_free(folder: Path, force: bool, hint: str = _GO_ON) -> None:
    if (folder / MANIFEST).exists():
        if not force:
            raise ArgumentError(f"there is a dump in {folder} already", hint=hint)
    elif folder.exists() and not _is_empty(folder):
        raise ArgumentError(f"{folder} is there and is no dump", hint="name a new folder")


def _is_empty(folder: Path) -> bool:
    """Whether there is nothing, or nothing but a manifest that was never finished."""
    unfinished = f".{MANIFEST}.part"
    return folder.is_dir() and all(each.name == unfinished for each in folder.iterdir())


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, (ArgumentError, OutputError)):
            raise
        reason = (error.strerror or str(error)).lower()
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        hint = "name another place"
        if full:
            hint = "make room, then --resume goes on after the last finished chunk"
        raise OutputError(f"cannot write {folder}: {reason}", hint=hint) from error
