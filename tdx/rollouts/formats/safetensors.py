"""``.safetensors``: a length, a JSON header, and raw numbers.

The format is simple enough to be written and read in pieces without the library, which would hold
the whole file in memory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from tdx.foundation.array_files import FORGED, MAX_COLUMNS, Array, FileColumn
from tdx.foundation.errors import StorageError
from tdx.foundation.untrusted import parse_json, validate_shape
from tdx.rollouts.formats.export_source import ExportSource, name_columns
from tdx.rollouts.formats.files import parse_note, to_array
from tdx.rollouts.formats.interface import NOTE, ColumnReader, ExportColumn, ExportOptions, Format

format = Format(
    name="safetensors",
    title="one safetensors file, one tensor per entry",
    suffixes=(".safetensors",),
    holds_raw=True,
)

_NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_MAX_HEADER_BYTES = 100_000_000
_ALIGNED = 8


def write(source: ExportSource, target: Path, options: ExportOptions) -> tuple[str, ...]:
    """Write one tensor per entry, time first, and the note as metadata."""
    columns = name_columns(source.manifest, ["__metadata__"])
    # Sort by item size, so that each tensor is aligned.
    placed = sorted(columns, key=lambda column: (-_format(source, column)[0].itemsize, column.name))
    header: dict[str, Any] = {"__metadata__": {NOTE: source.note_text(columns)}}
    end = 0
    for column in placed:
        dtype, shape = _format(source, column)
        begin, end = end, end + torch.Size(shape).numel() * dtype.itemsize
        place = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
        header[column.name] = place
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNED)
    with target.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for column in placed:
            for block in source.column_blocks(column):
                flat = _to_supported(block).contiguous().reshape(-1).view(torch.uint8)
                file.write(flat.numpy().data)
    return ()


def _format(source: ExportSource, column: ExportColumn) -> tuple[torch.dtype, tuple[int, ...]]:
    track, steps = source.track(column.track)
    dtype, shape = track.leaves[column.path]
    converted = _to_supported(torch.empty((0,), dtype=dtype))
    return converted.dtype, (steps, *shape, *converted.shape[1:])


def _to_supported(tensor: Tensor) -> Tensor:
    return (
        tensor
        if tensor.dtype in _NAMES
        else torch.from_numpy(to_array(tensor, splits_complex=True))
    )


@contextmanager
def read(path: Path) -> Iterator[ColumnReader]:
    """Open a file, and read its header."""
    with path.open("rb") as file:
        yield _SafetensorsReader(path, file)


class _SafetensorsReader(ColumnReader):
    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path, self._file = path, file
        header, self._begin = _header(path, file)
        self._size = path.stat().st_size - self._begin
        try:
            note = header.pop("__metadata__", {}).get(NOTE)
            self._places = {name: self._place(name, entry) for name, entry in header.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _not_safetensors(path) from error
        stored = sum(math.prod(shape) * kind.itemsize for kind, shape, _ in self._places.values())
        if stored > self._size:
            raise StorageError(
                f"{path} declares {stored:,} bytes, but has only {self._size:,}", hint=FORGED
            )
        self.note = None if note is None else parse_note(note, path)

    def _place(
        self, name: str, entry: Mapping[str, Any]
    ) -> tuple[torch.dtype, tuple[int, ...], int]:
        dtype = _DTYPES[entry["dtype"]]
        shape = validate_shape(entry["shape"], f"{name!r} in {self._path}")
        begin, end = entry["data_offsets"]
        is_whole = isinstance(begin, int) and isinstance(end, int)
        size = math.prod(shape) * dtype.itemsize
        if not is_whole or not 0 <= begin <= end <= self._size or end - begin != size:
            raise StorageError(
                f"{name!r} in {self._path} has the impossible offsets {begin!r} to {end!r}",
                hint=FORGED,
            )
        return dtype, shape, begin

    def columns(self) -> Mapping[str, FileColumn]:
        found = {}
        for name, (dtype, shape, _) in self._places.items():
            found[name] = FileColumn(to_array(torch.empty((0,), dtype=dtype)).dtype, shape)
        return found

    def read_column(self, name: str, start: int, stop: int) -> Array:
        dtype, shape, offset = self._places[name]
        inner = math.prod(shape[1:]) * dtype.itemsize
        self._file.seek(self._begin + offset + start * inner)
        data = bytearray(self._file.read((stop - start) * inner))
        if len(data) != (stop - start) * inner:
            raise StorageError(f"{name!r} in {self._path} is truncated", hint="export it again")
        if not data:
            return np.empty((stop - start, *shape[1:]), self.columns()[name].dtype)
        return to_array(torch.frombuffer(data, dtype=dtype).reshape(stop - start, *shape[1:]))


def _header(path: Path, file: IO[bytes]) -> tuple[dict[str, Any], int]:
    """Return the header of a file, and the offset of the numbers."""
    length = int.from_bytes(file.read(8), "little")
    if length > min(_MAX_HEADER_BYTES, path.stat().st_size - 8):
        raise _not_safetensors(path)
    try:
        header = parse_json(file.read(length), path)
    except StorageError as error:
        raise _not_safetensors(path) from error
    if not isinstance(header, dict) or len(header) > MAX_COLUMNS:
        raise _not_safetensors(path)
    return header, 8 + length


def _not_safetensors(path: Path) -> StorageError:
    return StorageError(f"{path} is not a safetensors file", hint="the file may be truncated")
