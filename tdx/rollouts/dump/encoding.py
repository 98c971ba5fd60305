"""Encodings in a dump: JSON with typed fields, and packed values.

Packed values are a tree of numbers, texts, arrays and tensors in a binary block. They contain no
pickle: reading them runs no code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdx.foundation.errors import StorageError
from tdx.foundation.untrusted import parse_json, validate_shape

MAX_COUNT = 2**48
"""Largest number of steps, bytes or episodes."""
DAMAGED = "the dump is damaged or was edited; restore it from a copy, or record it again"
_SHOWN = 60
_SEED_RANGE = (-(2**63), 2**64 - 1)
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
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


class Fields:
    """A JSON object; each method returns one field, or raises :class:`StorageError`.

    Args:
        data: Parsed JSON.
        source: Name of the object in error messages, usually the file.
    """

    def __init__(self, data: object, source: str) -> None:
        if not isinstance(data, dict):
            raise StorageError(f"{source} is not a JSON object: {_abbreviate(data)}", hint=DAMAGED)
        self.data: dict[str, Any] = data
        self.source = source

    def value(self, name: str) -> Any:
        """Return any value."""
        if name not in self.data:
            raise StorageError(f"{self.source} has no {name!r}", hint=DAMAGED)
        return self.data[name]

    def text(self, name: str) -> str:
        """Return text."""
        return str(self._checked(name, str, "text"))

    def optional_text(self, name: str) -> str | None:
        """Return text or ``None``."""
        return None if self.value(name) is None else self.text(name)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts."""
        found = self.list(name)
        if not all(isinstance(each, str) for each in found):
            raise self.invalid(name, "a list of texts")
        return tuple(found)

    def boolean(self, name: str) -> bool:
        """Return true or false."""
        return bool(self._checked(name, bool, "true or false"))

    def count(self, name: str, *, least: int = 0, most: int = MAX_COUNT) -> int:
        """Return a whole number from ``least`` to ``most``."""
        number = self.value(name)
        if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
            raise self.invalid(name, f"a whole number from {least} to {most}")
        return number

    def optional_count(self, name: str) -> int | None:
        """Return a whole number or ``None``."""
        return None if self.value(name) is None else self.count(name)

    def crc32(self, name: str) -> str:
        """Return a checksum in eight hexadecimal digits."""
        text = self.text(name)
        if not is_crc32(text):
            raise self.invalid(name, "a checksum")
        return text

    def seed(self, name: str) -> int:
        """Return the seed of a random number generator."""
        least, most = _SEED_RANGE
        return self.count(name, least=least, most=most)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an array."""
        return validate_shape(self.value(name), f"{self.source}: {name!r}")

    def list(self, name: str) -> list[Any]:
        """Return a list."""
        found: list[Any] = self._checked(name, list, "a list")
        return found

    def object(self, name: str) -> Fields:
        """Return a JSON object."""
        return Fields(self.value(name), f"{self.source}: {name!r}")

    def optional_object(self, name: str) -> Fields | None:
        """Return a JSON object or ``None``."""
        return None if self.value(name) is None else self.object(name)

    def objects(self, name: str) -> Iterator[Fields]:
        """Yield the JSON objects of a list."""
        for index, each in enumerate(self.list(name)):
            yield Fields(each, f"{self.source}: {name}[{index}]")

    def invalid(self, name: str, wanted: str) -> StorageError:
        """Return the error for an invalid field."""
        found = _abbreviate(self.data.get(name))
        return StorageError(f"{self.source}: {name!r} is not {wanted}: {found}", hint=DAMAGED)

    def _checked(self, name: str, kind: type, wanted: str) -> Any:
        found = self.value(name)
        if not isinstance(found, kind):
            raise self.invalid(name, wanted)
        return found


def is_crc32(text: str) -> bool:
    """Return True if the text is a checksum in eight hexadecimal digits."""
    return len(text) == 8 and all(each in "0123456789abcdef" for each in text)


def _abbreviate(value: object) -> str:
    if isinstance(value, (list, dict)) and len(value) > _SHOWN:
        return f"{len(value):,} values"
    try:
        text = repr(value)
    except ValueError:
        return "a number with too many digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


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
    ((kind, content),) = node.items()
    if kind == _TUPLE:
        return tuple(_decode(each, blocks) for each in content)
    if kind == _MAP:
        return {_key(_decode(key, blocks)): _decode(each, blocks) for key, each in content}
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
