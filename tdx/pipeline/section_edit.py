"""Change one stage or one top-level section of a pipeline file's text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tdx.errors import PipelineError
from tdx.pipeline.model import Pipeline, StageConfig
from tdx.pipeline.reader import TOP_LEVEL
from tdx.pipeline.writer import BLOCK_DEPTHS, document_of, stage_node
from tdx.pipeline.yaml_sections import section_span
from tdx.pipeline.yaml_text import dump_yaml, load_yaml, styled
from tdx.pipeline.yaml_values import decode

_COMMENT = re.compile(r"(?:^|\s)\s*#")


def new_stage(stage: StageConfig, indent: int) -> list[str]:
    """The lines of a stage, its dash in column ``indent``."""
    node = {"transforms": styled([stage_node(stage)], BLOCK_DEPTHS["transforms"])}
    return _indented(dump_yaml(node).splitlines()[1:], indent - 2)


def edited_stage(body: list[str], stage: StageConfig, indent: int) -> list[str]:
    """The lines of a stage changed into another one; what is the same keeps its writing."""
    old = load_yaml("transforms:\n" + "\n".join(body))
    item, node = old["transforms"][0], stage_node(stage)
    if isinstance(item, Mapping) and isinstance(node, dict) and list(item) == list(node):
        (name,) = node
        if isinstance(item[name], dict) and isinstance(node[name], dict):
            merge(item[name], node[name])
            return _indented(dump_yaml(old).splitlines()[1:], indent - 2)
    comments = comments_of(body) if len(body) == 1 else []
    return with_comment(new_stage(stage, indent), *comments)


def comments_of(body: list[str]) -> list[str]:
    """What the comments in the lines of a stage say, from top to bottom."""
    meant, lines, found = load_yaml("transforms:\n" + "\n".join(body)), list(body), []
    for number, line in enumerate(body):
        for mark in _COMMENT.finditer(line):
            left = [*lines[:number], line[: mark.start()], *lines[number + 1 :]]
            with suppress(PipelineError):
                if _same(load_yaml("transforms:\n" + "\n".join(left)), meant):
                    found.append(line[mark.end() :].strip())
                    lines = left
                    break
    return found


def with_comment(lines: list[str], *comments: str) -> list[str]:
    """The lines of a stage with comments behind its first one."""
    return [f"{lines[0]}  # {'; '.join(comments)}", *lines[1:]] if any(comments) else lines


def edited_section(text: str, document: Any, pipeline: Pipeline, key: str) -> str:
    """The file's text with the section of a top-level key changed to what the pipeline says."""
    wanted = document_of(pipeline).get(key)
    lines = text.split("\n")
    if key not in document:
        return _added(lines, document, key, wanted) if wanted is not None else text
    start, end = section_span(text, document, key)
    if wanted is None:
        return "\n".join(lines[:start] + lines[end:])
    section = load_yaml("\n".join(lines[start:end]))
    if isinstance(section[key], dict) and isinstance(wanted, dict):
        merge(section[key], wanted)
    else:
        section[key] = styled(wanted, BLOCK_DEPTHS.get(key, 0))
    return "\n".join([*lines[:start], *dump_yaml(section).splitlines(), *lines[end:]])


def merge(node: Any, wanted: Mapping[str, Any]) -> None:
    """Make a loaded map equal to ``wanted``, leaving alone what already is."""
    for key in [key for key in node if key not in wanted]:
        del node[key]
    for key, value in wanted.items():
        if key not in node or not _same(node[key], value):
            node[key] = styled(value)


def _same(old: Any, new: Any) -> bool:
    """Whether two nodes mean the same value; 1, 1.0 and true do not."""
    return repr(decode(old)) == repr(decode(new))


def _added(lines: list[str], document: Any, key: str, wanted: Any) -> str:
    """The text with a section that was not there, behind those that come before it."""
    earlier = [known for known in TOP_LEVEL[: TOP_LEVEL.index(key)] if known in document]
    end = max((section_span("\n".join(lines), document, known)[1] for known in earlier), default=0)
    section = dump_yaml({key: styled(wanted, BLOCK_DEPTHS.get(key, 0))}).splitlines()
    after = lines[end:] or [""]
    return "\n".join([*lines[:end], *section, *after])


def _indented(lines: list[str], extra: int) -> list[str]:
    if extra < 0:
        return [line.removeprefix(" " * -extra) for line in lines]
    return [" " * extra + line if line.strip() else line for line in lines]
