"""Writes a dump chunk by chunk, so that it opens with every finished one whatever happens."""

from __future__ import annotations

import errno
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from tensordict import TensorDictBase

from tdx.confined_files import open_below, open_folder, open_subfolder, unlink_below, write_below
from tdx.errors import ArgumentError, OutputError, StorageError, TdxError
from tdx.files import atomic_folder, sync_path
from tdx.keys import NestedKey, format_key, normalize_key, split_key
from tdx.rollouts.episodes import Columns, Flags
from tdx.rollouts.index import (
    DATA,
    INDEX,
    RAW,
    STATE,
    Entry,
    Position,
    StateFile,
    append_entry,
)
from tdx.rollouts.lock import check_unwritten, only_writer
from tdx.rollouts.manifest import MANIFEST, Chunk, Manifest, load_manifest
from tdx.rollouts.packed import pack, unpack
from tdx.rollouts.policy_files import KEPT_FILES
from tdx.rollouts.storable import storable
from tdx.rollouts.track import Track, checksum, open_data

_AT_ONCE = 8
"""Number of files that are written at the same time."""
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")
"""Name of a file that was not finished; see :mod:`tdx.files`."""
_PARTS = frozenset({MANIFEST, INDEX, DATA, RAW, STATE, *KEPT_FILES})
_RESUME = "make room, then --resume continues after the last finished chunk"
_AGAIN = "make room, then run the command again"


class DumpWriter:
    """Appends chunks to a dump.

    A chunk counts as soon as the index has its line: its numbers, and the state to resume from,
    are on the disk before that. Use it as a context manager.

    Args:
        root: Descriptor of the dump's folder.
        folder: What an error message calls it.
        manifest: What exists already.
        flags: Keys of rewards and ends.
        end: End of the index.
        hint: What to do if the disk is full.
    """

    def __init__(
        self,
        root: int,
        folder: Path,
        manifest: Manifest,
        flags: Flags,
        end: Position,
        hint: str = _RESUME,
    ) -> None:
        self.folder, self.manifest = folder, manifest
        self._root, self._flags, self._end, self._hint = root, flags, end, hint
        self._dim = len(manifest.batch_size)
        self._tracks = {track.name for track, _ in manifest.tracks}
        self._transforms = manifest.transforms
        self._has_descriptions = bool(manifest.steps)
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        self._pool = self._resources.enter_context(ThreadPoolExecutor(_AT_ONCE, "tdx-sync"))
        with _writing(self.folder, self._hint):
            self._index = open_below(self._root, INDEX, os.O_WRONLY | os.O_CREAT)
            self._resources.callback(os.close, self._index)
            # What a kill left of a line.
            os.ftruncate(self._index, self._end.offset)
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
            raw: What the env itself returned, if that is stored.
            state: What is needed to resume after it; ``None`` if nobody will.
            partial: True if the env failed in it, so that a resumed rollout repeats it.

        Raises:
            OutputError: The disk is full, or cannot be written to.
        """
        manifest = self.manifest
        with _writing(self.folder, self._hint):
            self._remove_descriptions()
            sums, raw_steps = self._write(DATA, self._selected(chunk), manifest.steps), 0
            if raw is not None:
                raw_steps = raw.shape[self._dim]
                sums |= self._write(RAW, raw, manifest.raw_steps)
            begun = [track for track, _ in manifest.tracks if track.name not in self._tracks]
            for track in begun:
                track.sync_folders(self._root)
            ended = manifest.episodes.add(*self._flags.read(chunk, self._dim))
            before = manifest.state
            if not partial:
                manifest.state = self._save_state(state, manifest.steps + chunk.shape[self._dim])
            added = Chunk(chunk.shape[self._dim], raw_steps, sums, partial)
            self._commit(added, ended, tuple(begun))
            if partial:
                self._describe()
            if before is not None and before != manifest.state:
                with suppress(FileNotFoundError):
                    unlink_below(self._root, before.path)

    def _write(self, name: str, data: TensorDictBase, start: int) -> dict[str, str]:
        track: Track | None = getattr(self.manifest, name)
        if track is None:
            track = Track.of(name, data, self._dim)
            setattr(self.manifest, name, track)
        return track.write(self._root, track.columns(data), start, self._pool)

    def _commit(self, chunk: Chunk, ended: Columns, begun: tuple[Track, ...]) -> None:
        manifest = self.manifest
        changed = manifest.transforms != self._transforms
        entry = Entry(
            chunk,
            ended,
            manifest.episodes.running(),
            begun,
            manifest.transforms if changed or not manifest.chunks else None,
            None if chunk.partial else manifest.state,
        )
        self._end = append_entry(self._index, entry, self._end)
        self._transforms = manifest.transforms
        self._tracks.update(track.name for track in begun)
        manifest.chunks.append(chunk)

    def _save_state(self, state: dict[str, Any] | None, steps: int) -> StateFile | None:
        if state is None:
            return None
        block = pack(state)
        file = StateFile.after(steps, zlib.crc32(block))
        write_below(self._root, file.path, block)
        return file

    def finish(self) -> None:
        """Mark the dump as complete."""
        self.manifest.complete = True
        with _writing(self.folder, self._hint):
            self._describe()
            self.manifest.state = None
            self.manifest.save_header(self._root, self._end)
            remove_leftovers(self._root, self.manifest)

    def _describe(self) -> None:
        for track, steps in self.manifest.tracks:
            track.write_descriptions(self._root, steps)

    def _remove_descriptions(self) -> None:
        """Remove those of a dump that gets more steps."""
        if self._has_descriptions:
            for track, _ in self.manifest.tracks:
                track.remove_descriptions(self._root)
        self._has_descriptions = False

    def checksums(self, chunk: TensorDictBase) -> dict[str, str]:
        """Return the checksums that a chunk's entries would have."""
        track = self.manifest.data
        assert track is not None
        columns = track.columns(self._selected(chunk))
        return {track.file(path): checksum(column) for path, column in columns.items()}

    def state(self) -> dict[str, Any] | None:
        """Return what :meth:`append` was given with the last finished chunk.

        Raises:
            StorageError: Its file is missing or damaged.
        """
        if self.manifest.state is None:
            return None
        file = self.folder / self.manifest.state.path
        hint = "record the dump again: --force replaces it"
        try:
            found: dict[str, Any] = unpack(read_state(self._root, self.manifest.state))
        except (OSError, ValueError) as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(f"cannot read {file}: {error}", hint=hint) from error
        return found

    def _selected(self, chunk: TensorDictBase) -> TensorDictBase:
        if self.manifest.keys is None:
            return storable(chunk)
        return selected(chunk, self.manifest.keys)


