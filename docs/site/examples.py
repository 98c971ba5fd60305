"""Highlight the examples of the pages: commands in a shell, their output unchanged.

Lines of findings and errors wrap, so that the reason is always visible; tables keep their columns.
"""

from __future__ import annotations

import re
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


_PROSE = re.compile(r"(TDX\d{3}|^error:|^hint:|^warning:|^  help:)", re.MULTILINE)


def is_wrapped(language: str, text: str) -> bool:
    """Return whether the lines of an example wrap: commands alone, findings and errors."""
    return language in {"sh", "bash"} or _PROSE.search(text) is not None


def mark_wrapped(app: Any, doctree: Any, name: str) -> None:
    """Give the class ``wrap`` to the examples whose lines wrap."""
    for block in doctree.findall(lambda node: node.tagname == "literal_block"):
        if is_wrapped(block.get("language", ""), block.astext()):
            block["classes"].append("wrap")


def setup(app: Any) -> dict[str, bool]:
    """Register the languages of examples that the tests execute."""
    for language in ("console", "measured"):
        app.add_lexer(language, CommandLexer)
    app.connect("doctree-resolved", mark_wrapped)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
