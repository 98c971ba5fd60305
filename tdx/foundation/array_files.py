"""Checks on the arrays that an untrusted file declares, before they are read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tdx.foundation.errors import StorageError
from tdx.foundation.untrusted import validate_shape

Array = np.ndarray[Any, np.dtype[Any]]
DEFLATE_RATIO = 1100
"""Expansion that deflate (gzip, zip) can reach: 1032 to 1."""
ZSTD_RATIO = 33_000
"""Expansion that Zstandard, Blosc and the run lengths of Parquet reach on constant data."""
FREE_BYTES = 2**24
"""Number of bytes that a file may declare without storing them, such as fill values."""
MAX_CHUNK_BYTES = 2**28
"""Size of a chunk that is decompressed as a whole."""
SMALL_CHUNK_BYTES = 2**18
"""Compressed bytes that deflate cannot expand beyond a harmless size."""
MAX_NOTE_BYTES = 2**28
"""Size of the note in an export: the manifest of the dump."""
MAX_COLUMNS = 10_000
MAX_FILES = 1_000_000
FORGED = "the file is damaged or was made to look larger than it is; do not use it"
"""Hint for a file whose sizes contradict each other."""


@dataclass(frozen=True, slots=True)
class FileColumn:
    """A column of a file, with NumPy's dtype; the first dim of the shape is time."""

    dtype: Any
    shape: tuple[int, ...]


def array_bytes(shape: Iterable[object], dtype: Any, what: str) -> int:
    """Return the size of an array in a header; StorageError if its shape is impossible."""
    return math.prod(validate_shape(shape, what)) * int(np.dtype(dtype).itemsize)


def check_expansion(claimed: int, stored: int, ratio: int, what: str) -> None:
    """Refuse a declared size that a compression of at most this ratio cannot have stored."""
    if claimed > stored * ratio + FREE_BYTES:
        raise StorageError(
            f"{what} declares {claimed:,} bytes, but only {stored:,} are stored", hint=FORGED
        )


def check_chunk_bytes(size: int, claimed: int, what: str) -> None:
    """Refuse chunks much larger than their array, or than tdx writes; each is read as a whole."""
    if size > max(FREE_BYTES, min(2 * claimed, MAX_CHUNK_BYTES)):
        raise StorageError(f"{what} has chunks of {size:,} bytes", hint="use smaller chunks")
