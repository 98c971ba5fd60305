"""Zarr 3: a group with one array per entry, compressed with Zstandard."""

from __future__ import annotations

import errno
import itertools
import math
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Condition
from typing import Any

import numpy as np

from tdx.foundation.array_files import (
    MAX_COLUMNS,
    MAX_FILES,
    MAX_NOTE_BYTES,
    SMALL_CHUNK_BYTES,
    ZSTD_RATIO,
    Array,
    FileColumn,
    array_bytes,
    check_chunk_bytes,
    check_expansion,
)
from tdx.foundation.container import Container
from tdx.foundation.errors import StorageError
from tdx.foundation.untrusted import parse_json, read_limited, validate_shape
from tdx.rollouts.formats.export_source import ExportSource
from tdx.rollouts.formats.files import check_note, is_numeric, to_array
from tdx.rollouts.formats.hdf5 import chunk_shape, name_grouped_columns
from tdx.rollouts.formats.interface import NOTE, ColumnReader, ExportOptions, Format

format = Format(
    name="zarr",
    title="a Zarr 3 group, one array per entry",
    suffixes=(".zarr",),
    mark="zarr.json",
    packages=("zarr",),
    extra="zarr",
    holds_raw=True,
)

_AGAIN = "export it again"
_CHUNK = 2**22
"""Number of bytes in a chunk before compression."""


def write(source: ExportSource, target: Path, options: ExportOptions) -> tuple[str, ...]:
    """Write one array per entry, time first, and the note as an attribute of the group."""
    import zarr

    columns = name_grouped_columns(source)
    with _open_store(target) as store:
        group = zarr.open_group(store, mode="w", zarr_format=3)
        for column in columns:
            entry = source.array(column)
            chunks = chunk_shape(entry, _CHUNK)
            array = group.create_array(
                column.name, shape=entry.shape, dtype=entry.dtype, chunks=chunks
            )
            start = 0
            # Write whole chunks: a partial one would be read and written again.
            for block in _align_blocks(map(to_array, source.column_blocks(column)), chunks[0]):
                if block.size:
                    array[start : start + len(block)] = block
                start += len(block)
        group.attrs[NOTE] = source.note(columns)
    return ()


@contextmanager
def _open_store(target: Path) -> Iterator[Any]:
    """Yield a store for a folder, to which nothing writes any more when the block ends.

    After an error, zarr leaves its other writes running in their threads; they would recreate a
    folder that is being removed.
    """
    from zarr.storage import LocalStore

    changed = Condition()
    pending, is_open = 0, True

    class Store(LocalStore):
        async def set(self, key: str, value: Any) -> None:
            with writing():
                await super().set(key, value)

        async def set_if_not_exists(self, key: str, value: Any) -> None:
            with writing():
                await super().set_if_not_exists(key, value)

    @contextmanager
    def writing() -> Iterator[None]:
        nonlocal pending
        with changed:
            if not is_open:
                raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED), str(target))
            pending += 1
        try:
            yield
        finally:
            with changed:
                pending -= 1
                changed.notify_all()

    try:
        yield Store(target)
    finally:
        with changed:
            is_open = False
            changed.wait_for(lambda: not pending)


def _align_blocks(blocks: Iterator[Array], steps: int) -> Iterator[Array]:
    """Yield the same steps in blocks with lengths that are multiples of ``steps``, but the last."""
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
def read(path: Path) -> Iterator[ColumnReader]:
    """Open a group without reading its numbers."""
    import zarr

    stored = check_group(path)
    try:
        # Consolidated metadata may name arrays outside the folder.
        group = zarr.open_group(str(path), mode="r", use_consolidated=False)
        arrays = {name: group[name] for name in stored}
        note = group.attrs.get(NOTE)
    except Exception as error:
        message = f"{path} cannot be read as a Zarr group"
        raise StorageError(message, hint="the folder may be incomplete") from error
    for name, array in arrays.items():
        if not isinstance(array, zarr.Array) or array.shape != stored[name].shape:
            raise StorageError(f"{name!r} in {path} is not the array it declares", hint=_AGAIN)
    yield _ZarrReader(path, arrays, None if note is None else check_note(note, path), stored)


