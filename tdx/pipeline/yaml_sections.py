"""Where the parts of a pipeline file's text begin and end, so that one can be changed alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class StageLines:
    """The lines of one stage: the comment right above it, and the stage itself."""

    lead: list[str]
    body: list[str]


@dataclass
class StageBlock:
    """The list under ``transforms:`` taken apart, line by line.

    Args:
        before: all lines above the first stage.
        stages: the stages.
        gaps: what stands between two stages and belongs to neither, such as blank lines.
        after: all lines below the last stage.
        indent: the column of the dashes.
    """

    before: list[str]
    stages: list[StageLines] = field(default_factory=list)
    gaps: list[list[str]] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    indent: int = 2

    def text(self) -> str:
        """The file's text, put together again."""
        lines = list(self.before)
        for index, stage in enumerate(self.stages):
            lines += self.gaps[index - 1] if index else []
            lines += [*stage.lead, *stage.body]
        return "\n".join([*lines, *self.after])

    def spans(self) -> list[tuple[int, int]]:
        """For each stage its first line, from 0, and that behind its last; its lead is left out."""
        found, at = [], len(self.before)
        for index, stage in enumerate(self.stages):
            start = at + (len(self.gaps[index - 1]) if index else 0) + len(stage.lead)
            at = start + len(stage.body)
            found.append((start, at))
        return found


def stage_block(text: str, document: Mapping[str, Any]) -> StageBlock | None:
    """The stages of a file by lines; none where its list is not written with a dash a line."""
    node = document.get("transforms")
    lines = text.split("\n")
    if not isinstance(node, list) or not node or node.fa.flow_style():  # type: ignore[attr-defined]
        return None
    indent: int = node.lc.col  # type: ignore[attr-defined]
    starts = [_dash_line(lines, node.lc.item(index)[0], indent) for index in range(len(node))]  # type: ignore[attr-defined]
    if None in starts or len(set(starts)) != len(starts):
        return None
    return _cut(lines, [start for start in starts if start is not None], indent)


def section_span(text: str, document: Mapping[str, Any], key: str) -> tuple[int, int]:
    """The lines, from 0, of a top-level key with its value; the end is not included."""
    lines = text.split("\n")
    start: int = document.lc.key(key)[0]  # type: ignore[attr-defined]
    later = [document.lc.key(other)[0] for other in document]  # type: ignore[attr-defined]
    limit = min((line for line in later if line > start), default=len(lines))
    return start, _trim(lines, start, limit, 0)


def _dash_line(lines: list[str], line: int, indent: int) -> int | None:
    """The line with the dash of an item whose value starts at ``line``."""
    for number in range(line, -1, -1):
        if lines[number].startswith(" " * indent + "-"):
            return number
        if lines[number].strip() and not lines[number].strip().startswith("#") and number != line:
            return None
    return None


def _cut(lines: list[str], starts: list[int], indent: int) -> StageBlock:
    ends = [_trim(lines, start, limit, indent) for start, limit in _spans(lines, starts, indent)]
    leads = [_lead(lines, start, floor) for start, floor in zip(starts, [0, *ends], strict=False)]
    block = StageBlock(before=lines[: leads[0]], indent=indent)
    for lead, start, end in zip(leads, starts, ends, strict=True):
        block.stages.append(StageLines(lines[lead:start], lines[start:end]))
    block.gaps = [lines[end:lead] for end, lead in zip(ends, leads[1:], strict=False)]
    block.after = lines[ends[-1] :]
    return block


def _spans(lines: list[str], starts: list[int], indent: int) -> list[tuple[int, int]]:
    """Each stage's first line with the first line that cannot be its own any more."""
    last = starts[-1] + 1
    while last < len(lines) and (_is_aside(lines[last]) or _indent(lines[last]) > indent):
        last += 1
    return list(zip(starts, [*starts[1:], last], strict=True))


def _trim(lines: list[str], start: int, limit: int, indent: int) -> int:
    """The end of what starts at ``start``: blank lines and outer comments are not part of it."""
    end = limit
    while end > start + 1 and _is_aside(lines[end - 1]):
        if lines[end - 1].strip() and _indent(lines[end - 1]) > indent:
            break
        end -= 1
    return end


def _lead(lines: list[str], start: int, floor: int) -> int:
    """The first of the comment lines that stand right above a stage."""
    first = start
    while first > floor and lines[first - 1].strip().startswith("#"):
        first -= 1
    return first


def _is_aside(line: str) -> bool:
    stripped = line.strip()
    return not stripped or stripped.startswith("#")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
