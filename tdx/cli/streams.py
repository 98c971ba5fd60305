"""Stdout and stderr that take all that tdx writes, whatever the locale, and act on none of it."""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TextIO, cast

from tdx.text import escape_control_characters, escape_json

_COLOR = re.compile(r"\x1b\[[\d;]*m")

_PLAIN = {
    "…": "...",
    "–": "-",
    "±": "+-",
    "≤": "<=",
    "≥": ">=",
    "→": "->",
    "×": "x",
    "’": "'",
    "µ": "u",
    "▌": "-",
    **dict(zip("▁▂▃▄▅▆▇█", ".:-=+*#@", strict=True)),
}


class EscapingStream:
    r"""A text stream that escapes control characters, apart from newlines and tabs.

    Colors are removed: what writes colors of its own writes to :func:`unescaped`. A ``\r`` stays at
    the start or end of what is written at once, where progress bars of libraries have it.

    Args:
        stream: Where the escaped text goes.

    Example:
        >>> _ = EscapingStream(sys.stdout).write("\x1b[31mPong\x1b[2J\n")
        Pong\x1b[2J
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write a text; returns its length."""
        start = "\r" if text.startswith("\r") else ""
        end = "\r" if text.endswith("\r") and len(text) > 1 else ""
        inner = _COLOR.sub("", text[len(start) : len(text) - len(end)])
        self.stream.write(start + escape_control_characters(inner, keep="\n\t") + end)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def unescaped(stream: TextIO) -> TextIO:
    """The stream behind an :class:`EscapingStream`, for text with colors of tdx itself."""
    return stream.stream if isinstance(stream, EscapingStream) else stream


@contextlib.contextmanager
def prepared_streams() -> Iterator[None]:
    """Replace stdout and stderr by streams that take every text.

    A locale without UTF-8 shows signs as ASCII, a closed stream swallows what it gets, and stderr,
    which gets messages and what libraries print, escapes control characters. What is written to
    stdout is escaped where it is laid out.
    """
    before = sys.stderr
    sys.stdout = _prepared(sys.stdout)
    sys.stderr = escaping = cast(TextIO, EscapingStream(unescaped(_prepared(before))))
    try:
        yield
    finally:
        if sys.stderr is escaping and before is not None:
            sys.stderr = before


def _prepared(stream: TextIO | None) -> TextIO:
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")
    if not speaks_unicode(stream) and hasattr(stream, "reconfigure"):
        codecs.register_error("tdx.plain", _in_plain)
        stream.reconfigure(errors="tdx.plain")
    return stream


def speaks_unicode(stream: TextIO) -> bool:
    """Whether every sign can be written to ``stream``."""
    return (stream.encoding or "").lower().replace("-", "").startswith("utf")


def _in_plain(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    signs = error.object[error.start : error.end]
    return "".join(_PLAIN.get(sign, "?") for sign in signs), error.end


def json_text(document: Mapping[str, Any], stream: TextIO, indent: int | None = None) -> str:
    """A document as JSON that can be written to a stream, with a newline at its end.

    Control and bidirectional characters are escaped as JSON does it.

    Args:
        document: The document.
        stream: Where it goes to; a stream without UTF-8 gets ASCII.
        indent: Columns of indentation. ``None``: everything on one line.
    """
    ascii_only = not speaks_unicode(stream)
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_only, allow_nan=False)
    return f"{escape_json(text)}\n"


def write_verbatim(text: str) -> None:
    """Write a file or a diff to stdout: unchanged, but with controls escaped on a terminal."""
    shown = escape_control_characters(text, keep="\n\t") if sys.stdout.isatty() else text
    sys.stdout.write(shown)


def close_quietly(stream: TextIO) -> None:
    """Let nothing complain any more that what is in ``stream`` cannot be written."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
