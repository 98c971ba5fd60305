"""HDF5: one dataset per entry, in groups that follow the nesting of the keys."""

from __future__ import annotations

import io
import math
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tdx.foundation.container import write_all
from tdx.foundation.errors import StorageError
from tdx.foundation.untrusted import MAX_NESTING
from tdx.rollouts.formats.export_source import ExportSource
from tdx.rollouts.formats.files import (
    DEFLATE_RATIO,
    FORGED,
    MAX_COLUMNS,
    MAX_NOTE_BYTES,
    SMALL_CHUNK_BYTES,
    Array,
    FileColumn,
    array_bytes,
    check_chunk_bytes,
    check_expansion,
    parse_note,
    to_array,
)
from tdx.rollouts.formats.interface import NOTE, ColumnReader, ExportColumn, ExportOptions, Format

if TYPE_CHECKING:
    import h5py
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

    Args:
        path: An existing file.
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

    Yields:
        The file, for ``h5py.File``.

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
        yield _Reader(path, find_datasets(path, file))


class _Reader(ColumnReader):
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


_FILTERS = {1: "deflate", 2: "shuffle", 3: "fletcher32", 5: "nbit", 6: "scaleoffset", 32_000: "lzf"}
"""Filters that are part of HDF5 or h5py; any other filter would load a plugin."""
_DEFLATE = 1
_CHECKSUM = 4
"""Bytes that fletcher32 adds to a chunk."""
_NOT_INSIDE = "the data is outside the file: copy it in with h5repack, or do not use it"


@contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    """Open a file for reading.

    Raises:
        StorageError: It is not an HDF5 file, or is damaged.
    """
    import h5py

    try:
        file = h5py.File(path, "r")
    except (OSError, ValueError, RuntimeError, MemoryError) as error:
        message = f"{path} cannot be read as HDF5"
        raise StorageError(message, hint="the file may be truncated") from error
    with file:
        yield file


def find_datasets(path: Path, file: h5py.File, most: int = MAX_COLUMNS) -> dict[str, h5py.Dataset]:
    """Find every dataset without following any link, and check where and how it is stored.

    Args:
        path: The file, for error messages.
        file: The open file.
        most: Largest number of objects accepted.

    Returns:
        Datasets by their path inside the file.

    Raises:
        StorageError: The file has links, external or virtual storage, needs a filter plugin, or
            declares more data than it can hold.
    """
    try:
        found = dict(_datasets(path, file, most))
        stored = sum(_check_storage(path, name, dataset) for name, dataset in found.items())
    except StorageError:
        raise
    except Exception as error:
        message = f"{path} cannot be read as HDF5"
        raise StorageError(message, hint="the file may be truncated") from error
    if stored > path.stat().st_size:
        raise StorageError(
            f"{path} declares {stored:,} stored bytes, but has only {path.stat().st_size:,}",
            hint=FORGED,
        )
    return found


def _datasets(path: Path, file: h5py.File, most: int) -> Iterator[tuple[str, h5py.Dataset]]:
    import h5py

    visited: set[Any] = {h5py.h5o.get_info(file.id).addr}
    pending: list[tuple[str, h5py.Group]] = [("", file["/"])]
    while pending:
        prefix, group = pending.pop()
        inner: list[tuple[str, h5py.Group]] = []
        for part in group:
            name = f"{prefix}{part}"
            if not isinstance(group.get(part, getlink=True), h5py.HardLink):
                raise StorageError(f"{name!r} in {path} is a link", hint=_NOT_INSIDE)
            item = group[part]
            address = h5py.h5o.get_info(item.id).addr
            if address in visited:
                continue
            visited.add(address)
            if len(visited) > most or name.count("/") > MAX_NESTING:
                raise StorageError(
                    f"{path} has more than {most:,} objects or {MAX_NESTING} nested groups",
                    hint="it is not a file of rollouts",
                )
            if isinstance(item, h5py.Dataset):
                yield name, item
            elif isinstance(item, h5py.Group):
                inner.append((f"{name}/", item))
        pending += reversed(inner)


def _check_storage(path: Path, name: str, dataset: h5py.Dataset) -> int:
    """Check one dataset; returns its number of bytes in the file."""
    import h5py

    what = f"{name!r} in {path}"
    settings = dataset.id.get_create_plist()
    layout = settings.get_layout()
    if layout == h5py.h5d.VIRTUAL or settings.get_external_count():
        kind = "virtual" if layout == h5py.h5d.VIRTUAL else "external"
        raise StorageError(f"{what} has {kind} storage", hint=_NOT_INSIDE)
    filters = [settings.get_filter(number)[0] for number in range(settings.get_nfilters())]
    for number in filters:
        if number not in _FILTERS:
            raise StorageError(
                f"{what} needs the filter plugin {number}", hint="compress it with gzip instead"
            )
    shape = dataset.shape or ()
    claimed = array_bytes(shape, dataset.dtype, what)
    stored = int(dataset.id.get_storage_size())
    is_chunked = layout == h5py.h5d.CHUNKED
    check_expansion(claimed, stored, DEFLATE_RATIO if is_chunked else 1, what)
    if not shape and claimed > MAX_NOTE_BYTES:
        raise StorageError(f"{what} is a single value of {claimed:,} bytes", hint=FORGED)
    if is_chunked:
        deflate = filters.index(_DEFLATE) if _DEFLATE in filters else None
        _check_chunks(what, dataset, claimed, deflate)
    return stored


def _check_chunks(what: str, dataset: h5py.Dataset, claimed: int, deflate: int | None) -> None:
    size = array_bytes(dataset.chunks, dataset.dtype, what)
    check_chunk_bytes(size, claimed, what)
    if deflate is None or dataset.id.get_storage_size() <= SMALL_CHUNK_BYTES:
        return
    large: list[Any] = []
    dataset.id.chunk_iter(
        lambda chunk: large.append(chunk) if chunk.size > SMALL_CHUNK_BYTES else None
    )
    for chunk in large:
        if chunk.filter_mask & (1 << deflate):
            continue
        found = 2**63
        if chunk.size <= 2 * size:
            data = dataset.id.read_direct_chunk(chunk.chunk_offset)[1]
            found = len(zlib.decompressobj().decompress(data, size + _CHECKSUM + 1))
        if found > size + _CHECKSUM:
            raise StorageError(f"a chunk of {what} is larger than it declares", hint=FORGED)
