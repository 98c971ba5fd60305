"""Zarr 3: a group with an array an entry, compressed with Zstandard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tdx.errors import StorageError
from tdx.rollouts.formats.hdf5 import chunk_shape, grouped_columns
from tdx.rollouts.formats.options import Options
from tdx.rollouts.formats.reader import NOTE, Found, Reader, checked_note
from tdx.rollouts.formats.stored import Stored
from tdx.rollouts.formats.wire import Array, array_form, to_array
from tdx.rollouts.formats.zarr_checks import ZarrArray, check_group

_CHUNK = 2**22
"""Bytes in a file, before they are compressed."""


def write(stored: Stored, target: Path, options: Options) -> tuple[str, ...]:
    """Write one array an entry, time first, and the note as an attribute of the group."""
    import zarr

    columns = grouped_columns(stored)
    group = zarr.open_group(str(target), mode="w", zarr_format=3)
    for column in columns:
        track, steps = stored.track(column.track)
        dtype, shape = track.leaves[column.path]
        kind, more = array_form(dtype)
        full = (steps, *shape, *more)
        chunks = chunk_shape(full, kind, _CHUNK)
        array = group.create_array(column.name, shape=full, dtype=kind, chunks=chunks)
        start = 0
        # Whole chunks at a time: a part of one would have the rest read and written again.
        for block in _regrouped(map(to_array, stored.column_blocks(column)), chunks[0]):
            if block.size:
                array[start : start + len(block)] = block
            start += len(block)
    group.attrs[NOTE] = stored.note(columns)
    return ()


def _regrouped(blocks: Iterator[Array], steps: int) -> Iterator[Array]:
    """The same rows in blocks whose lengths are multiples of ``steps``; the last one is not."""
    left: list[Array] = []
    count = 0
    for block in blocks:
        left.append(block)
        count += len(block)
        if count >= steps:
            whole = np.concatenate(left)
            cut = count - count % steps
            yield whole[:cut]
            left, count = [whole[cut:]], count - cut
    if count:
        yield np.concatenate(left)


@contextmanager
def read(path: Path) -> Iterator[Reader]:
    """Open a group; no number is read yet."""
    import zarr

    stored = check_group(path)
    try:
        # Consolidated metadata may name arrays elsewhere: the folder itself says what is in it.
        group = zarr.open_group(str(path), mode="r", use_consolidated=False)
        arrays = {name: group[name] for name in stored}
        note = group.attrs.get(NOTE)
    except Exception as error:
        message = f"{path} cannot be read as a Zarr group"
        raise StorageError(message, hint="was it cut short?") from error
    for name, each in arrays.items():
        if not isinstance(each, zarr.Array) or each.shape != stored[name].shape:
            raise StorageError(f"{name!r} in {path} is not the array it declares", hint=_AGAIN)
    yield _Reader(path, arrays, None if note is None else checked_note(note, path), stored)


_AGAIN = "export it again"


class _Reader(Reader):
    def __init__(
        self, path: Path, arrays: dict[str, Any], note: Any, stored: Mapping[str, ZarrArray]
    ) -> None:
        self._path, self._arrays, self.note, self._stored = path, arrays, note, stored

    def columns(self) -> Mapping[str, Found]:
        return {name: Found(each.dtype, each.shape) for name, each in self._arrays.items()}

    def rows(self, names: Sequence[str], start: int, stop: int) -> Mapping[str, Array]:
        return {name: self._rows(name, start, stop) for name in names}

    def _rows(self, name: str, start: int, stop: int) -> Array:
        each = self._arrays[name]
        if 0 in each.shape[1:]:
            return np.empty((stop - start, *each.shape[1:]), each.dtype)
        self._stored[name].check_chunks(self._path, start, stop)
        try:
            return np.asarray(each[start:stop])
        except Exception as error:
            message = f"{name!r} in {self._path} cannot be read"
            raise StorageError(message, hint=_AGAIN) from error
