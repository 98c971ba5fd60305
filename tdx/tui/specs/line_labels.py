"""How a line of the spec tree that can be folded is written."""

from __future__ import annotations

from textual.content import Content

from tdx.tui.specs.spec_lines import DIRECTIONS
from tdx.tui.specs.spec_tree import Line

_COUNTED = (("added", "+", "$success"), ("changed", "~", "$warning"), ("gone", "-", "$error"))
_STYLES = {"place": "bold", "lane": "bold $primary", "part": "$secondary", "group": "bold"}
_ARROWS = {"forward": "↓ ", "inverse": "↑ "}


def heading(line: Line) -> Content:
    """The name with a sign for whether it is open; a folded one says what is below it."""
    if line.kind == "nothing":
        return Content.styled("  nothing", "dim")
    sign = "▸ " if line.is_folded else "▾ "
    arrow = _ARROWS[line.text] if line.kind == "lane" else ""
    name = (f"{arrow}{line.text}", _STYLES[line.kind])
    if line.is_folded or line.kind == "place":
        return Content.assemble((sign, "dim"), name, *_below(line))
    note = f"  {DIRECTIONS[line.text]}" if line.kind == "lane" else ""
    return Content.assemble((sign, "dim"), name, (note, "dim"))


def _below(line: Line) -> list[tuple[str, str]]:
    total = len(line.members)
    parts = [(f"  {total} key{'' if total == 1 else 's'}", "dim")]
    parts += [
        (f" {sign}{line.counts[change]}", colour)
        for change, sign, colour in _COUNTED
        if line.counts[change]
    ]
    return parts