class _ZarrReader(ColumnReader):
    def __init__(
        self, path: Path, arrays: dict[str, Any], note: Any, stored: Mapping[str, ZarrArray]
    ) -> None:
        self._path, self._arrays, self.note, self._stored = path, arrays, note, stored

    def columns(self) -> Mapping[str, FileColumn]:
        return {name: FileColumn(array.dtype, array.shape) for name, array in self._arrays.items()}

    def read_column(self, name: str, start: int, stop: int) -> Array:
        array = self._arrays[name]
        if 0 in array.shape[1:]:
            return np.empty((stop - start, *array.shape[1:]), array.dtype)
        self._stored[name].check_chunks(self._path, start, stop)
        try:
            return np.asarray(array[start:stop])
        except Exception as error:
            message = f"{name!r} in {self._path} cannot be read"
            raise StorageError(message, hint=_AGAIN) from error


_VERSION_3, _GROUP_2, _ARRAY_2 = "zarr.json", ".zgroup", ".zarray"
_CODECS = ("bytes", "transpose", "crc32c", "gzip", "zstd", "blosc")
"""Codecs of Zarr 3 that hold numbers in one file a chunk."""
_COMPRESSORS = ("zlib", "gzip", "zstd", "blosc", "lz4")
"""Compressors of Zarr 2."""
_MAX_CHUNKS = 2_000_000
_CHECKSUMS = 16
"""Bytes that checksums may add to a chunk."""
_SAVE = "save the arrays as plain numbers with zstd, without shards and object codecs"
_FORGED = "the group is damaged or was made to look larger than it is; do not use it"


