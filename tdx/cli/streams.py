"""Stdout and stderr that accept any text in any locale and never send control characters."""

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

_ASCII = {
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

    It removes colors; code that prints its own colors writes to :func:`raw_stream`. A ``\r`` at the
    start or end of one write is kept, because progress bars of libraries need it.

    Args:
        stream: Receives the escaped text.

    Example:
        >>> _ = EscapingStream(sys.stdout).write("\x1b[31mPong\x1b[2J\n")
        Pong\x1b[2J
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write a text and return its length."""
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


def raw_stream(stream: TextIO) -> TextIO:
    """Return the stream behind an :class:`EscapingStream`, to write text with colors."""
    return stream.stream if isinstance(stream, EscapingStream) else stream


@contextlib.contextmanager
def prepared_streams() -> Iterator[None]:
    """Replace stdout and stderr with streams that accept any text.

    Without UTF-8 other characters are replaced by ASCII. A closed stream discards its text. Stderr,
    which receives messages and the output of libraries, escapes control characters; text for stdout
    is escaped when it is laid out.
    """
    before = sys.stderr
    sys.stdout = _prepared(sys.stdout)
    sys.stderr = escaping = cast(TextIO, EscapingStream(raw_stream(_prepared(before))))
    try:
        yield
    finally:
        if sys.stderr is escaping and before is not None:
            sys.stderr = before


def _prepared(stream: TextIO | None) -> TextIO:
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")
    if not supports_unicode(stream) and hasattr(stream, "reconfigure"):
        codecs.register_error("tdx.ascii", _to_ascii)
        stream.reconfigure(errors="tdx.ascii")
    return stream


def supports_unicode(stream: TextIO) -> bool:
    """Return True if ``stream`` can encode every character."""
    return (stream.encoding or "").lower().replace("-", "").startswith("utf")


def _to_ascii(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    return "".join(_ASCII.get(character, "?") for character in text), error.end


def json_text(document: Mapping[str, Any], stream: TextIO, indent: int | None = None) -> str:
    """Return a document as JSON that a stream can encode, with a newline at the end.

    Control and bidirectional characters become JSON escapes.

    Args:
        document: Document to convert.
        stream: Target. Without UTF-8, the JSON is ASCII.
        indent: Columns of indentation. ``None``: everything on one line.
    """
    ascii_only = not supports_unicode(stream)
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_only, allow_nan=False)
    return f"{escape_json(text)}\n"


def write_verbatim(text: str) -> None:
    """Write a file or a diff to stdout; escape control characters only on a terminal."""
    output = escape_control_characters(text, keep="\n\t") if sys.stdout.isatty() else text
    sys.stdout.write(output)


def close_quietly(stream: TextIO) -> None:
    """Redirect ``stream`` to /dev/null, so that flushing its buffer cannot fail."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
