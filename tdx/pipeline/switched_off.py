"""Stages that are switched off, in a pipeline file: comments that keep their places.

``# off: CatFrames(N=4)  # why`` among the stages is a comment for whoever runs the pipeline, and a
stage to be switched on again for whoever edits it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from tdx.errors import PipelineError
from tdx.pipeline.arguments import named
from tdx.pipeline.formatting import format_stage
from tdx.pipeline.grammar import parse_stage
from tdx.pipeline.model import OffStage, StageConfig
from tdx.pipeline.yaml_sections import section_span, stage_block

_LINE = re.compile(r"\s*# off: (\S.*?)\s*")
_LONGEST_LINE, _MOST_CUTS = 10_000, 20
_COMMENT = re.compile(r"\s+#\s*")


@dataclass(frozen=True, slots=True)
class OffLine:
    """The line of a stage that is switched off.

    Args:
        number: of the line, from 1.
        stage: the stage.
        comment: what stands behind it.
    """

    number: int
    stage: StageConfig
    comment: str

    @classmethod
    def read(cls, line: str, number: int) -> OffLine | None:
        """What a line says; none where it is no such line."""
        match = _LINE.fullmatch(line)
        if match is None or len(line) > _LONGEST_LINE:
            return None
        said = match.group(1)
        for cut in [*islice(_COMMENT.finditer(said), _MOST_CUTS), None]:
            with suppress(PipelineError):
                stage = parse_stage(said if cut is None else said[: cut.start()])
                return cls(number, stage, "" if cut is None else said[cut.end() :])
        return None


def off_stages(text: str, document: Mapping[str, Any], starts: Sequence[int]) -> list[OffStage]:
    """The stages that are switched off.

    Args:
        text: the file's text.
        document: the same, loaded.
        starts: the lines of the stages that are switched on, from 1.

    Returns:
        Them in order; a comment that cannot be read as a stage is only a comment.
    """
    return [
        OffStage(sum(start <= each.number for start in starts), each.stage, each.comment)
        for each in off_lines(text, document)
    ]


def with_off_stages(text: str, document: Mapping[str, Any], off: Sequence[OffStage]) -> str | None:
    """The text with the stages that are switched off, each right behind the stage before it.

    Args:
        text: the file's text, without any of them.
        document: the same, loaded.
        off: what is switched off.

    Returns:
        The text; none where the others do not stand on lines of their own, so that there is no
        place for a comment between them.
    """
    block = stage_block(text, document)
    if block is None and document.get("transforms"):
        return None
    if block is None:
        lines = text.split("\n")
        start, _ = section_span(text, document, "transforms")
        return "\n".join([*lines[: start + 1], *_written(off, 2), *lines[start + 1 :]])
    count = len(block.stages)
    here = [
        _written([each for each in off if min(each.before, count) == place], block.indent)
        for place in range(count + 1)
    ]
    block.before += here[0]
    for gap, written in zip(block.gaps, here[1:-1], strict=True):
        gap[:0] = written
    block.after[:0] = here[-1]
    return block.text()


def without_off_lines(text: str, document: Mapping[str, Any]) -> str:
    """The text without the lines of stages that are switched off."""
    there = {each.number - 1 for each in off_lines(text, document)}
    return "\n".join(line for n, line in enumerate(text.split("\n")) if n not in there)


def shifted(off: Sequence[OffStage], behind: int, by: int) -> tuple[OffStage, ...]:
    """Their places after a stage behind which they stand has come or gone."""
    return tuple(
        replace(each, before=each.before + by) if each.before > behind else each for each in off
    )


def off_lines(text: str, document: Mapping[str, Any]) -> Iterator[OffLine]:
    """The lines of stages that are switched off."""
    if "# off: " not in text or "transforms" not in document:
        return
    lines = text.split("\n")
    start: int = document.lc.key("transforms")[0]  # type: ignore[attr-defined]
    later = [document.lc.key(other)[0] for other in document]  # type: ignore[attr-defined]
    end = min((line for line in later if line > start), default=len(lines))
    for number in range(start, end):
        found = OffLine.read(lines[number], number + 1)
        if found is not None:
            yield found


def off_line(stage: StageConfig, indent: int, comment: str = "") -> str:
    """The line of a stage that is switched off."""
    written = f"{' ' * indent}# off: {format_stage(named(stage))}"
    return f"{written}  # {comment}" if comment else written


def _written(off: Sequence[OffStage], indent: int) -> list[str]:
    return [off_line(each.stage, indent, each.comment) for each in off]
