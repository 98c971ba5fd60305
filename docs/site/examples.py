"""Highlight the examples of the pages: commands in a shell, their output unchanged."""

from __future__ import annotations

from typing import Any

from pygments.lexer import RegexLexer, bygroups, using
from pygments.lexers.shell import BashLexer
from pygments.token import Generic


class CommandLexer(RegexLexer):
    """Lines that start with ``$`` are commands; all other lines are output."""

    name = "Commands"
    tokens = {  # noqa: RUF012  # as in the base class
        "root": [
            (r"^(\$ )(.*\n)", bygroups(Generic.Prompt, using(BashLexer))),
            (r".*\n", Generic.Output),
        ]
    }


def setup(app: Any) -> dict[str, bool]:
    """Register the languages of examples that the tests execute."""
    for language in ("console", "measured"):
        app.add_lexer(language, CommandLexer)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
