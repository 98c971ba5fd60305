"""Plain values and arrays in one block of bytes, without pickle: reading it runs no code."""

from __future__ import annotations

import json
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdx.errors import StorageError
from tdx.rollouts.track import DTYPES
from tdx.untrusted import parse_json, validate_shape

_ARRAY, _TENSOR, _TUPLE, _MAP = "$array", "$tensor", "$tuple", "$map"


def pack(value: Any) -> bytes:
    """A tree of numbers, texts, lists, tuples, dicts, arrays and tensors as bytes.

    Raises:
        TypeError: something else is in it.

    Example:
        >>> unpack(pack({"count": 3, "rows": (1.5, None)}))
        {'count': 3, 'rows': (1.5, None)}
    """
    blocks: list[bytes] = []
    head = json.dumps(_encoded(value, blocks)).encode()
    return len(head).to_bytes(8, "little") + head + b"".join(blocks)


def unpack(data: bytes) -> Any:
    """Return what :func:`pack` packed.

    Raises:
        ValueError: It is something else, or cut short.
    """
    end = 8 + int.from_bytes(data[:8], "little")
    if len(data) < 8 or end > len(data):
        raise ValueError("the block is cut short")
    try:
        return _decoded(parse_json(data[8:end], "its header"), memoryview(data)[end:])
    except StorageError as error:
        raise ValueError(error.message) from error
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        raise ValueError("its header does not describe packed values") from error


def _encoded(value: Any, blocks: list[bytes]) -> Any:
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
            raise TypeError(f"an array of {array.dtype} is not packed")
        scalar = isinstance(value, np.generic)
        place = _place(array.tobytes(), blocks)
        return {_ARRAY: [array.dtype.str, list(array.shape), *place, scalar]}
    if isinstance(value, tuple):
        return {_TUPLE: [_encoded(each, blocks) for each in value]}
    if isinstance(value, list):
        return [_encoded(each, blocks) for each in value]
    if isinstance(value, dict):
        pairs = [[_encoded(key, blocks), _encoded(each, blocks)] for key, each in value.items()]
        return {_MAP: pairs}
    raise TypeError(f"{type(value).__name__} is not packed")


def _place(data: bytes, blocks: list[bytes]) -> tuple[int, int]:
    start = sum(map(len, blocks))
    blocks.append(data)
    return start, len(data)


def _decoded(node: Any, blocks: memoryview) -> Any:
    if isinstance(node, list):
        return [_decoded(each, blocks) for each in node]
    if not isinstance(node, dict):
        return node
    ((kind, held),) = node.items()
    if kind == _TUPLE:
        return tuple(_decoded(each, blocks) for each in held)
    if kind == _MAP:
        return {_key(_decoded(key, blocks)): _decoded(each, blocks) for key, each in held}
    if kind not in (_TENSOR, _ARRAY):
        raise ValueError(f"{kind!r} is not a kind of packed value")
    dtype, sizes, start, size, *scalar = held
    shape = validate_shape(sizes, "an array")
    if min(start, size) < 0:
        raise ValueError("a place is negative")
    data = bytearray(blocks[start : start + size])
    if len(data) != size:
        raise ValueError("the block is cut short")
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
