"""HDF5: one dataset per entry, in groups that follow the nesting of the keys."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tdx.foundation.array_files import Array, FileColumn
from tdx.foundation.container import write_all
from tdx.foundation.errors import StorageError
from tdx.foundation.hdf5 import find_datasets, open_hdf5
from tdx.rollouts.formats.export_source import ExportSource
from tdx.rollouts.formats.files import parse_note, to_array
from tdx.rollouts.formats.interface import NOTE, ColumnReader, ExportColumn, ExportOptions, Format

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from typing_extensions import Buffer

format = Format(
    name="hdf5",
    title="one HDF5 file, one dataset per entry",
    suffixes=(".h5", ".hdf5", ".hdf"),
    packages=("h5py",),
    extra="hdf5",
    holds_raw=True,
)


_CHUNK = 2**18
"""Number of bytes in a chunk."""


def name_grouped_columns(source: ExportSource) -> list[ExportColumn]:
    """Name each entry by its path through the groups, such as ``data/next/reward``."""
    return [
        ExportColumn(track.name, path, "/".join((track.name, *path)))
        for track, _ in source.manifest.tracks
        for path in track.leaves
    ]


def chunk_shape(column: FileColumn, most: int = _CHUNK) -> tuple[int, ...]:
    """Return the shape of a chunk of steps with at most ``most`` bytes."""
    total, *inner = column.shape
    steps = max(1, min(total, most // max(math.prod(inner) * column.dtype.itemsize, 1)))
    return (steps, *(max(1, size) for size in inner))


def write(source: ExportSource, target: Path, options: ExportOptions) -> tuple[str, ...]:
    """Write one dataset per entry, time first and compressed, and the note as text."""
    import h5py

    columns = name_grouped_columns(source)
    with open_for_library(target) as stream, h5py.File(stream, "w", track_order=True) as file:
        for column in columns:
            entry = source.array(column)
            options_of_chunks = (
                {}
                if 0 in entry.shape
                else {
                    "compression": 1,
                    "shuffle": True,
                    "chunks": chunk_shape(entry),
                }
            )
            dataset = file.create_dataset(
                column.name, entry.shape, entry.dtype, track_order=True, **options_of_chunks
            )
            start = 0
            for block in source.column_blocks(column):
                array = to_array(block)
                if array.size:
                    dataset[start : start + len(array)] = array
                    file.flush()
                    stream.check()
                start += len(array)
        text = source.note_text(columns)
        file.create_dataset(NOTE, data=text, dtype=h5py.string_dtype())
    return ()


def check(path: Path) -> None:
    """Read back what was written last.

    Raises:
        OSError: The end is missing.
        KeyError: The note is.
    """
    import h5py

    with h5py.File(path, "r") as file:
        file[NOTE][()]


class _SteadyFile(io.RawIOBase):
    """File for a library that crashes, or reports nothing, if its file fails while it is closed.

    After an error, what the library writes stays in memory, so that it goes on as if nothing had
    happened; :meth:`check` raises the error.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._error: OSError | None = None
        self._unwritten: list[tuple[int, bytes]] = []
        self._position = 0

    def check(self) -> None:
        """Raise the first error.

        Raises:
            OSError: Something could not be written or read.
        """
        if self._error is not None:
            raise OSError(self._error.errno, self._error.strerror) from self._error

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_CUR:
            offset += self._position
        elif whence == os.SEEK_END:
            ends = [start + len(data) for start, data in self._unwritten]
            offset += max(os.fstat(self._descriptor).st_size, *ends, 0)
        self._position = offset
        return offset

    def write(self, data: Buffer) -> int:
        block = memoryview(data).cast("B")
        if self._error is None:
            try:
                write_all(self._descriptor, block, self._position)
            except OSError as error:
                self._error = error
        if self._error is not None:
            self._unwritten.append((self._position, bytes(block)))
        self._position += len(block)
        return len(block)

    def readinto(self, buffer: WriteableBuffer) -> int:
        block = memoryview(buffer).cast("B")
        start, done = self._position, 0
        try:
            while done < len(block):
                count = os.preadv(self._descriptor, [block[done:]], start + done)
                if not count:
                    break
                done += count
        except OSError as error:
            self._error = self._error or error
        for offset, data in self._unwritten:
            first, last = max(offset, start), min(offset + len(data), start + len(block))
            if first < last:
                block[first - start : last - start] = data[first - offset : last - offset]
                done = max(done, last - start)
        self._position += done
        return done

    def truncate(self, size: int | None = None) -> int:
        size = self._position if size is None else size
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            self._error = self._error or error
        return size


@contextmanager
def open_for_library(path: Path) -> Iterator[_SteadyFile]:
    """Open an existing file that HDF5 writes; errors are raised after it has closed the file.

    Raises:
        OSError: Something could not be written.
    """
    with closing(_SteadyFile(path)) as file:
        try:
            yield file
        finally:
            # The cause, and not what it led to in the library.
            file.check()


@contextmanager
def read(path: Path) -> Iterator[ColumnReader]:
    """Open a file without reading its numbers."""
    with open_hdf5(path) as file:
        yield _Hdf5Reader(path, find_datasets(path, file))


class _Hdf5Reader(ColumnReader):
    def __init__(self, path: Path, datasets: dict[str, Any]) -> None:
        import h5py

        self._path, self._datasets = path, datasets
        note = datasets.get(NOTE)
        if note is not None and not note.shape and h5py.check_string_dtype(note.dtype):
            del datasets[NOTE]
            self.note = parse_note(self._read(NOTE, note, ()), path)

    def columns(self) -> Mapping[str, FileColumn]:
        return {
            name: FileColumn(dataset.dtype, dataset.shape or ())
            for name, dataset in self._datasets.items()
        }

    def read_column(self, name: str, start: int, stop: int) -> Array:
        dataset = self._datasets[name]
        if 0 in dataset.shape[1:]:
            return np.empty((stop - start, *dataset.shape[1:]), dataset.dtype)
        found: Array = self._read(name, dataset, slice(start, stop))
        return found

    def _read(self, name: str, dataset: Any, index: Any) -> Any:
        try:
            return dataset[index]
        except (OSError, ValueError, RuntimeError, MemoryError) as error:
            message = f"{name!r} in {self._path} cannot be read"
            raise StorageError(message, hint="export it again") from error
