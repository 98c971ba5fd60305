"""Files of other formats: their arrays and note, and checks on untrusted files before reading.

Tensors without an array that every library reads are stored in another form, bit for bit: bfloat16
is widened to float32, float8 is viewed as bytes, and complex numbers, if the library does not
know them, become pairs.

The note is the metadata that tdx stores in an export, so that it can be imported as the same dump.
"""

from __future__ import annotations

import math
import shutil
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from tdx.foundation.array_files import FORGED, MAX_COLUMNS, Array, FileColumn, array_bytes
from tdx.foundation.errors import ArgumentError, StorageError
from tdx.foundation.untrusted import MAX_ENVS, parse_json, validate_shape
from tdx.rollouts.dump.manifest import Manifest

MAX_STEP_BYTES = 2**30
"""Size of one step in one column."""
_MAX_ARRAY_HEADER_BYTES = 10_000
MAX_NAME_BYTES = 200
"""Size of a part of a key, which becomes a file name."""
VERSION = 1
"""Version of the note."""
_INVALID = (
    *(KeyError, IndexError, TypeError, ValueError, AttributeError),
    *(OverflowError, RecursionError, MemoryError, StorageError, ArgumentError, AssertionError),
)
"""What parsing a damaged or forged manifest can raise."""


def read_array_header(stream: IO[bytes], what: str) -> tuple[tuple[int, ...], bool, Any]:
    """Read shape, Fortran order and dtype of an ``.npy`` file; no object is unpickled.

    Raises:
        ValueError: It is not the header of an array, or of an unknown version.
        StorageError: The shape is impossible.
    """
    version = np.lib.format.read_magic(stream)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise ValueError(f"its format version {version} is unknown")
    # The header is a Python literal of limited size.
    sizes, in_columns, dtype = readers[version](stream, max_header_size=_MAX_ARRAY_HEADER_BYTES)
    return validate_shape(sizes, what), in_columns, dtype


def is_numeric(dtype: Any) -> bool:
    """Return True for booleans and numbers, False for objects, text, records and subarrays."""
    try:
        known = np.dtype(dtype)
    except (TypeError, ValueError):
        return False
    return known.kind in "biufc" and known.subdtype is None


def to_array(tensor: Tensor, *, splits_complex: bool = False) -> Array:
    """Convert a tensor on the CPU to an array; complex numbers may become pairs (last dim).

    Example:
        >>> to_array(torch.tensor([1.5], dtype=torch.bfloat16))
        array([1.5], dtype=float32)
    """
    dtype = tensor.dtype
    if dtype is torch.bfloat16:
        # Shift the bits: a conversion would not keep those of a NaN.
        bits = tensor.contiguous().view(torch.int16).to(torch.int32)
        tensor = (bits << 16).view(torch.float32)
    elif _is_float8(dtype):
        tensor = tensor.contiguous().view(torch.uint8)
    elif dtype is torch.complex32 or (dtype.is_complex and splits_complex):
        tensor = torch.view_as_real(tensor)
    array: Array = tensor.numpy()
    return array


def array_column(
    dtype: torch.dtype, shape: Iterable[int], *, splits_complex: bool = False
) -> FileColumn:
    """Return dtype and shape of the result of :func:`to_array` for a tensor."""
    array = to_array(torch.empty((0,), dtype=dtype), splits_complex=splits_complex)
    return FileColumn(array.dtype, (*shape, *array.shape[1:]))


def from_array(array: Array, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """Convert the result of :func:`to_array`, in any shape, back to a tensor.

    Raises:
        ValueError: The array has another number of elements.
    """
    native = np.ascontiguousarray(array)
    if not native.dtype.isnative:
        native = native.astype(native.dtype.newbyteorder("="))
    tensor = torch.from_numpy(native if native.flags.writeable else native.copy())
    if dtype is torch.bfloat16:
        bits = tensor.to(torch.float32).view(torch.int32) >> 16
        tensor = bits.to(torch.int16).view(torch.bfloat16)
    elif _is_float8(dtype):
        tensor = tensor.to(torch.uint8).view(dtype)
    elif dtype.is_complex and not tensor.dtype.is_complex:
        tensor = torch.view_as_complex(tensor.reshape(*shape, 2))
    if torch.Size(shape).numel() != tensor.numel():
        raise ValueError(f"{tensor.numel()} numbers, not {torch.Size(shape).numel()}")
    return tensor.to(dtype).reshape(tuple(shape))


def _is_float8(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize == 1


def check_columns(columns: Mapping[str, FileColumn], source: Path, target: Path) -> None:
    """Check the columns of a file before it is imported: shapes, sizes, and free disk space."""
    if len(columns) > MAX_COLUMNS:
        raise StorageError(
            f"{source} has {len(columns):,} columns", hint=f"{MAX_COLUMNS:,} can be imported"
        )
    total = 0
    for name, column in columns.items():
        if not is_numeric(column.dtype):
            continue
        what = f"{name!r} in {source}"
        size = array_bytes(column.shape, column.dtype, what)
        if column.shape and array_bytes(column.shape[1:], column.dtype, what) > MAX_STEP_BYTES:
            raise StorageError(
                f"{what} has more than {MAX_STEP_BYTES:,} bytes in a step", hint=FORGED
            )
        total += size
    place = next(path for path in (target, *target.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(place).free
    if total > free:
        raise StorageError(
            f"{source} needs {total:,} bytes as a dump, {free:,} are free at {place}",
            hint="make room, or name another place",
        )


def check_key(parts: Iterable[str], source: Path) -> None:
    """Refuse a key that cannot be the name of a file."""
    for part in parts:
        # "C" is the Unicode category of control, format, surrogate and unassigned characters.
        odd = any(unicodedata.category(sign)[0] == "C" for sign in part)
        if not part or odd or "/" in part or len(part.encode(errors="replace")) > MAX_NAME_BYTES:
            raise StorageError(
                f"{part[:MAX_NAME_BYTES]!r} in {source} cannot be a key", hint="rename the column"
            )


def parse_note(text: str | bytes, path: Path) -> dict[str, Any]:
    """Parse the note of a file; see :func:`check_note`."""
    try:
        note = parse_json(text, path)
    except StorageError as error:
        raise _invalid_note(path) from error
    return check_note(note, path)


def check_note(note: Any, path: Path) -> dict[str, Any]:
    """Validate the note of a file."""
    if not isinstance(note, dict) or "export" not in note:
        raise _invalid_note(path)
    if note["export"] != VERSION:
        raise StorageError(
            f"{path} is an export of version {note['export']}, "
            f"this release reads version {VERSION}",
            hint="read it with a newer release of tdx",
        )
    try:
        batch = validate_shape(note["manifest"]["batch_size"], "batch_size")
        if not 1 <= math.prod(batch) <= MAX_ENVS:
            raise ValueError(f"batch_size is {batch}")
        manifest = Manifest.from_dict(note["manifest"])
        named = {
            (column["track"], tuple(column["key"])): column["name"] for column in note["columns"]
        }
        if not all(isinstance(name, str) for name in named.values()):
            raise TypeError("a column has no name")
        if manifest.data is None:
            raise ValueError("it has no data")
        for track, _ in manifest.tracks:
            for leaf in track.leaves:
                named[track.name, leaf]
    except _INVALID as error:
        raise _invalid_note(path) from error
    for track, _ in manifest.tracks:
        for leaf in track.leaves:
            check_key(leaf, path)
    return note


def _invalid_note(path: Path) -> StorageError:
    return StorageError(f"the metadata of tdx in {path} is invalid", hint="export the dump again")
