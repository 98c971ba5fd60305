"""Docstrings as plain text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tdx.pipeline.docstrings import strip_markup as strip_markup

_SECTION = re.compile(
    r"^\s*(?:Args|Attributes|Examples?|Notes?|Raises|Returns|Yields):\s*$", re.MULTILINE
)


def paragraphs(doc: str) -> Iterator[str]:
    """The paragraphs of a docstring before its first section, each on one line."""
    body = _SECTION.split(doc, maxsplit=1)[0].strip()
    for paragraph in re.split(r"\n\s*\n", body):
        yield strip_markup(" ".join(paragraph.split()))
