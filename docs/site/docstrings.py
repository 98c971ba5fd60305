"""Keep napoleon from reading sentences with a colon as a type and its description.

The docstrings of tdx name no types, because the signatures have them. In ``Returns:`` sections and
in docstrings of properties, ``Default: nothing.`` is the text that it looks like.
"""

from __future__ import annotations

import re
from typing import Any

PLACEHOLDER = "\ue000"
ATTRIBUTES = {"attribute", "data", "property"}
_SECTION = re.compile(r"(\w+):$")


def hide_colons(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Replace the colons of sentences before napoleon reads them."""
    section = ""
    for number, line in enumerate(lines):
        if found := _SECTION.match(line):
            section = found.group(1)
        elif section in {"Returns", "Yields"} or (what in ATTRIBUTES and not section):
            lines[number] = line.replace(": ", f"{PLACEHOLDER} ")


def restore_colons(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Put the colons back."""
    lines[:] = [line.replace(PLACEHOLDER, ":") for line in lines]


def setup(app: Any) -> dict[str, bool]:
    """Run one function before napoleon, which has priority 500, and one after it."""
    app.connect("autodoc-process-docstring", hide_colons, priority=400)
    app.connect("autodoc-process-docstring", restore_colons, priority=600)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
