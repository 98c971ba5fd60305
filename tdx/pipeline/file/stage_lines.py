"""Locate and edit the lines of single stages in the text of a pipeline file.

``# off: CatFrames(N=4)  # why`` among the stages is a comment for whoever runs the pipeline, and a
disabled stage for whoever edits it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from tdx.foundation.errors import PipelineError
from tdx.pipeline.arguments import name_arguments
from tdx.pipeline.grammar import format_stage, parse_stage
from tdx.pipeline.model import DisabledStage
from tdx.pipeline.values import StageConfig


@dataclass
class StageLines:
    """Lines of one stage: the comment directly above it, and the stage itself."""

    lead: list[str]
    body: list[str]


@dataclass
class StageBlock:
    """The list under ``transforms:``, split into lines.

    Args:
        before: Lines above the first stage.
        stages: The stages.
        gaps: Lines between two stages that belong to neither, such as blank lines.
        after: Lines below the last stage.
        indent: Column of the dashes.
    """

    before: list[str]
    stages: list[StageLines] = field(default_factory=list)
    gaps: list[list[str]] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    indent: int = 2

    def text(self) -> str:
        """Join the lines to the text of the file."""
        lines = list(self.before)
        for index, stage in enumerate(self.stages):
            lines += self.gaps[index - 1] if index else []
            lines += [*stage.lead, *stage.body]
        return "\n".join([*lines, *self.after])

    def spans(self) -> list[tuple[int, int]]:
        """Return each stage's first line, from 0, and the line after its last, without comments."""
        found, at = [], len(self.before)
        for index, stage in enumerate(self.stages):
            start = at + (len(self.gaps[index - 1]) if index else 0) + len(stage.lead)
            at = start + len(stage.body)
            found.append((start, at))
        return found


def split_stages(text: str, document: Mapping[str, Any]) -> StageBlock | None:
    """Split the stages of a file into lines; ``None`` unless each stage starts on its own line."""
    node = document.get("transforms")
    lines = text.split("\n")
    if not isinstance(node, list) or not node or node.fa.flow_style():  # type: ignore[attr-defined]
        return None
    indent: int = node.lc.col  # type: ignore[attr-defined]
    starts = [_find_dash_line(lines, node.lc.item(index)[0], indent) for index in range(len(node))]  # type: ignore[attr-defined]
    if None in starts or len(set(starts)) != len(starts):
        return None
    return _split_lines(lines, [start for start in starts if start is not None], indent)


def find_section(text: str, document: Mapping[str, Any], key: str) -> tuple[int, int]:
    """Return the lines, from 0, of a top-level key with its value; the end is exclusive."""
    lines = text.split("\n")
    start: int = document.lc.key(key)[0]  # type: ignore[attr-defined]
    later = [document.lc.key(other)[0] for other in document]  # type: ignore[attr-defined]
    limit = min((line for line in later if line > start), default=len(lines))
    return start, _trim_end(lines, start, limit, 0)


def _find_dash_line(lines: list[str], line: int, indent: int) -> int | None:
    """Return the line with the dash of an item whose value starts at ``line``."""
    for number in range(line, -1, -1):
        if lines[number].startswith(" " * indent + "-"):
            return number
        if lines[number].strip() and not lines[number].strip().startswith("#") and number != line:
            return None
    return None


def _split_lines(lines: list[str], starts: list[int], indent: int) -> StageBlock:
    ends = [
        _trim_end(lines, start, limit, indent)
        for start, limit in _stage_limits(lines, starts, indent)
    ]
    leads = [
        _comment_start(lines, start, floor)
        for start, floor in zip(starts, [0, *ends], strict=False)
    ]
    block = StageBlock(before=lines[: leads[0]], indent=indent)
    for lead, start, end in zip(leads, starts, ends, strict=True):
        block.stages.append(StageLines(lines[lead:start], lines[start:end]))
    block.gaps = [lines[end:lead] for end, lead in zip(ends, leads[1:], strict=False)]
    block.after = lines[ends[-1] :]
    return block


def _stage_limits(lines: list[str], starts: list[int], indent: int) -> list[tuple[int, int]]:
    """Return the first line of each stage and the first line that cannot belong to it."""
    last = starts[-1] + 1
    while last < len(lines) and (
        _is_blank_or_comment(lines[last]) or _indentation(lines[last]) > indent
    ):
        last += 1
    return list(zip(starts, [*starts[1:], last], strict=True))


def _trim_end(lines: list[str], start: int, limit: int, indent: int) -> int:
    """Return the end of the block at ``start``, without blank lines and outer comments."""
    end = limit
    while end > start + 1 and _is_blank_or_comment(lines[end - 1]):
        if lines[end - 1].strip() and _indentation(lines[end - 1]) > indent:
            break
        end -= 1
    return end


def _comment_start(lines: list[str], start: int, floor: int) -> int:
    """Return the first of the comment lines directly above a stage."""
    first = start
    while first > floor and lines[first - 1].strip().startswith("#"):
        first -= 1
    return first


def _is_blank_or_comment(line: str) -> bool:
    stripped = line.strip()
    return not stripped or stripped.startswith("#")


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())


_DISABLED_LINE = re.compile(r"\s*# off: (\S.*?)\s*")
_MAX_LINE_LENGTH, _MAX_COMMENT_STARTS = 10_000, 20
_COMMENT_START = re.compile(r"\s+#\s*")


