"""Create a dump, replace one, or lock an interrupted one to continue it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tdx.errors import ArgumentError
from tdx.files import (
    atomic_folder,
    open_folder,
    sync_path,
)
from tdx.rollouts.dump.episodes import Flags
from tdx.rollouts.dump.folder import (
    _TEMPORARY,
    DATA,
    INDEX,
    KEPT_FILES,
    MANIFEST,
    RAW,
    STATE,
    check_unwritten,
    only_writer,
)
from tdx.rollouts.dump.index import Position
from tdx.rollouts.dump.manifest import Manifest, load_manifest
from tdx.rollouts.dump.writer import DumpWriter, _writing

_PARTS = frozenset({MANIFEST, INDEX, DATA, RAW, STATE, *KEPT_FILES})


_AGAIN = "make room, then run the command again"


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
