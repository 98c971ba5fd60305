"""What must be known before the arguments are parsed, to show a parsing error rightly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, TextIO

from tdx.cli.choices import CheckFormat, Color, Format
from tdx.errors import TdxError


@dataclass(frozen=True, slots=True)
class Early:
    """How an error is to be shown, read off the arguments as they came.

    Args:
        format: how the output would have been written; none where no option says so.
        debug: whether tracebacks are wanted.
        color: when to colour; none where no option says so.
    """

    format: str | None
    debug: bool
    color: Color | None

    @classmethod
    def read(cls, arguments: Sequence[str]) -> Self:
        """Look for ``--format``, ``--debug`` and ``--color`` among unparsed arguments."""
        color = _value_of("--color", arguments)
        return cls(
            format=_value_of("--format", arguments),
            debug="--debug" in arguments,
            color=Color(color) if color in list(Color) else None,
        )

    @property
    def json(self) -> bool:
        """Whether the output would have been JSON."""
        return (self.format or _setting("format")) in (Format.JSON, Format.JSONL, CheckFormat.SARIF)

    def wants_color(self, stream: TextIO) -> bool:
        """Whether to colour what goes to ``stream``."""
        return (self.color or Color(_setting("color") or "auto")).wanted(stream)


def _setting(name: str) -> str | None:
    """What the user has set for all runs; nothing where that cannot be read."""
    from tdx.settings import load_settings

    try:
        value = load_settings()[name]
    except TdxError:
        return None
    return value if isinstance(value, str) else None


def _value_of(option: str, arguments: Sequence[str]) -> str | None:
    value = None
    for position, argument in enumerate(arguments):
        if argument == option and position + 1 < len(arguments):
            value = arguments[position + 1]
        elif argument.startswith(f"{option}="):
            value = argument.partition("=")[2]
    return value
