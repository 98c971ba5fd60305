"""Open untrusted HDF5 files: no links, external storage, plugins, or sizes that are not there."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdx.foundation.array_files import (
    DEFLATE_RATIO,
    FORGED,
    MAX_COLUMNS,
    MAX_NOTE_BYTES,
    SMALL_CHUNK_BYTES,
    array_bytes,
    check_chunk_bytes,
    check_expansion,
)
from tdx.foundation.errors import StorageError
from tdx.foundation.untrusted import MAX_NESTING

if TYPE_CHECKING:
    import h5py

_FILTERS = {1: "deflate", 2: "shuffle", 3: "fletcher32", 5: "nbit", 6: "scaleoffset", 32_000: "lzf"}
"""Filters that are part of HDF5 or h5py; any other filter would load a plugin."""
_DEFLATE = 1
_CHECKSUM = 4
"""Bytes that fletcher32 adds to a chunk."""
_NOT_INSIDE = "the data is outside the file: copy it in with h5repack, or do not use it"


@contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    """Open a file for reading; StorageError if it is not an HDF5 file, or damaged."""
    import h5py

    try:
        file = h5py.File(path, "r")
    except (OSError, ValueError, RuntimeError, MemoryError) as error:
        message = f"{path} cannot be read as HDF5"
        raise StorageError(message, hint="the file may be truncated") from error
    with file:
        yield file


def find_datasets(path: Path, file: h5py.File, most: int = MAX_COLUMNS) -> dict[str, h5py.Dataset]:
    """Find every dataset by its path, without following any link, and check how it is stored.

    Raises:
        StorageError: The file has links, external or virtual storage, needs a filter plugin, has
            more than ``most`` objects, or declares more data than it can hold.
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

    visited: set[object] = {h5py.h5o.get_info(file.id).addr}
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
