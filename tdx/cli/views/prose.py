"""Docstrings as plain text."""

from __future__ import annotations

import re
from collections.abc import Iterator

_SECTION = re.compile(
    r"^\s*(?:Args|Attributes|Examples?|Notes?|Raises|Returns|Yields):\s*$", re.MULTILINE
)


def plain(text: str) -> str:
    """A docstring's text without its marks for code and for references.

    Example:
        >>> plain("See :class:`~tdx.specs.Bounded` and ``low``.")
        'See Bounded and low.'
    """
    return re.sub(r":\w+:`~?(?:[\w.]+\.)?([^`]+)`", r"\1", text).replace("``", "")


def paragraphs(doc: str) -> Iterator[str]:
    """The paragraphs of a docstring before its first section, each on one line."""
    body = _SECTION.split(doc, maxsplit=1)[0].strip()
    for paragraph in re.split(r"\n\s*\n", body):
        yield plain(" ".join(paragraph.split()))