def read_state(root: int, state: StateFile) -> bytes:
    """Return the content of a state file.

    Args:
        root: Descriptor of the dump's folder.
        state: The file.

    Raises:
        OSError: It cannot be read.
        ValueError: It was changed.
        StorageError: It is a link.
    """
    with open_data(root, state.path) as file:
        block = file.read()
    if f"{zlib.crc32(block):08x}" != state.crc32:
        raise ValueError("its checksum differs")
    return block


def remove_leftovers(root: int, manifest: Manifest) -> None:
    """Remove state files that the index does not name, and temporary files of killed writers.

    Args:
        root: Descriptor of the dump's folder.
        manifest: The dump's.
    """
    kept = None if manifest.state is None else manifest.state.name
    with suppress(FileNotFoundError):
        with open_subfolder(root, STATE) as folder:
            for name in os.listdir(folder):
                if name != kept and (_TEMPORARY.fullmatch(name) or name.endswith(".state")):
                    os.unlink(name, dir_fd=folder)
        if kept is None:
            with suppress(OSError):
                os.rmdir(STATE, dir_fd=root)
    for name in os.listdir(root):
        if _TEMPORARY.fullmatch(name):
            with suppress(OSError):
                os.unlink(name, dir_fd=root)


def selected(chunk: TensorDictBase, names: Iterable[str]) -> TensorDictBase:
    """The entries of these names, each at the root and below ``next``."""
    known = set(names)
    return chunk.select(*[key for key in all_keys(chunk) if known & set(names_of(key))])


def all_keys(tensordict: TensorDictBase) -> list[NestedKey]:
    """The keys of all entries."""
    return [normalize_key(key) for key in tensordict.keys(True, True, is_leaf=_is_leaf)]


def names_of(key: NestedKey) -> tuple[str, ...]:
    """What an entry is called: ``next.reward`` is also ``reward``."""
    parts = split_key(key)
    whole = format_key(key)
    return (whole, format_key(parts[1:])) if parts[0] == "next" and parts[1:] else (whole,)


def _is_leaf(kind: type) -> bool:
    return not issubclass(kind, TensorDictBase)


_OTHERWISE = "--resume continues it, --force replaces it"


