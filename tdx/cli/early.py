"""What must be known before the arguments are parsed, to show a parsing error rightly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, TextIO

from tdx.cli.choices import Color, Format


@dataclass(frozen=True, slots=True)
class Early:
    """How an error is to be shown, read off the arguments as they came.

    Args:
        json: whether the output would have been JSON.
        debug: whether tracebacks are wanted.
        color: when to colour.
    """

    json: bool
    debug: bool
    color: Color

    @classmethod
    def read(cls, arguments: Sequence[str]) -> Self:
        """Look for ``--format``, ``--debug`` and ``--color`` among unparsed arguments."""
        color = _value_of("--color", arguments)
        return cls(
            json=_value_of("--format", arguments) in (Format.JSON, Format.JSONL),
            debug="--debug" in arguments,
            color=Color(color) if color in list(Color) else Color.AUTO,
        )

    def wants_color(self, stream: TextIO) -> bool:
        """Whether to colour what goes to ``stream``."""
        return self.color.wanted(stream)


def _value_of(option: str, arguments: Sequence[str]) -> str | None:
    value = None
    for position, argument in enumerate(arguments):
        if argument == option and position + 1 < len(arguments):
            value = arguments[position + 1]
        elif argument.startswith(f"{option}="):
            value = argument.partition("=")[2]
    return value
