"""State files of a dump: what a rollout needs to be resumed after a chunk.

Plain values and arrays are packed without pickle: reading a file runs no code.
"""

from __future__ import annotations

import json
import os
import zlib
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdx.confined_files import open_subfolder
from tdx.errors import StorageError
from tdx.rollouts.dump.entries import DTYPES
from tdx.rollouts.dump.folder import STATE, TEMPORARY_FILE, open_data
from tdx.rollouts.dump.json_fields import Fields
from tdx.untrusted import parse_json, validate_shape

_STATE_SUFFIX = ".state"


@dataclass(frozen=True, slots=True)
class StateFile:
    """File with the state to resume from after a chunk.

    Args:
        name: Name in the folder ``state``.
        crc32: Checksum of the file.
    """

    name: str
    crc32: str

    @property
    def path(self) -> str:
        """Path of the file, relative to the dump's folder."""
        return f"{STATE}/{self.name}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"file": self.name, "crc32": self.crc32}

    @classmethod
    def from_fields(cls, fields: Fields | None) -> StateFile | None:
        """Parse the output of :meth:`to_dict`.

        Raises:
            StorageError: A field is invalid, or the name is that of another file.
        """
        if fields is None:
            return None
        name = fields.text("file")
        if "/" in name or "\0" in name or not name.endswith(_STATE_SUFFIX) or name[0] == ".":
            raise fields.invalid("file", "the name of a state file")
        return cls(name, fields.crc32("crc32"))

    @classmethod
    def after(cls, steps: int, crc32: int) -> StateFile:
        """Return the state file after a number of steps."""
        return cls(f"{steps:012}{_STATE_SUFFIX}", f"{crc32:08x}")


def read_state(root: int, state: StateFile) -> bytes:
    """Return the content of a state file.

    Args:
        root: Descriptor of the dump's folder.
        state: The file.

    Raises:
        OSError: It cannot be read.
        ValueError: Its checksum differs.
        StorageError: It is a link.
    """
    with open_data(root, state.path) as file:
        block = file.read()
    if f"{zlib.crc32(block):08x}" != state.crc32:
        raise ValueError("its checksum differs")
    return block


def remove_leftovers(root: int, state: StateFile | None) -> None:
    """Remove state files that the index does not name, and temporary files of killed writers.

    Args:
        root: Descriptor of the dump's folder.
        state: State file that the index names; ``None``: it names none.
    """
    kept = None if state is None else state.name
    with suppress(FileNotFoundError):
        with open_subfolder(root, STATE) as folder:
            for name in os.listdir(folder):
                if name != kept and (TEMPORARY_FILE.fullmatch(name) or name.endswith(".state")):
                    os.unlink(name, dir_fd=folder)
        if kept is None:
            with suppress(OSError):
                os.rmdir(STATE, dir_fd=root)
    for name in os.listdir(root):
        if TEMPORARY_FILE.fullmatch(name):
            with suppress(OSError):
                os.unlink(name, dir_fd=root)


_ARRAY, _TENSOR, _TUPLE, _MAP = "$array", "$tensor", "$tuple", "$map"


def pack(value: Any) -> bytes:
    """Encode a tree of numbers, texts, lists, tuples, dicts, arrays and tensors as bytes.

    Raises:
        TypeError: It has a value of another type.

    Example:
        >>> unpack(pack({"count": 3, "rows": (1.5, None)}))
        {'count': 3, 'rows': (1.5, None)}
    """
    blocks: list[bytes] = []
    head = json.dumps(_encode(value, blocks)).encode()
    return len(head).to_bytes(8, "little") + head + b"".join(blocks)


def unpack(data: bytes) -> Any:
    """Decode the output of :func:`pack`.

    Raises:
        ValueError: It is invalid or truncated.
    """
    end = 8 + int.from_bytes(data[:8], "little")
    if len(data) < 8 or end > len(data):
        raise ValueError("the block is truncated")
    try:
        return _decode(parse_json(data[8:end], "its header"), memoryview(data)[end:])
    except StorageError as error:
        raise ValueError(error.message) from error
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        raise ValueError("its header does not describe packed values") from error


def _encode(value: Any, blocks: list[bytes]) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value if type(value) is not np.float64 else float(value)
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous()
        name = str(flat.dtype).removeprefix("torch.")
        place = _place(flat.reshape(-1).view(torch.uint8).numpy().tobytes(), blocks)
        return {_TENSOR: [name, list(flat.shape), *place]}
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        if array.dtype.hasobject or array.dtype.names:
            raise TypeError(f"an array of {array.dtype} cannot be packed")
        scalar = isinstance(value, np.generic)
        place = _place(array.tobytes(), blocks)
        return {_ARRAY: [array.dtype.str, list(array.shape), *place, scalar]}
    if isinstance(value, tuple):
        return {_TUPLE: [_encode(each, blocks) for each in value]}
    if isinstance(value, list):
        return [_encode(each, blocks) for each in value]
    if isinstance(value, dict):
        pairs = [[_encode(key, blocks), _encode(each, blocks)] for key, each in value.items()]
        return {_MAP: pairs}
    raise TypeError(f"{type(value).__name__} cannot be packed")


def _place(data: bytes, blocks: list[bytes]) -> tuple[int, int]:
    start = sum(map(len, blocks))
    blocks.append(data)
    return start, len(data)


def _decode(node: Any, blocks: memoryview) -> Any:
    if isinstance(node, list):
        return [_decode(each, blocks) for each in node]
    if not isinstance(node, dict):
        return node
    ((kind, held),) = node.items()
    if kind == _TUPLE:
        return tuple(_decode(each, blocks) for each in held)
    if kind == _MAP:
        return {_key(_decode(key, blocks)): _decode(each, blocks) for key, each in held}
    if kind not in (_TENSOR, _ARRAY):
        raise ValueError(f"{kind!r} is not a kind of packed value")
    dtype, sizes, start, size, *scalar = held
    shape = validate_shape(sizes, "an array")
    if min(start, size) < 0:
        raise ValueError("a place is negative")
    data = bytearray(blocks[start : start + size])
    if len(data) != size:
        raise ValueError("the block is truncated")
    if kind == _TENSOR:
        return _tensor(data, DTYPES[dtype], shape)
    found = np.dtype(dtype)
    if found.hasobject or found.names or found.subdtype or found.itemsize * prod(shape) != size:
        raise ValueError(f"{size} bytes are not an array of {dtype} {list(shape)}")
    array = np.frombuffer(data, found).reshape(shape) if size else np.empty(shape, found)
    return array[()] if scalar[0] else array


def _tensor(data: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if dtype.itemsize * prod(shape) != len(data):
        raise ValueError(f"{len(data)} bytes are not a tensor of {dtype} {list(shape)}")
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


def _key(key: Any) -> Any:
    return tuple(key) if isinstance(key, list) else key
