"""Text: escaped control characters of text from outside, numbers with units, and dtypes."""

from __future__ import annotations

import html
import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_BIDIRECTIONAL = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_LINE_SEPARATORS = "\u2028\u2029"
_INVISIBLE = "\u00ad\u200b\u2060-\u2064\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
_UNSAFE = re.compile(
    f"[\x00-\x1f\x7f-\x9f\ud800-\udfff{_BIDIRECTIONAL}{_LINE_SEPARATORS}{_INVISIBLE}]"
)


def escape_control_characters(text: str, *, keep: str = "") -> str:
    r"""Replace what a terminal or a browser would act on by a visible escape sequence.

    Escapes C0 and C1 controls, lone surrogates, bidirectional controls, line separators and
    invisible format characters; those in ``keep`` pass unchanged. Call it where text leaves tdx
    (terminal, log, HTML, CSV), not where text is stored.

    Example:
        >>> print(escape_control_characters("Pong\x1b[2J\u202e"))
        Pong\x1b[2J\u202e
        >>> escape_control_characters("two\nlines", keep="\n")
        'two\nlines'
    """
    if text.isascii() and text.isprintable():
        return text

    def escape(match: re.Match[str]) -> str:
        character = match[0]
        return character if character in keep else character.encode("unicode_escape").decode()

    return _UNSAFE.sub(escape, text)


def escape_html(text: str) -> str:
    r"""Escape text for HTML and SVG, with its control characters apart from newlines and tabs.

    Example:
        >>> escape_html("<b>\x07")
        '&lt;b&gt;\\x07'
    """
    return html.escape(escape_control_characters(text, keep="\n\t"))


def display_width(text: str) -> int:
    """Return the columns of a text in a terminal; wide East Asian characters take two."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def is_printable(text: str) -> bool:
    """Return True if :func:`escape_control_characters` has nothing to escape."""
    return _UNSAFE.search(text) is None


def escape_json(document: str) -> str:
    r"""Escape the same characters in what :mod:`json` wrote: the values stay equal.

    Example:
        >>> print(escape_json('{"id": "Pong\u202e\x9b"}'))
        {"id": "Pong\u202e\u009b"}
    """
    if document.isascii() and "\x7f" not in document:
        return document

    def escape(match: re.Match[str]) -> str:
        if match[0] in "\n\t":
            return match[0]
        units = match[0].encode("utf-16-be", "surrogatepass").hex()
        return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))

    return _UNSAFE.sub(escape, document)


def count_text(number: int, noun: str) -> str:
    """Return a number with its noun: ``2,000 steps``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def unwrap_paragraphs(prose: str) -> tuple[str, ...]:
    """Return the paragraphs of an indented, wrapped text, each on one line."""
    return tuple(" ".join(part.split()) for part in prose.strip().split("\n\n"))


def three_digits(value: float) -> str:
    """Return a number with three significant digits, or all before the point.

    Example:
        >>> [three_digits(value) for value in (0, 0.0001, 0.0123, 1.5, 12.34, 123.4, 1234.5)]
        ['0', '<0.001', '0.012', '1.50', '12.3', '123', '1,234']
    """
    size = abs(value)
    if size < 0.0005:
        return "<0.001" if size else "0"
    if size >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 9.995 else f"{value:.2f}" if size >= 0.0995 else f"{value:.3f}"


def format_bytes(size: float) -> str:
    """Return a number of bytes with a suitable unit.

    Example:
        >>> [format_bytes(size) for size in (0, 512, 2048, 5_000_000, 2**40, -3 * 2**30)]
        ['0 B', '512 B', '2.0 KiB', '4.8 MiB', '1,024 GiB', '-3.0 GiB']
    """
    if abs(size) < 999.5:
        return f"{size:.0f} B"
    units = ["GiB", "MiB", "KiB"]
    size /= 1024
    while abs(size) >= 999.5 and len(units) > 1:
        units.pop()
        size /= 1024
    return f"{size:,.{0 if abs(size) >= 99.95 else 1}f} {units[-1]}"


def dtype_name(dtype: torch.dtype | None) -> str:
    """Return the name of a dtype, such as ``float32``; ``object`` for that of any objects."""
    return "object" if dtype is None else str(dtype).removeprefix("torch.")
