"""Text from elsewhere, made harmless: it is shown as it stands and does nothing to a terminal."""

from __future__ import annotations

import re

from tdx.text import is_printable

MOST = 2_000
"""Characters of a line; what is behind them is left out."""
_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours and cursors
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles and links
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"
    r"|\x1b[ -/]*[0-~]"
)


def plain_lines(text: str) -> list[str]:
    r"""The lines of a text; of one that was written over and over, as progress is, the last state.

    Args:
        text: whatever a process has written.

    Example:
        >>> plain_lines("\x1b[31mred\x1b[0m\n 1 %\r 50 %\r100 %\n\x07bell\n")
        ['red', '100 %', '^Gbell']
    """
    lines = _SEQUENCE.sub("", text.replace("\r\n", "\n")).split("\n")
    return [plain(line.rstrip("\r").rpartition("\r")[2]) for line in lines if line.strip()]


def plain(line: str) -> str:
    """A line without anything that is more than a character; tabs become spaces."""
    if not line.isprintable():
        line = "".join(map(_shown, _SEQUENCE.sub("", line).expandtabs(4)))
    return line if len(line) <= MOST else f"{line[: MOST - 1]}…"


def plain_text(text: str) -> str:
    """A text of several lines, such as a traceback; its lines stay."""
    return "\n".join(plain(line) for line in text.split("\n"))


def _shown(sign: str) -> str:
    if ord(sign) < 0x20:
        return f"^{chr(0x40 + ord(sign))}"
    return sign if is_printable(sign) else "�"
