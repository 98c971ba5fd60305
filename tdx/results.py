"""Serialize result dataclasses to plain data that JSON can represent.

A result lists its JSON entries in order. Without a list, its fields are the entries.

Example:
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, slots=True)
    ... class Clip(Result):
    ...     json_entries: ClassVar[Entries] = (key_entry("key"), Entry("min", "low"), "is_bounded")
    ...     key: NestedKey
    ...     low: float
    ...
    ...     @property
    ...     def is_bounded(self) -> bool:
    ...         return math.isfinite(self.low)
    >>> Clip(("agents", "reward"), -math.inf).to_dict()
    {'key': 'agents.reward', 'min': '-inf', 'is_bounded': False}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, ClassVar

from tdx.keys import NestedKey, format_key


@dataclass(frozen=True, slots=True)
class Entry:
    """One JSON entry of a result.

    Args:
        name: Key in the JSON object.
        attribute: Attribute that holds the value, with dots for nested ones. Defaults to ``name``.
        convert: Applied to values that are not ``None``, before they are serialized.
        omit_none: Leave the entry out if its value is ``None``.
        inline: Insert the entries of the value instead of nesting them under ``name``.
    """

    name: str
    attribute: str | None = None
    convert: Callable[[Any], Any] | None = None
    omit_none: bool = False
    inline: bool = False

    def add_to(self, data: dict[str, Any], result: object) -> None:
        """Serialize the entry of a result into ``data``."""
        value = attrgetter(self.attribute or self.name)(result)
        if value is None and self.omit_none:
            return
        if value is not None and self.convert is not None:
            value = self.convert(value)
        if self.inline:
            data.update(to_json_value(value))
        else:
            data[self.name] = to_json_value(value)


Entries = tuple[str | Entry, ...]


class Result:
    """Base class of result dataclasses.

    Attributes:
        json_entries: JSON entries in order; a string is an entry named after its attribute.
            Empty: all fields.
    """

    __slots__ = ()
    json_entries: ClassVar[Entries] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the result as data that JSON can represent."""
        entries: Iterable[str | Entry] = self.json_entries
        if not entries:
            entries = [field.name for field in fields(self)]  # type: ignore[arg-type]
        data: dict[str, Any] = {}
        for entry in entries:
            (Entry(entry) if isinstance(entry, str) else entry).add_to(data, self)
        return data


def key_entry(name: str, attribute: str | None = None) -> Entry:
    """Declare an entry that holds a TensorDict key, written as ``"next.reward"``."""
    return Entry(name, attribute, format_key)


def keys_entry(name: str, attribute: str | None = None) -> Entry:
    """Declare an entry that holds several TensorDict keys."""
    return Entry(name, attribute, format_keys)


def format_keys(keys: Iterable[NestedKey]) -> list[str]:
    """Format several keys; see :func:`~tdx.keys.format_key`."""
    return [format_key(key) for key in keys]


def to_json_value(value: Any) -> Any:
    """Convert a value to what JSON can represent.

    Tuples become lists, results become dicts, and floats that are not finite become the strings
    ``"inf"``, ``"-inf"`` and ``"nan"``.

    Raises:
        TypeError: JSON has no representation of the value.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {name: to_json_value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(each) for each in value]
    if hasattr(value, "to_dict"):
        return value.to_dict()
    raise TypeError(f"JSON cannot represent {type(value).__name__}")
