"""Themes of the user's own, from the configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from textual.color import Color, ColorParseError
from textual.theme import Theme

from tdx.errors import ArgumentError, did_you_mean

_COLOURS = (
    *("primary", "secondary", "warning", "error", "success", "accent"),
    *("foreground", "background", "surface", "panel", "boost"),
)
_FLAGS = ("dark", "ansi")
_NUMBERS = ("luminosity_spread", "text_alpha")
_FIELDS = (*_COLOURS, *_FLAGS, *_NUMBERS, "variables")


def read_themes(tables: Mapping[str, Any]) -> tuple[tuple[Theme, ...], list[str]]:
    """The themes that can be used, and a notice for each other one.

    Args:
        tables: by the names of the themes, Textual's fields of a theme.

    Example:
        >>> read_themes({"mine": {"primary": "#12345"}})[1]
        ["themes.mine: primary cannot be '#12345' (use a color such as #6ea8fe)"]
    """
    themes, notices = [], []
    for name, table in tables.items():
        try:
            themes.append(_theme(name, table))
        except ArgumentError as error:
            notices.append(f"themes.{name}: {error.message} ({error.hint})")
    return tuple(themes), notices


def _theme(name: str, table: object) -> Theme:
    if not isinstance(table, dict):
        raise ArgumentError("it must be a table", hint=f"write [themes.{name}]")
    if "primary" not in table:
        raise ArgumentError("the field primary is missing", hint='write primary = "#6ea8fe"')
    return Theme(name=name, **{field: _checked(field, value) for field, value in table.items()})


def _checked(field: str, value: Any) -> Any:
    if field not in _FIELDS:
        hint = did_you_mean(field, _FIELDS, f"there are {', '.join(_FIELDS)}")
        raise ArgumentError(f"unknown field {field!r}", hint=hint)
    if field in _COLOURS:
        return _colour(field, value)
    if field in _FLAGS and not isinstance(value, bool):
        raise ArgumentError(f"{field} cannot be {value!r}", hint="use true or false")
    if field in _NUMBERS and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise ArgumentError(f"{field} cannot be {value!r}", hint="use a number")
    if field == "variables":
        return _variables(value)
    return value


def _variables(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ArgumentError("variables must be a table", hint="write [themes.NAME.variables]")
    return {str(name): _colour(str(name), colour) for name, colour in value.items()}


def _colour(field: str, value: object) -> str:
    try:
        Color.parse(value if isinstance(value, str) else "")
    except ColorParseError:
        hint = "use a color such as #6ea8fe"
        raise ArgumentError(f"{field} cannot be {value!r}", hint=hint) from None
    return str(value)
