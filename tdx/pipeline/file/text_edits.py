"""Change one stage or one section of a pipeline file's text and leave the rest unchanged."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import SequenceMatcher
from typing import Any

from tdx.foundation.errors import PipelineError
from tdx.pipeline.arguments import name_arguments
from tdx.pipeline.file.stage_lines import (
    find_section,
    format_disabled_stage,
    iterate_disabled_lines,
    split_stages,
)
from tdx.pipeline.file.yaml_codec import apply_style, decode, dump_yaml, load_yaml
from tdx.pipeline.file.yaml_format import (
    BLOCK_DEPTHS,
    TOP_LEVEL_KEYS,
    build_document,
    build_stage_node,
)
from tdx.pipeline.model import DisabledStage, Pipeline
from tdx.pipeline.values import StageConfig, Value


def pipeline_identity(pipeline: Pipeline) -> str:
    """Return text that is equal for pipelines that do the same; ignores disabled stages.

    Distinguishes 1 from 1.0, but not positional from named arguments.
    """
    stages = [stage_identity(stage) for stage in pipeline.transforms]
    return repr((pipeline.env, stages, pipeline.policy, pipeline.rollout))


def disabled_identity(off: Sequence[DisabledStage]) -> list[tuple[int, str]]:
    """Return the disabled stages with their positions, for comparison."""
    return [(each.before, stage_identity(each.stage)) for each in off]


def stage_identity(stage: StageConfig) -> str:
    """Return text that is equal for stages that do the same."""
    full = name_arguments(stage)
    return repr((full.name, full.args, sorted(full.kwargs.items(), key=_name_of_item)))


def _name_of_item(item: tuple[str, Value]) -> str:
    return item[0]


_COMMENT = re.compile(r"(?:^|\s)\s*#")


def format_stage_lines(stage: StageConfig, indent: int) -> list[str]:
    """Return the lines of a stage with its dash in column ``indent``."""
    node = {"transforms": apply_style([build_stage_node(stage)], BLOCK_DEPTHS["transforms"])}
    return _indent_lines(dump_yaml(node).splitlines()[1:], indent - 2)


def edit_stage_lines(body: list[str], stage: StageConfig, indent: int) -> list[str]:
    """Change the lines of a stage to another stage; unchanged arguments keep their formatting."""
    old = load_yaml("transforms:\n" + "\n".join(body))
    item, node = old["transforms"][0], build_stage_node(stage)
    if isinstance(item, Mapping) and isinstance(node, dict) and list(item) == list(node):
        (name,) = node
        if isinstance(item[name], dict) and isinstance(node[name], dict):
            merge_map(item[name], node[name])
            return _indent_lines(dump_yaml(old).splitlines()[1:], indent - 2)
    comments = extract_comments(body) if len(body) == 1 else []
    return append_comments(format_stage_lines(stage, indent), *comments)


def extract_comments(body: list[str]) -> list[str]:
    """Return the comments in the lines of a stage, from top to bottom."""
    expected, lines, found = load_yaml("transforms:\n" + "\n".join(body)), list(body), []
    for number, line in enumerate(body):
        for mark in _COMMENT.finditer(line):
            left = [*lines[:number], line[: mark.start()], *lines[number + 1 :]]
            with suppress(PipelineError):
                if _is_same_value(load_yaml("transforms:\n" + "\n".join(left)), expected):
                    found.append(line[mark.end() :].strip())
                    lines = left
                    break
    return found


def append_comments(lines: list[str], *comments: str) -> list[str]:
    """Append comments to the first line of a stage."""
    return [f"{lines[0]}  # {'; '.join(comments)}", *lines[1:]] if any(comments) else lines


def edit_section(text: str, document: Any, pipeline: Pipeline, key: str) -> str:
    """Change the section of a top-level key to match the pipeline."""
    wanted = build_document(pipeline).get(key)
    lines = text.split("\n")
    if key not in document:
        return _insert_section(lines, document, key, wanted) if wanted is not None else text
    start, end = find_section(text, document, key)
    if wanted is None:
        return "\n".join(lines[:start] + lines[end:])
    section = load_yaml("\n".join(lines[start:end]))
    if isinstance(section[key], dict) and isinstance(wanted, dict):
        merge_map(section[key], wanted)
    else:
        section[key] = apply_style(wanted, BLOCK_DEPTHS.get(key, 0))
    return "\n".join([*lines[:start], *dump_yaml(section).splitlines(), *lines[end:]])


def merge_map(node: Any, wanted: Mapping[str, Any]) -> None:
    """Make a loaded mapping equal to ``wanted``; equal entries keep their formatting."""
    for key in [key for key in node if key not in wanted]:
        del node[key]
    for key, value in wanted.items():
        if key not in node or not _is_same_value(node[key], value):
            node[key] = apply_style(value)


def _is_same_value(old: Any, new: Any) -> bool:
    """True if two nodes have the same value; 1, 1.0 and true differ."""
    return repr(decode(old)) == repr(decode(new))


def _insert_section(lines: list[str], document: Any, key: str, wanted: Any) -> str:
    """Insert a new section after the sections that precede it."""
    earlier = [known for known in TOP_LEVEL_KEYS[: TOP_LEVEL_KEYS.index(key)] if known in document]
    end = max((find_section("\n".join(lines), document, known)[1] for known in earlier), default=0)
    section = dump_yaml({key: apply_style(wanted, BLOCK_DEPTHS.get(key, 0))}).splitlines()
    after = lines[end:] or [""]
    return "\n".join([*lines[:end], *section, *after])


def _indent_lines(lines: list[str], extra: int) -> list[str]:
    if extra < 0:
        return [line.removeprefix(" " * -extra) for line in lines]
    return [" " * extra + line if line.strip() else line for line in lines]


StageState = tuple[str, bool]
"""Identity of a stage, and whether it is enabled."""
_Edit = tuple[int, int, list[str]]


def list_stage_states(pipeline: Pipeline) -> list[StageState]:
    """Return the states of all stages in file order, disabled stages included."""
    ranked = [(n + 1, True, stage) for n, stage in enumerate(pipeline.transforms)]
    ranked += [(each.before, False, each.stage) for each in pipeline.off]
    ranked.sort(key=lambda each: (each[0], not each[1]))
    return [(stage_identity(stage), on) for _, on, stage in ranked]


def list_toggled_states(pipeline: Pipeline, wanted: Pipeline) -> list[StageState]:
    """Return the states of a pipeline's stages with each stage toggled as wanted."""
    have, want = list_stage_states(pipeline), list_stage_states(wanted)
    same = SequenceMatcher(None, [name for name, _ in have], [name for name, _ in want], False)
    for start, other, size in same.get_matching_blocks():
        have[start : start + size] = want[other : other + size]
    return have