def check_target(folder: Path, force: bool, hint: str = _OTHERWISE) -> None:
    """Make sure that nothing is overwritten, before any work is done.

    Args:
        folder: Folder of the dump.
        force: Whether an existing dump may be replaced.
        hint: What to do about one.

    Raises:
        ArgumentError: A dump exists and may not be replaced, or is being written, or something
            else has that name.
    """
    check_unwritten(folder)
    _check_free(folder, force, hint)


def _check_free(folder: Path, force: bool, hint: str = _OTHERWISE) -> None:
    if not has_dump(folder):
        if os.path.lexists(folder) and not _is_empty(folder):
            raise ArgumentError(f"{folder} exists and is not a dump", hint="name a new folder")
        return
    if not force:
        raise ArgumentError(f"{folder} already has a dump", hint=hint)
    if folder.is_symlink():
        raise ArgumentError(
            f"{folder} is a symbolic link to {os.readlink(folder)}",
            hint="name the folder itself; tdx neither replaces nor follows links",
        )
    others = sorted(
        each.name
        for each in folder.iterdir()
        if each.name not in _PARTS and not _TEMPORARY.fullmatch(each.name)
    )
    if others:
        raise ArgumentError(
            f"{folder} has {others[0]!r}, which does not belong to a dump",
            hint="move it elsewhere: --force replaces the whole folder",
        )


def has_dump(folder: Path) -> bool:
    """True if there is something that claims to be a dump."""
    return os.path.lexists(folder / MANIFEST)


def _is_empty(folder: Path) -> bool:
    """True if there is nothing, or only what a dump has before its manifest."""
    if not folder.is_dir():
        return False
    return all(
        _TEMPORARY.fullmatch(each.name) or (each.name == INDEX and not each.lstat().st_size)
        for each in folder.iterdir()
    )


@contextmanager
def new_dump(
    folder: Path, manifest: Manifest, flags: Flags, *, force: bool = False
) -> Iterator[DumpWriter]:
    """Create a dump that grows in its place, and lock it.

    An existing dump is exchanged for an empty one in a single step.

    Args:
        folder: Folder of the dump.
        manifest: Of a dump without a step.
        flags: Keys of rewards and ends.
        force: Whether an existing dump may be replaced.

    Raises:
        ArgumentError: A dump exists and may not be replaced, or another process writes it.
        OutputError: It cannot be written.
    """
    check_target(folder, force)
    manifest.flags = flags
    with ExitStack() as stack:
        with _writing(folder, _AGAIN):
            if has_dump(folder):
                with only_writer(folder), atomic_folder(os.path.abspath(folder)) as part:
                    manifest.save(part)
                root = stack.enter_context(only_writer(folder))
            else:
                folder.mkdir(parents=True, exist_ok=True)
                root = stack.enter_context(only_writer(folder))
                _check_free(folder, False)
                manifest.save(folder)
                sync_path(folder.absolute().parent)
        writer = DumpWriter(root, folder, manifest, flags, manifest.start())
        yield stack.enter_context(writer)


@contextmanager
def whole_dump(
    folder: Path, manifest: Manifest, flags: Flags, *, force: bool = False
) -> Iterator[DumpWriter]:
    """Create a dump that appears complete, or not at all.

    Args:
        folder: Folder of the dump.
        manifest: Of a dump without a step.
        flags: Keys of rewards and ends.
        force: Whether an existing dump may be replaced.

    Raises:
        ArgumentError: A dump exists and may not be replaced, or another process writes it.
        OutputError: It cannot be written.
    """
    check_target(folder, force)
    manifest.flags = flags
    with _writing(folder, _AGAIN), ExitStack() as stack:
        if has_dump(folder):
            stack.enter_context(only_writer(folder))
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = stack.enter_context(atomic_folder(os.path.abspath(folder)))
        manifest.save(part)
        root = stack.enter_context(open_folder(part))
        start = manifest.start()
        writer = DumpWriter(root, folder, manifest, flags, start, _AGAIN)
        yield stack.enter_context(writer)


@contextmanager
def resumed_dump(folder: Path) -> Iterator[tuple[int, Manifest, Position]]:
    """Lock an interrupted dump, and read it without a chunk in which the env failed.

    Yields:
        The folder's descriptor, the manifest, and the end of the index.

    Raises:
        ArgumentError: Another process writes it.
        StorageError: It is damaged.
    """
    with only_writer(folder) as root:
        manifest, end = load_manifest(root, folder, without_partial=True)
        yield root, manifest, end


@contextmanager
def _writing(folder: Path, full_hint: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, TdxError):
            raise
        reason = (error.strerror or str(error)).lower()
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        hint = full_hint if is_full else "name another place"
        raise OutputError(f"cannot write {folder}: {reason}", hint=hint) from error
