"""Parts of Typer that are not public, all in one place.

``tests/cli/test_typer_internals.py`` fails with an explanation when a release changes one of them;
``docs/decisions/0019-typer-internals.md`` lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typer.core import TyperCommand, TyperGroup

from tdx.foundation.text import escape_control_characters, is_printable

TESTED_VERSIONS = ">=0.29,<0.30"
"""Releases of Typer that have these parts."""


class _ValueReader:
    """Reads option values without pydantic, whose import makes ``tdx list`` 1.5 times as slow.

    Typer passes every value to a pydantic adapter. The options of tdx are strings, lists of
    strings, flags and values with a parser, which need none.
    """

    def __init__(self, parser: Callable[[str], Any] | None) -> None:
        self._parser = parser

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if isinstance(value, str) and self._parser is not None:
            return self._parser(value)
        return value


class _PrintableCompletions:
    """Completes only words without control characters: some come from an env or a dump.

    Args:
        complete: Returns the completions of a parameter.
    """

    def __init__(self, complete: Callable[[Any, str], list[Any]]) -> None:
        self._complete = complete

    def __call__(self, ctx: Any, incomplete: str) -> list[Any]:
        items = [item for item in self._complete(ctx, incomplete) if is_printable(item.value)]
        for item in items:
            item.help = item.help and escape_control_characters(item.help)
        return items


def _prepare_parameters(params: list[Any]) -> list[Any]:
    for param in params:
        if hasattr(param, "type_descriptor"):
            param._runtime_param = _ValueReader(param.type_descriptor.parameter_info.parser)
        if getattr(param, "is_flag", False) and param.metavar is None:
            # Typer would print <bool> after a flag, which takes no value.
            param.metavar = ""
        if "shell_complete" not in vars(param):
            param.shell_complete = _PrintableCompletions(param.shell_complete)
    return params


class FastCommand(TyperCommand):
    """A command that loads no pydantic and completes printable words only."""

    def get_params(self, ctx: Any) -> Any:
        return _prepare_parameters(super().get_params(ctx))


class FastGroup(TyperGroup):
    """A group of commands that loads no pydantic and completes printable words only."""

    def get_params(self, ctx: Any) -> Any:
        return _prepare_parameters(super().get_params(ctx))


def use_zsh_descriptions() -> None:
    """Make Typer print code for zsh that keeps quotes, brackets and colons in completions.

    That of Typer drops single quotes and offers nothing inside an open quote.
    """
    from typer._completion_classes import ZshComplete

    ZshComplete.complete = _complete_in_zsh  # type: ignore[method-assign]


def _complete_in_zsh(self: Any) -> str:
    items = self.get_completions(*self.get_completion_args())
    if not items:
        return "_files"
    words = " ".join(_zsh_word(item.value, item.help) for item in items)
    return f"local -a found; found=({words}); _describe tdx found"


def _zsh_word(value: str, text: str | None) -> str:
    """Return a completion and its description as one quoted word, with a colon between them."""
    word = value.replace("\\", "\\\\").replace(":", "\\:")
    described = f"{word}:{' '.join(text.split())}" if text else word
    return "'" + described.replace("'", "'\\''") + "'"
