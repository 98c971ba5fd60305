"""``.h5``: a dataset an entry, in the groups that the keys are nested in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tdx.errors import StorageError
from tdx.rollouts.formats.hdf5_checks import checked_datasets, open_hdf5
from tdx.rollouts.formats.options import Options
from tdx.rollouts.formats.reader import NOTE, Found, Reader, read_note
from tdx.rollouts.formats.stored import Column, Stored
from tdx.rollouts.formats.target import check_room
from tdx.rollouts.formats.wire import Array, array_form, to_array

_CHUNK = 2**18
"""Bytes that are compressed together."""


def grouped_columns(stored: Stored) -> list[Column]:
    """Each entry with its path through the groups: ``data/next/reward``."""
    return [
        Column(track.name, path, "/".join((track.name, *path)))
        for track, _ in stored.manifest.tracks
        for path in track.leaves
    ]


def chunk_shape(shape: tuple[int, ...], dtype: Any, most: int = _CHUNK) -> tuple[int, ...]:
    """A stretch of steps of so many bytes."""
    step = int(np.prod(shape[1:])) * np.dtype(dtype).itemsize
    steps = max(1, min(shape[0], most // max(step, 1)))
    return (steps, *(max(1, size) for size in shape[1:]))


def write(stored: Stored, target: Path, options: Options) -> tuple[str, ...]:
    """Write one dataset an entry, time first and compressed, and the note as a text."""
    import h5py

    columns = grouped_columns(stored)
    with h5py.File(target, "w", track_order=True) as file:
        for column in columns:
            track, steps = stored.track(column.track)
            dtype, shape = track.leaves[column.path]
            kind, more = array_form(dtype)
            full = (steps, *shape, *more)
            packed = (
                {}
                if 0 in full
                else {"compression": 1, "shuffle": True, "chunks": chunk_shape(full, kind)}
            )
            dataset = file.create_dataset(column.name, full, kind, track_order=True, **packed)
            start = 0
            for block in stored.column_blocks(column):
                array = to_array(block)
                if array.size:
                    # HDF5 brings the process down where it cannot write what it holds back.
                    file.flush()
                    check_room(target, array.nbytes)
                    dataset[start : start + len(array)] = array
                start += len(array)
        text = stored.note_text(columns)
        file.flush()
        check_room(target, len(text))
        file.create_dataset(NOTE, data=text, dtype=h5py.string_dtype())
    return ()


@contextmanager
def read(path: Path) -> Iterator[Reader]:
    """Open a file; no number is read yet."""
    with open_hdf5(path) as file:
        yield _Reader(path, checked_datasets(path, file))


class _Reader(Reader):
    def __init__(self, path: Path, datasets: dict[str, Any]) -> None:
        import h5py

        self._path, self._datasets = path, datasets
        note = datasets.get(NOTE)
        if note is not None and not note.shape and h5py.check_string_dtype(note.dtype):
            del datasets[NOTE]
            self.note = read_note(self._read(NOTE, note, ()), path)

    def columns(self) -> Mapping[str, Found]:
        return {name: Found(each.dtype, each.shape or ()) for name, each in self._datasets.items()}

    def rows(self, names: Sequence[str], start: int, stop: int) -> Mapping[str, Array]:
        return {name: self._rows(name, start, stop) for name in names}

    def _rows(self, name: str, start: int, stop: int) -> Array:
        each = self._datasets[name]
        if 0 in each.shape[1:]:
            return np.empty((stop - start, *each.shape[1:]), each.dtype)
        found: Array = self._read(name, each, slice(start, stop))
        return found

    def _read(self, name: str, dataset: Any, index: Any) -> Any:
        try:
            return dataset[index]
        except (OSError, ValueError, RuntimeError, MemoryError) as error:
            message = f"{name!r} in {self._path} cannot be read"
            raise StorageError(message, hint="export it again") from error
