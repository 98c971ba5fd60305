"""Switch stages of a pipeline file off and on where they stand, so that no comment moves."""

from __future__ import annotations

from difflib import SequenceMatcher

from tdx.pipeline.meaning import stage_meaning
from tdx.pipeline.model import Pipeline
from tdx.pipeline.section_edit import comments_of, new_stage, with_comment
from tdx.pipeline.switched_off import off_line, off_lines
from tdx.pipeline.yaml_sections import stage_block
from tdx.pipeline.yaml_text import load_yaml

State = tuple[str, bool]
"""What a stage means, and whether it is on."""
_Edit = tuple[int, int, list[str]]


def states(pipeline: Pipeline) -> list[State]:
    """The stages in the order of the file, those that are switched off among the others."""
    ranked = [(n + 1, True, stage) for n, stage in enumerate(pipeline.transforms)]
    ranked += [(each.before, False, each.stage) for each in pipeline.off]
    ranked.sort(key=lambda each: (each[0], not each[1]))
    return [(stage_meaning(stage), on) for _, on, stage in ranked]


def switched_states(pipeline: Pipeline, wanted: Pipeline) -> list[State]:
    """The stages of a pipeline, each switched as it is wanted; nothing else is changed."""
    have, want = states(pipeline), states(wanted)
    same = SequenceMatcher(None, [name for name, _ in have], [name for name, _ in want], False)
    for start, other, size in same.get_matching_blocks():
        have[start : start + size] = want[other : other + size]
    return have


def switched(text: str, pipeline: Pipeline, wanted: Pipeline) -> str:
    """The text with stages switched off and on as they are wanted.

    Args:
        text: of a pipeline file.
        pipeline: the one in it.
        wanted: the one it is to hold; what is different besides is left as it is.

    Returns:
        The text; the same where its stages do not stand on lines of their own, or none would be on.
    """
    have, want = states(pipeline), switched_states(pipeline, wanted)
    document = load_yaml(text)
    block = stage_block(text, document)
    if have == want or block is None or not any(on for _, on in want):
        return text
    lines, spans = text.split("\n"), iter(block.spans())
    edits: list[_Edit] = []
    stages, off = iter(pipeline.transforms), iter(list(off_lines(text, document)))
    for (_, was), (_, on) in zip(have, want, strict=True):
        if was:
            (start, end), stage = next(spans), next(stages)
            said = "; ".join(comments_of(lines[start:end])) if not on else ""
            edits += [(start, end, [off_line(stage, block.indent, said)])] if not on else []
        else:
            line = next(off)
            new = with_comment(new_stage(line.stage, block.indent), line.comment)
            edits += [(line.number - 1, line.number, new)] if on else []
    for start, end, new in reversed(edits):
        lines[start:end] = new
    return "\n".join(lines)
