"""Values that an option accepts, and parsers that suggest the nearest valid one."""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import StrEnum
from typing import Any, TextIO, TypeVar

import typer

from tdx.errors import UnknownNameError, did_you_mean
from tdx.untrusted import MAX_SECONDS


class Format(StrEnum):
    """Output formats of data."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"
    MD = "md"


class DiagramFormat(StrEnum):
    """Output formats of data that forms a graph."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"
    MD = "md"
    MERMAID = "mermaid"


class CheckFormat(StrEnum):
    """Output formats of findings."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"
    MD = "md"
    SARIF = "sarif"


class Color(StrEnum):
    """When to color the output."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"

    def is_enabled(self, stream: TextIO) -> bool:
        """Return True if output to ``stream`` is colored; respects NO_COLOR and FORCE_COLOR."""
        if self is not Color.AUTO:
            return self is Color.ALWAYS
        if os.environ.get("NO_COLOR"):
            return False
        if os.environ.get("FORCE_COLOR"):
            return True
        return stream.isatty() and os.environ.get("TERM") != "dumb"


class Batching(StrEnum):
    """How several copies of an env run."""

    VECTOR = "vector"
    SERIAL = "serial"
    PARALLEL = "parallel"


Choice = TypeVar("Choice", bound=StrEnum)
_MAX_INTEGER, _MAX_DIGITS = 2**63 - 1, 30


def choice_parser(kind: type[Choice], option: str | None = None) -> Callable[[str], Choice]:
    """Return a parser that suggests the nearest spelling of an invalid value.

    Args:
        kind: Valid values.
        option: Name of the option. ``None``: the name of ``kind``.
    """
    name = option or f"--{kind.__name__.lower()}"

    def parse(value: str) -> Choice:
        try:
            return kind(value)
        except ValueError:
            known = [member.value for member in kind]
            hint = _export_format_hint(value) if kind is Format else None
            hint = hint or did_you_mean(value, known, otherwise=f"one of {', '.join(known)}")
            raise UnknownNameError(f"invalid value {value!r} for {name}", hint=hint) from None

    return parse


def _export_format_hint(value: str) -> str | None:
    """Return a hint if ``value`` is an export format of dumps."""
    from tdx.rollouts.formats.interface import export_formats

    if value not in {each.name for each in export_formats()}:
        return None
    return f"{value} is a format of dumps: use tdx export DUMP --to {value}"


def integer_parser(option: str, minimum: int, maximum: int = _MAX_INTEGER) -> Callable[[str], int]:
    """Return a parser of an integer that reports the valid range."""

    def parse(value: str) -> int:
        # Python refuses to convert thousands of digits.
        is_short = len(value) <= _MAX_DIGITS
        if not value.lstrip("-").isdecimal() or (is_short and int(value) < minimum):
            raise typer.BadParameter(
                f"{option} must be an integer of at least {minimum}, got {value[:_MAX_DIGITS]!r}"
            )
        if not is_short or int(value) > maximum:
            raise typer.BadParameter(
                f"{option} must be at most {maximum:,}, got {value[:_MAX_DIGITS]}"
            )
        return int(value)

    return parse


def integer_option(
    option: str,
    minimum: int,
    help: str,
    *,
    maximum: int = _MAX_INTEGER,
    metavar: str = "N",
    panel: str | None = None,
) -> Any:
    """Declare an option with an integer value.

    Args:
        option: Name, such as ``--steps``.
        minimum: Smallest valid value.
        help: Help text.
        maximum: Largest valid value.
        metavar: Placeholder of the value in the help.
        panel: Section of the help.
    """
    parser = integer_parser(option, minimum, maximum)
    return typer.Option(option, metavar=metavar, parser=parser, help=help, rich_help_panel=panel)


def seconds_parser(option: str) -> Callable[[str], float]:
    """Return a parser of a positive number of seconds that reports the valid range."""

    def parse(value: str) -> float:
        try:
            number = float(value)
        except ValueError:
            number = 0.0
        if not 0 < number <= MAX_SECONDS:
            raise typer.BadParameter(
                f"{option} must be a number of seconds above 0 and at most {MAX_SECONDS:,}, "
                f"got {value[:_MAX_DIGITS]!r}"
            )
        return number

    return parse


def complete_members(kind: type[StrEnum]) -> Callable[[str], list[str]]:
    """Return a completion function for the values of an enum."""

    def complete(incomplete: str) -> list[str]:
        return [member.value for member in kind if member.value.startswith(incomplete)]

    return complete


def split_list(values: list[str] | None) -> list[str]:
    """Split the values of an option that can be repeated and can contain commas.

    Example:
        >>> split_list(["observation, action", "done"])
        ['observation', 'action', 'done']
    """
    return [name.strip() for text in values or () for name in text.split(",") if name.strip()]
