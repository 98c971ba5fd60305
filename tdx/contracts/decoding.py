"""Read documents and tensors of strangers; every wrong entry gets a sentence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, overload

from tdx.foundation.errors import StorageError, get_first_line
from tdx.foundation.untrusted import MAX_NESTING, MAX_STAGES, validate_shape

if TYPE_CHECKING:
    from torch import Tensor

_HINT = "the file is damaged or was not written by tdx: write it again"
_MISSING = object()


def damaged(name: str, reason: str) -> StorageError:
    """Return the error for a file that cannot be read.

    Args:
        name: File and place in it.
        reason: What is wrong.
    """
    return StorageError(f"{name} is damaged: {reason}", hint=_HINT)


class Fields:
    """A mapping of a document.

    Args:
        name: Name of the mapping in error messages.
        data: The mapping.

    Raises:
        StorageError: It is not a mapping.
    """

    def __init__(self, name: str, data: object) -> None:
        if not isinstance(data, Mapping) or not all(isinstance(each, str) for each in data):
            raise damaged(name, "a mapping is expected")
        self.name, self._data = name, data

    def only(self, names: Iterable[str]) -> None:
        """Refuse entries with other names."""
        for each in self._data:
            if each not in names:
                raise damaged(self.name, f"unknown entry {each[:50]!r}")

    @overload
    def text(self, key: str) -> str: ...
    @overload
    def text(self, key: str, *, optional: bool) -> str | None: ...
    def text(self, key: str, *, optional: bool = False) -> str | None:
        """Return a text; ``None`` if it is missing and optional."""
        value = self._get(key, optional=optional)
        if value is _MISSING:
            return None
        if not isinstance(value, str):
            raise self._wrong(key, "a text")
        return str(value)

    def integer(self, key: str) -> int:
        """Return an integer of at most 64 bits."""
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**63:
            raise self._wrong(key, "an integer")
        return int(value)

    def number(self, key: str) -> float:
        """Return a finite number of at least 0."""
        value = self._get(key)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or abs(value) > 1e300 or not math.isfinite(value) or value < 0:
            raise self._wrong(key, "a number of at least 0")
        return float(value)

    def flag(self, key: str) -> bool:
        """Return True or False."""
        value = self._get(key)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def shape(self, key: str) -> tuple[int, ...]:
        """Return a shape."""
        value = self._get(key)
        if not isinstance(value, list):
            raise self._wrong(key, "a list of sizes")
        return validate_shape(value, f"{key} in {self.name}")

    def integers(self, key: str) -> list[int]:
        """Return a list of integers of at least 0."""
        return list(self.shape(key))

    def texts(self, key: str, *, optional: bool = False) -> list[str]:
        """Return a list of texts; empty if it is missing and optional."""
        value = self._get(key, optional=optional)
        if value is _MISSING:
            return []
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self._wrong(key, "a list of texts")
        return [str(each) for each in value]

    def section(self, key: str) -> Fields:
        """Return a mapping inside."""
        return Fields(f"{self.name}, {key}", self._get(key))

    def sections(self, key: str) -> Iterator[tuple[str, Fields]]:
        """Yield the mappings inside an optional mapping, by name."""
        value = self._get(key, optional=True)
        if value is not _MISSING:
            inner = Fields(f"{self.name}, {key}", value)
            for name in inner._data:
                yield str(name), inner.section(name)

    def items(self, key: str) -> Iterator[Fields]:
        """Yield the mappings inside a list."""
        value = self._get(key)
        if not isinstance(value, list) or len(value) > MAX_STAGES + 1:
            raise self._wrong(key, f"a list of at most {MAX_STAGES} entries")
        for index, each in enumerate(value):
            yield Fields(f"{self.name}, {key}[{index}]", each)

    def mapping(self, key: str) -> Mapping[str, Any]:
        """Return a mapping of plain values."""
        return self.section(key)._data

    def plain(self, key: str) -> dict[str, Any]:
        """Return an optional mapping as plain data."""
        value = self._get(key, optional=True)
        if value is _MISSING:
            return {}
        Fields(f"{self.name}, {key}", value)
        found: dict[str, Any] = self._to_plain(key, value, 0)
        return found

    def _to_plain(self, key: str, value: Any, depth: int) -> Any:
        if depth > MAX_NESTING:
            raise self._wrong(key, "plain data")
        if isinstance(value, Mapping):
            return {str(name): self._to_plain(key, each, depth + 1) for name, each in value.items()}
        if isinstance(value, list):
            return [self._to_plain(key, each, depth + 1) for each in value]
        if value is None or isinstance(value, bool):
            return value
        for kind in (int, float, str):
            if isinstance(value, kind):
                return kind(value)
        raise self._wrong(key, "plain data")

    def _get(self, key: str, *, optional: bool = False) -> Any:
        value = self._data.get(key, _MISSING)
        if value is _MISSING and not optional:
            raise damaged(self.name, f"the entry {key!r} is missing")
        return value

    def _wrong(self, key: str, expected: str) -> StorageError:
        found = repr(self._data.get(key))[:60]
        return damaged(self.name, f"{key} must be {expected}, got {found}")


def tensors_to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Return a file with tensors."""
    from safetensors.torch import save

    plain = {name: each.detach().cpu().contiguous().clone() for name, each in tensors.items()}
    return save(plain)


def parse_tensors(data: bytes, name: str) -> dict[str, Tensor]:
    """Return the tensors in a file.

    Args:
        data: Content of the file.
        name: Name of the file, for messages.

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