@dataclass(frozen=True, slots=True)
class DisabledLine:
    """Line of a disabled stage.

    Args:
        number: Line number, from 1.
        stage: The stage.
        comment: Comment after it.
    """

    number: int
    stage: StageConfig
    comment: str

    @classmethod
    def read(cls, line: str, number: int) -> DisabledLine | None:
        """Parse a line; ``None`` if it is not the line of a disabled stage."""
        match = _DISABLED_LINE.fullmatch(line)
        if match is None or len(line) > _MAX_LINE_LENGTH:
            return None
        content = match.group(1)
        for cut in [*islice(_COMMENT_START.finditer(content), _MAX_COMMENT_STARTS), None]:
            with suppress(PipelineError):
                stage = parse_stage(content if cut is None else content[: cut.start()])
                return cls(number, stage, "" if cut is None else content[cut.end() :])
        return None


def read_disabled_stages(
    text: str, document: Mapping[str, Any], starts: Sequence[int]
) -> list[DisabledStage]:
    """Return the disabled stages in order; comments that are not stages are ignored.

    Args:
        text: Text of the file.
        document: The loaded text.
        starts: Lines of the enabled stages, from 1.
    """
    return [
        DisabledStage(sum(start <= each.number for start in starts), each.stage, each.comment)
        for each in iterate_disabled_lines(text, document)
    ]


def insert_disabled_stages(
    text: str, document: Mapping[str, Any], off: Sequence[DisabledStage]
) -> str | None:
    """Insert lines for disabled stages, each directly after the stage before it.

    Args:
        text: Text of the file, without disabled stages.
        document: The loaded text.
        off: The disabled stages.

    Returns:
        The text. ``None`` if the enabled stages are not on lines of their own, so that a comment
        cannot be placed between them.
    """
    block = split_stages(text, document)
    if block is None and document.get("transforms"):
        return None
    if block is None:
        lines = text.split("\n")
        start, _ = find_section(text, document, "transforms")
        return "\n".join([*lines[: start + 1], *_format_disabled(off, 2), *lines[start + 1 :]])
    count = len(block.stages)
    blocks = [
        _format_disabled([each for each in off if min(each.before, count) == place], block.indent)
        for place in range(count + 1)
    ]
    block.before += blocks[0]
    for gap, written in zip(block.gaps, blocks[1:-1], strict=True):
        gap[:0] = written
    block.after[:0] = blocks[-1]
    return block.text()


def remove_disabled_lines(text: str, document: Mapping[str, Any]) -> str:
    """Remove the lines of disabled stages."""
    disabled = {each.number - 1 for each in iterate_disabled_lines(text, document)}
    return "\n".join(line for n, line in enumerate(text.split("\n")) if n not in disabled)


def shift_disabled(off: Sequence[DisabledStage], behind: int, by: int) -> tuple[DisabledStage, ...]:
    """Return disabled stages with updated positions after an enabled stage was added or removed."""
    return tuple(
        replace(each, before=each.before + by) if each.before > behind else each for each in off
    )


def iterate_disabled_lines(text: str, document: Mapping[str, Any]) -> Iterator[DisabledLine]:
    """Yield the lines of disabled stages."""
    if "# off: " not in text or "transforms" not in document:
        return
    lines = text.split("\n")
    start: int = document.lc.key("transforms")[0]  # type: ignore[attr-defined]
    later = [document.lc.key(other)[0] for other in document]  # type: ignore[attr-defined]
    end = min((line for line in later if line > start), default=len(lines))
    for number in range(start, end):
        found = DisabledLine.read(lines[number], number + 1)
        if found is not None:
            yield found


def format_disabled_stage(stage: StageConfig, indent: int, comment: str = "") -> str:
    """Return the line of a disabled stage."""
    written = f"{' ' * indent}# off: {format_stage(name_arguments(stage))}"
    return f"{written}  # {comment}" if comment else written


def _format_disabled(off: Sequence[DisabledStage], indent: int) -> list[str]:
    return [format_disabled_stage(each.stage, indent, each.comment) for each in off]


_IGNORE = re.compile(r"(?:^|\s)#\s*tdx:\s*ignore(?:\[([\w,\s]*)\])?(?![\w\[])")
ALL_CODES = "TDX"
"""Prefix of every code."""


def read_ignored_codes(text: str, starts: Sequence[int]) -> list[tuple[str, ...]]:
    """Return the codes that comments switch off for each stage.

    Args:
        text: Text of the file.
        starts: Line of each stage, from 1, in order.

    Example:
        >>> read_ignored_codes("- RewardSum  # tdx: ignore[TDX422, TDX49]", [1])
        [('TDX422', 'TDX49')]
    """
    lines = text.split("\n")
    ends = [*(start - 1 for start in starts[1:]), len(lines)]
    found = []
    for start, end in zip(starts, ends, strict=False):
        codes: list[str] = []
        # A comment of its own line belongs to the next stage, if there is one.
        for line in lines[start - 1 : end]:
            if line[:1].isalpha():
                break
            if (match := _IGNORE.search(line)) and not line.lstrip().startswith("#"):
                codes += (match[1] or ALL_CODES).upper().replace(",", " ").split()
        found.append(tuple(codes))
    return found
