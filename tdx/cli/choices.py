"""The values that an option can have, and reading them with the nearest spelling at hand."""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import StrEnum
from typing import Any, TextIO, TypeVar

import typer

from tdx.errors import UnknownNameError, did_you_mean
from tdx.untrusted import MAX_SECONDS


class Format(StrEnum):
    """How data is written to stdout."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"
    MD = "md"


class DiagramFormat(StrEnum):
    """How data that is a graph is written to stdout."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"
    MD = "md"
    MERMAID = "mermaid"


class CheckFormat(StrEnum):
    """How what is found is written to stdout."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"
    MD = "md"
    SARIF = "sarif"


class Color(StrEnum):
    """When to colour."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"

    def wanted(self, stream: TextIO) -> bool:
        """Whether to colour what goes to ``stream``; ``NO_COLOR`` and ``FORCE_COLOR`` count."""
        if self is not Color.AUTO:
            return self is Color.ALWAYS
        if os.environ.get("NO_COLOR"):
            return False
        if os.environ.get("FORCE_COLOR"):
            return True
        return stream.isatty() and os.environ.get("TERM") != "dumb"


class Batching(StrEnum):
    """What runs the copies of an env."""

    VECTOR = "vector"
    SERIAL = "serial"
    PARALLEL = "parallel"


Choice = TypeVar("Choice", bound=StrEnum)
_LARGEST, _MOST_DIGITS = 2**63 - 1, 30


def one_of(kind: type[Choice], option: str | None = None) -> Callable[[str], Choice]:
    """A parser of an option's value that names the nearest spelling of a wrong one.

    Args:
        kind: the values.
        option: what the option is called; after ``kind`` by default.
    """
    called = option or f"--{kind.__name__.lower()}"

    def parse(value: str) -> Choice:
        try:
            return kind(value)
        except ValueError:
            known = [member.value for member in kind]
            hint = _hint_of_dumps(value) if kind is Format else None
            hint = hint or did_you_mean(value, known, otherwise=f"one of {', '.join(known)}")
            message = f"{called} cannot be {value!r}"
            raise UnknownNameError(message, hint=hint) from None

    return parse


def _hint_of_dumps(value: str) -> str | None:
    """Where to turn with the name of a dump's format; ``None`` for what is none."""
    from tdx.rollouts.formats.registry import export_formats

    if value not in {each.name for each in export_formats()}:
        return None
    return f"that is a format of dumps: tdx export DUMP --to {value}; here it is how to show things"


def whole_number(option: str, at_least: int, at_most: int = _LARGEST) -> Callable[[str], int]:
    """A parser of a whole number that says what it wants."""

    def parse(value: str) -> int:
        # Python refuses to convert thousands of digits.
        is_short = len(value) <= _MOST_DIGITS
        if not value.lstrip("-").isdecimal() or (is_short and int(value) < at_least):
            raise typer.BadParameter(
                f"{option} must be a whole number of at least {at_least}, "
                f"got {value[:_MOST_DIGITS]!r}"
            )
        if not is_short or int(value) > at_most:
            raise typer.BadParameter(
                f"{option} must be at most {at_most:,}, got {value[:_MOST_DIGITS]}"
            )
        return int(value)

    return parse


def number_option(
    option: str,
    at_least: int,
    told: str,
    *,
    at_most: int = _LARGEST,
    metavar: str = "N",
    panel: str | None = None,
) -> Any:
    """An option that is a whole number.

    Args:
        option: its name, as ``--steps``.
        at_least: the least that it can be.
        told: its help.
        at_most: Largest value.
        metavar: what stands for the number in the help.
        panel: the part of the help that it is in.
    """
    parser = whole_number(option, at_least, at_most)
    return typer.Option(option, metavar=metavar, parser=parser, help=told, rich_help_panel=panel)


def seconds(option: str) -> Callable[[str], float]:
    """A parser of a time above 0 that says what it wants."""

    def parse(value: str) -> float:
        try:
            number = float(value)
        except ValueError:
            number = 0.0
        if not 0 < number <= MAX_SECONDS:
            raise typer.BadParameter(
                f"{option} must be a number of seconds above 0 and at most {MAX_SECONDS:,}, "
                f"got {value[:_MOST_DIGITS]!r}"
            )
        return number

    return parse


def members_of(kind: type[StrEnum]) -> Callable[[str], list[str]]:
    """What the shell offers for an option with these values."""

    def complete(incomplete: str) -> list[str]:
        return [member.value for member in kind if member.value.startswith(incomplete)]

    return complete