def toggle_stages(text: str, pipeline: Pipeline, wanted: Pipeline) -> str:
    """Enable and disable stages in place, so that no comment moves.

    Args:
        text: Text of a pipeline file.
        pipeline: Pipeline in the text.
        wanted: Pipeline with the wanted stages; other differences are ignored.

    Returns:
        The text. Unchanged if the stages are not on lines of their own, or no stage would be
        enabled.
    """
    have, want = list_stage_states(pipeline), list_toggled_states(pipeline, wanted)
    document = load_yaml(text)
    block = split_stages(text, document)
    if have == want or block is None or not any(on for _, on in want):
        return text
    lines, spans = text.split("\n"), iter(block.spans())
    edits: list[_Edit] = []
    stages, off = iter(pipeline.transforms), iter(list(iterate_disabled_lines(text, document)))
    for (_, was), (_, on) in zip(have, want, strict=True):
        if was:
            (start, end), stage = next(spans), next(stages)
            comments = "; ".join(extract_comments(lines[start:end])) if not on else ""
            edits += (
                [(start, end, [format_disabled_stage(stage, block.indent, comments)])]
                if not on
                else []
            )
        else:
            line = next(off)
            new = append_comments(format_stage_lines(line.stage, block.indent), line.comment)
            edits += [(line.number - 1, line.number, new)] if on else []
    for start, end, new in reversed(edits):
        lines[start:end] = new
    return "\n".join(lines)