@dataclass(frozen=True, slots=True)
class ZarrArray:
    """An array as its metadata declares it."""

    name: str  # path in the group
    shape: tuple[int, ...]
    chunks: tuple[int, ...]  # shape of a chunk
    chunk_bytes: int  # after decompression
    prefix: str  # start of the file names of the chunks
    separator: str  # between the numbers in a file name
    compressor: str | None

    def check_chunks(self, folder: Path, start: int, stop: int) -> None:
        """Check that the chunks of a range of steps do not expand to more than they declare."""
        first, last = start // self.chunks[0], (max(stop, start + 1) - 1) // self.chunks[0]
        spans = [range(first, last + 1)]
        pairs = zip(self.shape[1:], self.chunks[1:], strict=True)
        spans += [range(-(-size // chunk)) for size, chunk in pairs]
        for place in itertools.product(*spans):
            file = folder / f"{self.prefix}{self.separator.join(map(str, place))}"
            if file.is_file() and not self._is_plausible(file):
                raise StorageError(
                    f"chunk {file.relative_to(folder)} of {folder} is larger than it declares",
                    hint=_FORGED,
                )

    def _is_plausible(self, file: Path) -> bool:
        size = file.stat().st_size
        if size > 2 * self.chunk_bytes + SMALL_CHUNK_BYTES:
            return False
        with file.open("rb") as stream:
            head = stream.read(18)
            if self.compressor == "blosc":
                return int.from_bytes(head[4:8], "little") <= self.chunk_bytes + _CHECKSUMS
            if self.compressor == "lz4":
                return int.from_bytes(head[:4], "little") <= self.chunk_bytes + _CHECKSUMS
            if self.compressor == "zstd":
                return 0 <= _zstd_size(head) <= self.chunk_bytes + _CHECKSUMS
            if self.compressor in ("gzip", "zlib") and size > SMALL_CHUNK_BYTES:
                stream.seek(0)
                inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
                inflated = inflater.decompress(stream.read(), self.chunk_bytes + _CHECKSUMS + 1)
                return len(inflated) <= self.chunk_bytes + _CHECKSUMS
        return True


def _zstd_size(head: bytes) -> int:
    """Return the size that a Zstandard frame declares, or -1."""
    if len(head) < 6 or head[:4] != b"\x28\xb5\x2f\xfd":
        return -1
    descriptor = head[4]
    is_single, code = bool(descriptor & 32), descriptor >> 6
    begin = 5 + (not is_single) + (0, 1, 2, 4)[descriptor & 3]
    width = (int(is_single), 2, 4, 8)[code]
    if not width:
        return -1
    return int.from_bytes(head[begin : begin + width], "little") + (256 if code == 1 else 0)


def check_group(folder: Path) -> dict[str, ZarrArray]:
    """Check every file and array of a group, without opening a chunk; return the arrays by path.

    Links, objects, unknown codecs and impossible sizes are refused.
    """
    with Container.open(folder) as container:
        sizes = container.check_links(most=MAX_FILES)
    metadata = sum(_is_metadata(name) for name in sizes)
    if metadata > MAX_COLUMNS:
        raise StorageError(
            f"{folder} has {metadata:,} arrays and groups", hint=f"{MAX_COLUMNS:,} are read"
        )
    try:
        arrays = {array.name: array for array in _arrays(folder, sizes)}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, LookupError) as error:
        raise StorageError(
            f"the metadata of {folder} is damaged: a field is missing, or of another type",
            hint="export it again",
        ) from error
    claimed = sum(
        array.chunk_bytes * math.prod(array.shape) // max(math.prod(array.chunks), 1)
        for array in arrays.values()
    )
    check_expansion(claimed, sum(sizes.values()), ZSTD_RATIO, str(folder))
    return arrays


def _is_metadata(name: str) -> bool:
    return name.rpartition("/")[2] in (_VERSION_3, _GROUP_2, _ARRAY_2)


def _arrays(folder: Path, sizes: Mapping[str, int]) -> Iterator[ZarrArray]:
    for name in sorted(sizes):
        place, _, kind = name.rpartition("/")
        if not _is_metadata(name):
            continue
        limit = MAX_NOTE_BYTES if not place else 2**24
        document = parse_json(read_limited(folder / name, limit), folder / name)
        if not isinstance(document, dict):
            raise TypeError(f"{name} is not an object")
        found = None
        if kind == _VERSION_3 and document["node_type"] == "array":
            found = _version_3(folder, place, document)
        elif kind == _ARRAY_2:
            found = _version_2(folder, place, document)
        if found is not None:
            yield found


def _version_3(folder: Path, place: str, document: Mapping[str, Any]) -> ZarrArray | None:
    what = f"{place!r} in {folder}"
    codecs = [codec if isinstance(codec, str) else codec["name"] for codec in document["codecs"]]
    grid = document["chunk_grid"]
    if document.get("storage_transformers") or grid["name"] != "regular":
        raise StorageError(f"{what} is stored in an unknown way", hint=_SAVE)
    kind = document["data_type"]
    try:
        dtype = np.dtype(kind) if isinstance(kind, str) else np.dtype(object)
    except TypeError:
        return None
    if not is_numeric(dtype) or dtype.name != kind:
        return None
    for codec in codecs:
        if codec not in _CODECS:
            raise StorageError(f"{what} needs the codec {codec!r}", hint=_SAVE)
    encoding = document["chunk_key_encoding"]
    name, default = encoding["name"], {"default": "/", "v2": "."}
    separator = encoding.get("configuration", {}).get("separator", default[name])
    compressors = [codec for codec in codecs if codec in ("gzip", "zstd", "blosc")]
    if len(compressors) > 1:
        raise StorageError(f"{what} is compressed twice", hint=_SAVE)
    return _array(
        what,
        place,
        document["shape"],
        grid["configuration"]["chunk_shape"],
        dtype,
        f"c{separator}" if name == "default" else "",
        separator,
        compressors[0] if compressors else None,
    )


def _version_2(folder: Path, place: str, document: Mapping[str, Any]) -> ZarrArray | None:
    what = f"{place!r} in {folder}"
    kind = np.dtype(document["dtype"]) if isinstance(document["dtype"], str) else None
    if kind is not None and kind.hasobject:
        raise StorageError(f"{what} is an array of objects (pickles)", hint=_SAVE)
    if kind is None or not is_numeric(kind):
        return None
    compressor = document["compressor"]
    name = None if compressor is None else compressor["id"]
    if document.get("filters") or name not in (None, *_COMPRESSORS):
        raise StorageError(f"{what} needs filters or the codec {name!r}", hint=_SAVE)
    separator = document.get("dimension_separator", ".")
    return _array(what, place, document["shape"], document["chunks"], kind, "", separator, name)


def _array(
    what: str,
    place: str,
    shape: Any,
    chunks: Any,
    dtype: np.dtype[Any],
    prefix: str,
    separator: str,
    compressor: str | None,
) -> ZarrArray:
    whole, chunk = validate_shape(shape, what), validate_shape(chunks, f"a chunk of {what}")
    if separator not in ("/", ".") or len(chunk) != len(whole) or 0 in chunk:
        raise StorageError(f"{what} has impossible chunks", hint=_FORGED)
    size, claimed = array_bytes(chunk, dtype, what), array_bytes(whole, dtype, what)
    check_chunk_bytes(size, claimed, what)
    count = math.prod(-(-length // step) for length, step in zip(whole, chunk, strict=True))
    if count > _MAX_CHUNKS:
        raise StorageError(f"{what} has {count:,} chunks", hint="use larger chunks")
    start = f"{place}/{prefix}" if place else prefix
    return ZarrArray(place, whole, chunk, size, start, separator, compressor)
