"""Parts of Typer that are not public, all in one place.

``tests/cli/test_typer_internals.py`` fails with an explanation when a release changes one of them;
``docs/decisions/0019-typer-internals.md`` lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from tdx.foundation.text import escape_control_characters, is_printable

TESTED_VERSIONS = ">=0.29,<0.30"
"""Releases of Typer that have these parts."""


class _ValueReader:
    """Reads option values without pydantic, whose import makes ``tdx list`` 1.5 times as slow.

    Typer passes every value to a pydantic adapter. The options of tdx are strings, lists of
    strings, flags and values with a parser, which need none.
    """

    def __init__(self, parser: Callable[[str], object] | None) -> None:
        self._parser = parser

    def coerce(self, value: object, param: Any, ctx: typer.Context) -> object:
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if isinstance(value, str) and self._parser is not None:
            return self._parser(value)
        return value


def _prepared(param: Any) -> Any:
    """Let a parameter read values without pydantic, and complete only printable words.

    Completions may come from an env or a dump, with control characters in them.
    """
    if "shell_complete" in vars(param):
        return param
    if hasattr(param, "type_descriptor"):
        reader = _ValueReader(param.type_descriptor.parameter_info.parser)
        param.get_runtime_param = lambda: reader
    if getattr(param, "is_flag", False) and param.metavar is None:
        # Typer would print <bool> after a flag, which takes no value.
        param.metavar = ""
    complete = param.shell_complete

    def complete_printable(ctx: typer.Context, incomplete: str) -> list[Any]:
        items = [item for item in complete(ctx, incomplete) if is_printable(item.value)]
        for item in items:
            item.help = item.help and escape_control_characters(item.help)
        return items

    param.shell_complete = complete_printable
    return param


class FastCommand(TyperCommand):
    """A command that loads no pydantic and completes printable words only."""

    def get_params(self, ctx: Any) -> list[Any]:
        return [_prepared(param) for param in super().get_params(ctx)]


class FastGroup(TyperGroup):
    """A group of commands that loads no pydantic and completes printable words only."""

    def get_params(self, ctx: Any) -> list[Any]:
        return [_prepared(param) for param in super().get_params(ctx)]


def use_zsh_descriptions() -> None:
    """Make Typer print code for zsh that keeps quotes, brackets and colons in completions.

    That of Typer drops single quotes and offers nothing inside an open quote.
    """
    from typer._completion_classes import ZshComplete

    def complete_in_zsh(self: ZshComplete) -> str:
        words = []
        for item in self.get_completions(*self.get_completion_args()):
            # A completion and its description are one quoted word, with a colon between them.
            word = item.value.replace("\\", "\\\\").replace(":", "\\:")
            described = f"{word}:{' '.join(item.help.split())}" if item.help else word
            words.append("'" + described.replace("'", "'\\''") + "'")
        if not words:
            return "_files"
        return f"local -a found; found=({' '.join(words)}); _describe tdx found"

    ZshComplete.complete = complete_in_zsh  # type: ignore[method-assign]
