"""Convert dataclasses to plain data for JSON, and plain data back to dataclasses.

The plain data of a dataclass are its fields, with the exceptions declared by :func:`omit_empty`.
A :class:`Result` declares its entries instead: their names, their order, and computed values.
"""

from __future__ import annotations

import builtins
import collections.abc
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from operator import attrgetter
from pathlib import PurePath
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from tdx.foundation.html_repr import repr_html
from tdx.foundation.keys import NestedKey, format_key

T = TypeVar("T")


def omit_empty(default: Any) -> Any:
    """Declare a dataclass field that the plain data leave out if it is empty, zero or ``None``."""
    return field(default=default, metadata={"omit_empty": True})


@dataclass(frozen=True, slots=True)
class Entry:
    """One JSON entry of a result.

    Args:
        name: Key in the JSON object.
        attribute: Attribute that holds the value, with dots for nested ones. Defaults to ``name``.
        convert: Applied to values that are not ``None``, before they are serialized.
        omit_none: Leave the entry out if its value is ``None``.
        inline: Insert the entries of the value instead of nesting them under ``name``.
        without: Entries of the value that are left out.
        optional: The caller may remove the entry.
        type: Type of the value in the JSON Schema. Defaults to the annotation of ``convert``, or
            else of the attribute.
    """

    name: str
    attribute: str | None = None
    convert: Callable[[Any], Any] | None = None
    omit_none: bool = False
    inline: bool = False
    without: tuple[str, ...] = ()
    optional: bool = False
    type: Any = None

    def add_to(self, data: dict[str, Any], result: object) -> None:
        """Serialize the entry of a result into ``data``."""
        value = attrgetter(self.attribute or self.name)(result)
        if value is None and self.omit_none:
            return
        if value is not None and self.convert is not None:
            value = self.convert(value)
        plain = to_plain(value, strict=True)
        if plain is not None:
            for name in self.without:
                del plain[name]
        if self.inline:
            data.update(plain)
        else:
            data[self.name] = plain


Entries = tuple[str | Entry, ...]


class Result:
    """Base class of result dataclasses, which are printed as JSON.

    Attributes:
        json_entries: JSON entries in order; a string is an entry named after its attribute.
            Empty: all fields.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True, slots=True)
        ... class Clip(Result):
        ...     json_entries: ClassVar[Entries] = (
        ...         *(key_entry("key"), Entry("min", "low"), "is_bounded"),
        ...     )
        ...     key: NestedKey
        ...     low: float
        ...
        ...     @property
        ...     def is_bounded(self) -> bool:
        ...         return math.isfinite(self.low)
        >>> Clip(("agents", "reward"), -math.inf).to_dict()
        {'key': 'agents.reward', 'min': '-inf', 'is_bounded': False}
    """

    __slots__ = ()
    _repr_html_ = repr_html
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


def keys_entry(name: str) -> Entry:
    """Declare an entry that holds several TensorDict keys."""
    return Entry(name, convert=format_keys)


def rounded(value: float) -> float:
    """Round a measured number to four decimal places."""
    return round(float(value), 4)


def finite(value: float) -> float | None:
    """Return a number, or ``None`` if it is not finite."""
    return float(value) if math.isfinite(value) else None


def format_keys(keys: Iterable[NestedKey]) -> list[str]:
    """Format several keys; see :func:`~tdx.foundation.keys.format_key`."""
    return [format_key(key) for key in keys]


def to_plain(value: object, digits: int | None = None, *, strict: bool = False) -> Any:
    """Convert a value to what :mod:`json` can write; floats are rounded to ``digits``, if given.

    Results and other dataclasses become dicts, sequences lists, arrays nested lists and paths
    strings. Other values are returned unchanged. ``strict`` returns only what every JSON parser
    reads: floats that are not finite become ``"inf"``, ``"-inf"`` or ``"nan"``.

    Raises:
        TypeError: JSON has no representation of the value, in strict mode.
    """
    if isinstance(value, float):
        if strict and not math.isfinite(value):
            return str(value)
        return value if digits is None else round(value, digits)
    if value is None or isinstance(value, str | int):
        return value
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_plain(item, digits, strict=strict)
            for field in fields(value)
            if (item := getattr(value, field.name)) or not field.metadata.get("omit_empty")
        }
    if isinstance(value, Mapping):
        return {key: to_plain(item, digits, strict=strict) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item, digits, strict=strict) for item in value]
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if strict:
        raise TypeError(f"JSON cannot represent {type(value).__name__}")
    return value


def from_plain(kind: type[T], data: Mapping[str, Any]) -> T:
    """Create a dataclass from plain data; TypeError if a value does not match its annotation.

    Entries that are not fields are ignored; fields without an entry keep their defaults.
    """
    hints = get_type_hints(kind)
    values = {}
    for name in hints:
        if name in data:
            try:
                values[name] = _convert(data[name], hints[name])
            except TypeError as error:
                raise TypeError(f"{name} cannot be {data[name]!r:.50}") from error
    return kind(**values)


def _convert(value: Any, hint: Any) -> Any:
    """Convert plain data to the type of an annotation; raise TypeError if it does not match."""
    inner = get_args(hint)
    match get_origin(hint):
        case typing.Union | types.UnionType:
            for option in inner:
                with suppress(TypeError):
                    return _convert(value, option)
            raise TypeError(value)
        case typing.Literal:
            return _require(value, value in inner)
        case None:
            if hint is Any:
                return value
            if is_dataclass(hint) and isinstance(hint, type):
                return from_plain(hint, _require(value, isinstance(value, Mapping)))
            accepted = (int, float) if hint is float else (hint,)
            is_valid = isinstance(value, accepted) and isinstance(value, bool) == (hint is bool)
            return _require(value, is_valid)
        case collections.abc.Mapping | builtins.dict:
            _require(value, isinstance(value, dict))
            return {key: _convert(item, inner[1]) for key, item in value.items()}
        case _:
            _require(value, isinstance(value, list | tuple))
            items = (_convert(item, inner[0]) for item in value)
            return tuple(items) if get_origin(hint) is tuple else list(items)


def _require(value: Any, is_valid: bool) -> Any:
    if not is_valid:
        raise TypeError(value)
    return value
