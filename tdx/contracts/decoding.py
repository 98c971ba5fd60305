"""Tensors in the files of a contract, which may come from a stranger."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tdx.foundation.errors import StorageError, get_first_line

if TYPE_CHECKING:
    from torch import Tensor

HINT = "the file is damaged or was not written by tdx: write it again"


def damaged(name: str, reason: str) -> StorageError:
    """Return the error for a file that cannot be read."""
    return StorageError(f"{name} is damaged: {reason}", hint=HINT)


def tensors_to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Return a file with tensors."""
    from safetensors.torch import save

    plain = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    return save(plain)


def parse_tensors(data: bytes, name: str) -> dict[str, Tensor]:
    """Return the tensors in a file.

    Raises:
        StorageError: The file is damaged, or of another format.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(data)
    except (
        *(SafetensorError, ValueError, TypeError, RuntimeError, KeyError, OverflowError),
        *(AttributeError, MemoryError),
    ) as error:
        raise damaged(name, f"not a safetensors file: {get_first_line(error)}") from error


def unpack(data: bytes, size: int, name: str, what: str) -> bytes:
    """Return the ``size`` bytes that were compressed; StorageError if there are more or fewer."""
    try:
        raw = zlib.decompressobj().decompress(data, size + 1)
    except zlib.error as error:
        raise damaged(name, f"{what} cannot be unpacked: {error}") from error
    if len(raw) != size:
        raise damaged(name, f"{what} does not have the size that it declares")
    return raw
