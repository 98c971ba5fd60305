"""Convert dataclasses to plain data for JSON, and plain data back to dataclasses.

A field that needs another treatment declares it with :func:`json_field`. What a dataclass computes
in properties is not part of its plain data: add it to the dict where a format needs it.
"""

from __future__ import annotations

import builtins
import collections.abc
import types
import typing
from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass
from pathlib import PurePath
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


def json_field(*, omit: bool = False, omit_empty: bool = False, **options: Any) -> Any:
    """Declare a dataclass field with a special plain form.

    Args:
        omit: Leave the field out.
        omit_empty: Leave the field out if its value is empty, zero or ``None``.
        **options: Passed to :func:`dataclasses.field`, such as ``default``.
    """
    return field(metadata={"omit": omit, "omit_empty": omit_empty}, **options)


def to_plain(value: object, digits: int | None = None) -> Any:
    """Convert a value to what :mod:`json` can write.

    Dataclasses become dicts in the order of their fields, sequences lists, arrays nested lists and
    paths strings. Other values are returned unchanged.

    Args:
        value: Any value.
        digits: Decimal places of floats. ``None``: not rounded.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Cost:
        ...     name: str
        ...     times: tuple[float, ...]
        ...     note: str = json_field(default="", omit_empty=True)
        >>> to_plain(Cost("step", (1.25, 2.0)), digits=1)
        {'name': 'step', 'times': [1.2, 2.0]}
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {
            each.name: to_plain(item, digits)
            for each in fields(value)
            if _is_included(each.metadata, item := getattr(value, each.name))
        }
    if isinstance(value, Mapping):
        return {key: to_plain(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item, digits) for item in value]
    if isinstance(value, float) and digits is not None:
        return round(value, digits)
    if isinstance(value, PurePath):
        return str(value)
    return value.tolist() if hasattr(value, "tolist") else value


def _is_included(metadata: Mapping[str, Any], value: object) -> bool:
    if not metadata:
        return True
    return not (metadata.get("omit") or (metadata.get("omit_empty") and not value))


def from_plain(kind: type[T], data: Mapping[str, Any]) -> T:
    """Create a dataclass from plain data, after checking the types of its fields.

    Entries that are not fields are ignored; fields without an entry keep their defaults.

    Args:
        kind: Dataclass to create.
        data: Plain data.

    Raises:
        TypeError: A value does not match the annotation of its field, or is missing.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Size:
        ...     shape: tuple[int, ...]
        >>> from_plain(Size, {"shape": [84, 84]})
        Size(shape=(84, 84))
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
            return _convert_to_union(value, inner)
        case typing.Literal:
            return _checked(value, value in inner)
        case None:
            if hint is Any:
                return value
            if is_dataclass(hint) and isinstance(hint, type):
                return from_plain(hint, _checked(value, isinstance(value, Mapping)))
            accepted = (int, float) if hint is float else (hint,)
            is_valid = isinstance(value, accepted) and isinstance(value, bool) == (hint is bool)
            return _checked(value, is_valid)
        case collections.abc.Mapping | builtins.dict:
            _checked(value, isinstance(value, dict))
            return {key: _convert(item, inner[1]) for key, item in value.items()}
        case _:
            _checked(value, isinstance(value, list | tuple))
            items = (_convert(item, inner[0]) for item in value)
            return tuple(items) if get_origin(hint) is tuple else list(items)


def _convert_to_union(value: Any, options: tuple[Any, ...]) -> Any:
    for option in options:
        try:
            return _convert(value, option)
        except TypeError:
            continue
    raise TypeError(value)


def _checked(value: Any, is_valid: bool) -> Any:
    if not is_valid:
        raise TypeError(value)
    return value
