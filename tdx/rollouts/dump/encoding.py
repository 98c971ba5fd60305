"""Packed values in a dump.

Packed values are a tree of numbers, texts, arrays and tensors in a binary block. They contain no
pickle: reading them runs no code.
"""

from __future__ import annotations

import json
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdx.foundation.errors import StorageError
from tdx.foundation.text import dtype_name
from tdx.foundation.untrusted import parse_json, validate_shape

DAMAGED = "the dump is damaged or was edited; restore it from a copy, or record it again"
DTYPES = {
    dtype_name(dtype): dtype
    for dtype in (
        *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
        *(torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.complex32, torch.complex64, torch.complex128),
        *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
    )
}
"""Dtypes that a dump can store, by name."""
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
        name = dtype_name(flat.dtype)
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
        return {_TUPLE: [_encode(item, blocks) for item in value]}
    if isinstance(value, list):
        return [_encode(item, blocks) for item in value]
    if isinstance(value, dict):
        pairs = [[_encode(key, blocks), _encode(item, blocks)] for key, item in value.items()]
        return {_MAP: pairs}
    raise TypeError(f"{type(value).__name__} cannot be packed")


def _place(data: bytes, blocks: list[bytes]) -> tuple[int, int]:
    start = sum(map(len, blocks))
    blocks.append(data)
    return start, len(data)


def _decode(node: Any, blocks: memoryview) -> Any:
    if isinstance(node, list):
        return [_decode(item, blocks) for item in node]
    if not isinstance(node, dict):
        return node
    ((kind, content),) = node.items()
    if kind == _TUPLE:
        return tuple(_decode(item, blocks) for item in content)
    if kind == _MAP:
        return {_decode(key, blocks): _decode(item, blocks) for key, item in content}
    if kind not in (_TENSOR, _ARRAY):
        raise ValueError(f"{kind!r} is not a kind of packed value")
    dtype, sizes, start, size, *scalar = content
    shape = validate_shape(sizes, "an array")
    if min(start, size) < 0:
        raise ValueError("a place is negative")
    data = bytearray(blocks[start : start + size])
    if len(data) != size:
        raise ValueError("the block is truncated")
    if kind == _TENSOR:
        if DTYPES[dtype].itemsize * prod(shape) != size:
            raise ValueError(f"{size} bytes are not a tensor of {dtype} {list(shape)}")
        if not size:
            return torch.empty(shape, dtype=DTYPES[dtype])
        return torch.frombuffer(data, dtype=DTYPES[dtype]).reshape(shape)
    found = np.dtype(dtype)
    if found.hasobject or found.names or found.subdtype or found.itemsize * prod(shape) != size:
        raise ValueError(f"{size} bytes are not an array of {dtype} {list(shape)}")
    array = np.frombuffer(data, found).reshape(shape) if size else np.empty(shape, found)
    return array[()] if scalar[0] else array
