"""Stdout and stderr that take all that tdx writes, whatever the locale."""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
from typing import TextIO

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


def prepare_streams() -> None:
    """Let a locale without UTF-8 show signs as ASCII, and a closed stream swallow what it gets."""
    sys.stdout = _prepared(sys.stdout)
    sys.stderr = _prepared(sys.stderr)


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


def close_quietly(stream: TextIO) -> None:
    """Let nothing complain any more that what is in ``stream`` cannot be written."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
