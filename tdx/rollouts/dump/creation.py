"""Create a dump, replace an existing one, or lock an interrupted one to continue it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tdx.confined_files import open_folder
from tdx.errors import ArgumentError
from tdx.files import atomic_folder, sync_path
from tdx.rollouts.dump.folder import (
    DATA,
    INDEX,
    MANIFEST,
    POLICY_COPIES,
    RAW,
    STATE,
    TEMPORARY_FILE,
    check_not_locked,
    lock_for_writing,
)
from tdx.rollouts.dump.index import Position
from tdx.rollouts.dump.manifest import Manifest, load_manifest
from tdx.rollouts.dump.writer import RESUME_HINT, DumpWriter, report_write_errors

_FILES = frozenset({MANIFEST, INDEX, DATA, RAW, STATE, *POLICY_COPIES})
_RERUN = "make room, then run the command again"
_EXISTING = "--resume continues it, --force replaces it"


def check_target(folder: Path, force: bool, hint: str = _EXISTING) -> None:
    """Check that a dump may be written, before any work is done.

    Args:
        folder: Folder of the dump.
        force: Whether an existing dump may be replaced.
        hint: Hint of the error about an existing dump.

    Raises:
        ArgumentError: A dump exists and may not be replaced, another process is writing it,
            or the folder has something else.
    """
    check_not_locked(folder)
    _check_free(folder, force, hint)


def _check_free(folder: Path, force: bool, hint: str = _EXISTING) -> None:
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
        if each.name not in _FILES and not TEMPORARY_FILE.fullmatch(each.name)
    )
    if others:
        raise ArgumentError(
            f"{folder} has {others[0]!r}, which does not belong to a dump",
            hint="move it elsewhere: --force replaces the whole folder",
        )


def has_dump(folder: Path) -> bool:
    """Return True if the folder has a manifest."""
    return os.path.lexists(folder / MANIFEST)


def _is_empty(folder: Path) -> bool:
    """Return True if the folder has nothing but what precedes the manifest of a dump."""
    if not folder.is_dir():
        return False
    return all(
        TEMPORARY_FILE.fullmatch(each.name) or (each.name == INDEX and not each.lstat().st_size)
        for each in folder.iterdir()
    )


@contextmanager
def create_dump(
    folder: Path, manifest: Manifest, *, force: bool = False, atomic: bool = False
) -> Iterator[DumpWriter]:
    """Create a dump, and lock it; an existing dump is exchanged in a single step.

    Args:
        folder: Folder of the dump.
        manifest: Manifest of a dump without steps, with ``flags``.
        force: Whether an existing dump may be replaced.
        atomic: True: the dump appears complete, or not at all. False: it grows in its folder.

    Raises:
        ArgumentError: A dump exists and may not be replaced, or another process writes it.
        OutputError: It cannot be written.
    """
    check_target(folder, force)
    create, hint = (_create_atomically, _RERUN) if atomic else (_create_growing, RESUME_HINT)
    with (
        create(folder, manifest) as root,
        DumpWriter(root, folder, manifest, manifest.start(), hint) as writer,
    ):
        yield writer


@contextmanager
def _create_growing(folder: Path, manifest: Manifest) -> Iterator[int]:
    """Create an empty dump; yields the descriptor of its locked folder."""
    with ExitStack() as stack:
        with report_write_errors(folder, _RERUN):
            if has_dump(folder):
                with lock_for_writing(folder), atomic_folder(os.path.abspath(folder)) as part:
                    manifest.save(part)
                root = stack.enter_context(lock_for_writing(folder))
            else:
                folder.mkdir(parents=True, exist_ok=True)
                root = stack.enter_context(lock_for_writing(folder))
                _check_free(folder, False)
                manifest.save(folder)
                sync_path(folder.absolute().parent)
        yield root


@contextmanager
def _create_atomically(folder: Path, manifest: Manifest) -> Iterator[int]:
    """Create an empty dump in a temporary folder, which is renamed when the block ends."""
    with report_write_errors(folder, _RERUN), ExitStack() as stack:
        if has_dump(folder):
            stack.enter_context(lock_for_writing(folder))
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = stack.enter_context(atomic_folder(os.path.abspath(folder)))
        manifest.save(part)
        yield stack.enter_context(open_folder(part))


@contextmanager
def lock_interrupted_dump(folder: Path) -> Iterator[tuple[int, Manifest, Position]]:
    """Lock an interrupted dump, and read it without a partial chunk.

    Yields:
        The folder's descriptor, the manifest, and the end of the index.

    Raises:
        ArgumentError: Another process writes it.
        StorageError: It is damaged.
    """
    with lock_for_writing(folder) as root:
        manifest, end = load_manifest(root, folder, without_partial=True)
        yield root, manifest, end
