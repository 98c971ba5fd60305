"""Save a replay buffer in a folder: one file of raw numbers per leaf, and a manifest.

A save writes files with new names and then replaces the manifest, which lists them. An
interrupted save leaves the old manifest and the old files. A process that has mapped the old
files keeps them.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import secrets
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

import torch
from torch import Tensor

from tdx.data.layout import Layout, Leaves
from tdx.data.saved_manifest import (
    MANIFEST,
    Array,
    Manifest,
    manifest_text,
    parse_manifest,
)
from tdx.foundation.confined_files import open_below, open_folder, unlink_below, write_below
from tdx.foundation.errors import StorageError
from tdx.foundation.files import UnsyncedError, make_folders
from tdx.foundation.untrusted import MAX_HEADER_BYTES

_TEMPORARY = re.compile(rf"[.]{re.escape(MANIFEST)}[.][0-9a-f]{{16}}[.]tmp")
_DATA = re.compile(r"\d{3,}-[0-9a-f]{16}[.]bin")
_BLOCK = 2**22
_ATTEMPTS = 10
_SAVE_AGAIN = "the file was cut short or changed: save the buffer again"


@dataclass(frozen=True)
class Saved:
    """Content of a saved buffer.

    Args:
        layout: Layout of a step; ``None`` if nothing was ever stored.
        leaves: Filled rows of every leaf, ``[rows, *B, ...]``.
        begins: Steps that do not continue the step before them, bool ``[rows, width]``.
        rows: Number of filled rows.
        batch: Dims ``[*B]``.
        cursor: Row that is written next.
        max_rows: Capacity in rows.
        write_count: Number of rows ever written.
        sampler: State of the sampler; its tensors become files, the rest is plain data.
    """

    layout: Layout | None
    leaves: Leaves
    begins: Tensor
    rows: int
    batch: tuple[int, ...]
    cursor: int
    max_rows: int
    write_count: int
    sampler: dict[str, Any]


def save(folder: FilePath, saved: Saved) -> None:
    """Write a buffer's data; until it is complete, an earlier save in the folder stays valid.

    Other files in the folder are not touched. Files of earlier and of killed saves are removed.

    Raises:
        StorageError: The disk is full, the folder is not writable, or its manifest is a link.
    """
    try:
        make_folders(folder)
        with open_folder(folder) as descriptor, _only_saver(descriptor):
            _save(folder, descriptor, saved, secrets.token_hex(8))
    except UnsyncedError as error:
        raise StorageError(error.message, hint=error.hint) from error
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(
            f"cannot save the buffer in {folder}: {error.strerror or error}",
            hint="choose another folder, or make room",
        ) from error


def _save(path: FilePath, folder: int, saved: Saved, token: str) -> None:
    outdated = _files_of_manifest(folder)
    try:
        manifest = _write_data(folder, saved, token)
        os.fsync(folder)
        write_below(folder, MANIFEST, manifest_text(manifest))
    except BaseException as error:
        if not any(token in name for name in _files_of_manifest(folder)):
            _remove(folder, [name for name in os.listdir(folder) if token in name])
        elif isinstance(error, OSError):
            raise UnsyncedError(path, error) from error
        raise
    names = [name for name in os.listdir(folder) if token not in name]
    ours = [name for name in names if _DATA.fullmatch(name) or _TEMPORARY.fullmatch(name)]
    _remove(folder, outdated.intersection(names).union(ours))


def load(folder: FilePath) -> Saved:
    """Read what :func:`save` wrote, without running any code from it.

    Raises:
        StorageError: The folder has no saved buffer, or a file of it is missing or damaged.
    """
    try:
        with open_folder(folder) as descriptor:
            return _load(folder, descriptor)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise _unreadable(folder, error) from error


def _load(folder: FilePath, descriptor: int) -> Saved:
    """Read manifest and data; start again if another process saved in the meantime."""
    for _ in range(_ATTEMPTS):
        text = _read(descriptor, MANIFEST)
        try:
            return _read_saved(folder, descriptor, parse_manifest(text, folder / MANIFEST))
        except FileNotFoundError:
            if _read(descriptor, MANIFEST) == text:
                raise
    raise StorageError(
        f"{folder} is being changed by another process", hint="wait until it has saved the buffer"
    )


def _unreadable(folder: FilePath, error: OSError) -> StorageError:
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        missing = FilePath(error.filename or MANIFEST).name
        what = MANIFEST if missing == folder.name else missing
        return StorageError(
            f"{folder} has no saved buffer: {what} is missing",
            hint="pass the folder that dumps() was given",
        )
    return StorageError(
        f"cannot read the buffer in {folder}: {error.strerror or error}",
        hint="check the permissions of the folder and its files",
    )


# Writing


@contextmanager
def _only_saver(folder: int) -> Iterator[None]:
    """Wait for other processes that save into the folder; the lock goes with the descriptor."""
    with suppress(OSError):  # some network file systems have no locks
        fcntl.flock(folder, fcntl.LOCK_EX)
    yield


def _files_of_manifest(folder: int) -> set[str]:
    """Return the names of the files in the current manifest; empty without a manifest.

    Raises:
        StorageError: The manifest is a link or not a regular file.
    """
    try:
        text = _read(folder, MANIFEST)
    except FileNotFoundError:
        return set()
    try:
        return {array.file for array in parse_manifest(text, MANIFEST).arrays}
    except StorageError:
        return set()


def _write_data(folder: int, saved: Saved, token: str) -> Manifest:
    tensors = {name: each for name, each in saved.sampler.items() if isinstance(each, Tensor)}
    arrays = []
    for number, tensor in enumerate([*saved.leaves.values(), saved.begins, *tensors.values()]):
        file = f"{number:03}-{token}.bin"
        arrays.append(Array(file, tensor.dtype, tuple(tensor.shape), _write(folder, file, tensor)))
    leaves = dict(zip(saved.leaves, arrays, strict=False))
    return Manifest(
        layout=saved.layout,
        leaves=leaves,
        begins=arrays[len(leaves)],
        rows=saved.rows,
        batch=saved.batch,
        cursor=saved.cursor,
        max_rows=saved.max_rows,
        write_count=saved.write_count,
        sampler={name: each for name, each in saved.sampler.items() if name not in tensors},
        sampler_arrays=dict(zip(tensors, arrays[len(leaves) + 1 :], strict=True)),
    )


def _write(folder: int, name: str, tensor: Tensor) -> str:
    """Write the numbers of a tensor and flush them to the disk; returns their checksum."""
    flat: Any = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    data, crc = memoryview(flat), 0
    descriptor = open_below(folder, name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        for start in range(0, len(data), _BLOCK):
            block = data[start : start + _BLOCK]
            crc = zlib.crc32(block, crc)
            while block:
                block = block[file.write(block) :]
        os.fsync(file.fileno())
    return f"{crc:08x}"


def _remove(folder: int, names: Iterable[str]) -> None:
    for name in names:
        with suppress(OSError):
            unlink_below(folder, name)


# Reading


def _read(folder: int, name: str) -> bytes:
    with os.fdopen(open_below(folder, name), "rb") as file:
        data = file.read(MAX_HEADER_BYTES + 1)
    if len(data) > MAX_HEADER_BYTES:
        raise StorageError(
            f"{name} has more than {MAX_HEADER_BYTES:,} bytes", hint="tdx did not write this file"
        )
    return data


def _read_saved(folder: FilePath, descriptor: int, manifest: Manifest) -> Saved:
    def map_array(array: Array) -> Tensor:
        return _map_file(folder, descriptor, array)

    arrays: Mapping[str, Array] = manifest.sampler_arrays
    return Saved(
        layout=manifest.layout,
        leaves={path: map_array(array) for path, array in manifest.leaves.items()},
        begins=map_array(manifest.begins),
        rows=manifest.rows,
        batch=manifest.batch,
        cursor=manifest.cursor,
        max_rows=manifest.max_rows,
        write_count=manifest.write_count,
        sampler=manifest.sampler | {name: map_array(array) for name, array in arrays.items()},
    )


def _map_file(folder: FilePath, descriptor: int, array: Array) -> Tensor:
    """Map a file into memory, privately, after comparing its size and checksum."""
    handle = open_below(descriptor, array.file)
    try:
        found = os.fstat(handle).st_size
        if found != array.size:
            raise StorageError(
                f"{folder / array.file} has {found:,} bytes instead of {array.size:,}",
                hint=_SAVE_AGAIN,
            )
        if not found:
            return torch.empty(array.shape, dtype=array.dtype)
        data = mmap.mmap(handle, found, access=mmap.ACCESS_COPY)
    finally:
        os.close(handle)
    if array.crc32 is not None and array.crc32 != f"{_checksum(data):08x}":
        raise StorageError(f"{folder / array.file} does not match its checksum", hint=_SAVE_AGAIN)
    try:
        return torch.frombuffer(data, dtype=array.dtype).reshape(array.shape)
    except (RuntimeError, ValueError, TypeError) as error:
        raise StorageError(
            f"{folder / array.file} cannot be read as {array.dtype}", hint=_SAVE_AGAIN
        ) from error


def _checksum(data: mmap.mmap) -> int:
    crc = 0
    with memoryview(data) as view:
        for start in range(0, len(view), _BLOCK):
            crc = zlib.crc32(view[start : start + _BLOCK], crc)
    return crc
