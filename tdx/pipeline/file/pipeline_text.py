"""The text of a pipeline file: read it, write it, and change stages or sections of it in place.

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

from tdx.foundation.errors import PipelineError, TdxError
from tdx.pipeline.arguments import name_arguments
from tdx.pipeline.draft import Draft
from tdx.pipeline.file.yaml_codec import apply_style, decode, dump_yaml, load_yaml
from tdx.pipeline.file.yaml_format import (
    TOP_LEVEL_KEYS,
    build_document,
    build_stage_node,
    parse_document,
)
from tdx.pipeline.grammar import format_stage, parse_stage
from tdx.pipeline.model import DisabledStage, Pipeline
from tdx.pipeline.values import StageConfig

_BLOCK_DEPTHS = {"env": 1, "transforms": 2, "rollout": 1, "check": 1}


def read_pipeline(text: str, file: str) -> Pipeline:
    """Parse the text of a pipeline file; every error has its line.

    Args:
        text: YAML.
        file: Name of the file in error messages.

    Raises:
        PipelineError: The text is not YAML, or not a pipeline of this version.
    """
    try:
        document = load_yaml(text)
        pipeline = parse_document(document, file)
        starts = [stage.line or 0 for stage in pipeline.transforms]
        off = tuple(
            DisabledStage(sum(start <= line.number for start in starts), line.stage, line.comment)
            for line in _find_disabled_lines(text, document)
        )
        ignored = read_ignored_codes(text, starts)
        stages = (
            replace(stage, ignored=codes) if codes else stage
            for stage, codes in zip(pipeline.transforms, ignored, strict=True)
        )
        return replace(pipeline, transforms=tuple(stages), off=off)
    except TdxError as error:
        raise error.at(file=file) from error.__cause__


def write_pipeline(pipeline: Pipeline) -> str:
    """Return the YAML text of a pipeline; positional arguments get their names where known.

    Example:
        >>> from tdx.pipeline import Pipeline
        >>> print(write_pipeline(Pipeline.of("Pendulum-v1", "StepCounter(200)", "RewardSum")))
        version: 1
        env:
          id: Pendulum-v1
        transforms:
          - StepCounter: {max_steps: 200}
          - RewardSum
        <BLANKLINE>
    """
    document = build_document(pipeline)
    sections = {key: apply_style(node, _BLOCK_DEPTHS.get(key, 0)) for key, node in document.items()}
    return insert_disabled_stages(dump_yaml(sections), pipeline)


def insert_disabled_stages(text: str, pipeline: Pipeline) -> str:
    """Insert the disabled stages of a pipeline into a text with its enabled ones.

    The text is unchanged if these are not on lines of their own, so that no comment fits between.
    """
    lines = ChainLines.split(text) if pipeline.off else None
    if lines is None:
        return text
    enabled, off = iter(lines.stages), iter(pipeline.off)
    lines.arrange(
        [
            next(enabled)
            if stage.enabled
            else StageLines.disabled(stage.config, lines.indent, next(off).comment)
            for stage in Draft.of(pipeline).stages
        ]
    )
    return lines.text()


@dataclass(eq=False)
class StageLines:
    """Lines of one stage."""

    enabled: bool  # A disabled stage is a comment.
    lead: list[str]  # The comment directly above it.
    body: list[str]
    comment: str = ""  # Comment after a disabled stage.

    @classmethod
    def new(cls, stage: StageConfig, enabled: bool, indent: int) -> StageLines:
        """Create the lines of a stage with its dash in column ``indent``."""
        if not enabled:
            return cls.disabled(stage, indent)
        return cls(True, [], _format_stage_lines(stage, indent))

    @classmethod
    def disabled(cls, stage: StageConfig, indent: int, comment: str = "") -> StageLines:
        """Create the line of a disabled stage."""
        return cls(False, [], [" " * indent + format_disabled_stage(stage, comment)], comment)

    def change(self, stage: StageConfig, enabled: bool, indent: int) -> None:
        """Change the stage; unchanged arguments keep their formatting, and comments stay."""
        if not enabled:
            if self.enabled:
                self.comment = "; ".join(_extract_comments(self.body))
            self.body = StageLines.disabled(stage, indent, self.comment).body
        elif self.enabled:
            self.body = _edit_stage_lines(self.body, stage, indent)
        else:
            self.body = _append_comment(_format_stage_lines(stage, indent), self.comment)
        self.enabled = enabled


@dataclass
class ChainLines:
    """The text of a pipeline file, split at the stages, disabled ones included."""

    before: list[str]  # Lines above the first stage; transforms: is one of them.
    key: int  # Index of that line.
    stages: list[StageLines] = field(default_factory=list)
    # Lines between two stages that belong to neither, such as blank ones.
    gaps: list[list[str]] = field(default_factory=list)
    after: list[str] = field(default_factory=list)  # Lines below the last stage.
    indent: int = 2  # Column of the dashes.

    @classmethod
    def split(cls, text: str) -> ChainLines | None:
        """Split a text; ``None`` unless each stage starts on its own line."""
        document = load_yaml(text)
        lines = text.split("\n")
        node = document.get("transforms")
        if "transforms" not in document or document.fa.flow_style():
            return None
        indent, starts = 2, []
        if node:
            if not isinstance(node, list) or node.fa.flow_style():  # type: ignore[attr-defined]
                return None
            indent = node.lc.col  # type: ignore[attr-defined]
            for index in range(len(node)):
                start = _find_dash_line(lines, node.lc.item(index)[0], indent)  # type: ignore[attr-defined]
                if start is None or start in starts:
                    return None
                starts.append(start)
        key = document.lc.key("transforms")[0]
        chain = cls(lines[: key + 1], key, indent=indent)
        disabled = {line.number - 1: line for line in _find_disabled_lines(text, document)}
        spans = dict.fromkeys(disabled, 1)
        for start, limit in zip(starts, [*starts[1:], len(lines)], strict=False):
            end = start + 1
            while end < limit and (
                _is_blank_or_comment(lines[end]) or _indentation(lines[end]) > indent
            ):
                end += 1
            length = _trim_end(lines, start, end, indent) - start
            spans = {n: size for n, size in spans.items() if not start < n < start + length}
            spans[start] = length
        at = key + 1
        for start, length in sorted(spans.items()):
            lead = start
            while lead > at and lines[lead - 1].strip().startswith("#"):
                lead -= 1
            (chain.gaps[-1] if chain.stages else chain.before).extend(lines[at:lead])
            at = start + length
            body = [line for n, line in enumerate(lines[start:at], start) if n not in disabled]
            if body:
                chain.stages.append(StageLines(True, lines[lead:start], body))
            for n in range(start, at):
                if n in disabled:
                    above = [] if body else lines[lead:start]
                    own = StageLines(False, above, [lines[n]], disabled[n].comment)
                    chain.stages.append(own)
            chain.gaps += [[] for _ in range(len(chain.stages) - len(chain.gaps))]
        del chain.gaps[-1:]
        chain.after = lines[at:]
        return chain

    def text(self) -> str:
        """Join the lines to the text of the file."""
        has_enabled = any(stage.enabled for stage in self.stages)
        lines = list(self.before)
        lines[self.key] = _KEY_LINE.sub(r"\1" if has_enabled else r"\1 []", lines[self.key])
        for index, stage in enumerate(self.stages):
            lines += self.gaps[index - 1] if index else []
            lines += [*stage.lead, *stage.body]
        return "\n".join([*lines, *self.after])

    def arrange(self, stages: Sequence[StageLines]) -> None:
        """Set the stages. Each keeps its comments, and gaps keep their positions in the chain."""
        for place in reversed(range(len(self.stages))):
            if self.stages[place] not in stages:
                del self.stages[place]
                del self.gaps[max(place - 1, 0) : max(place, 1)]
        for place, stage in enumerate(stages):
            if stage in self.stages:
                self.stages.remove(stage)
            elif self.stages:
                self.gaps.insert(min(place, len(self.gaps)), [])
            self.stages.insert(place, stage)


_KEY_LINE = re.compile(r"^(transforms:)(?: *\[ *\])?")


def _find_dash_line(lines: list[str], line: int, indent: int) -> int | None:
    """Return the line with the dash of an item whose value starts at ``line``."""
    for number in range(line, -1, -1):
        if lines[number].startswith(" " * indent + "-"):
            return number
        if lines[number].strip() and not lines[number].strip().startswith("#") and number != line:
            return None
    return None


def _find_section(lines: list[str], document: Any, key: str) -> tuple[int, int]:
    """Return the lines, from 0, from a top-level key to the next one; the end is exclusive."""
    start: int = document.lc.key(key)[0]
    later = [document.lc.key(other)[0] for other in document]
    return start, min((line for line in later if line > start), default=len(lines))


def _trim_end(lines: list[str], start: int, limit: int, indent: int) -> int:
    """Return the end of the block at ``start``, without blank lines and outer comments."""
    end = limit
    while end > start + 1 and _is_blank_or_comment(lines[end - 1]):
        if lines[end - 1].strip() and _indentation(lines[end - 1]) > indent:
            break
        end -= 1
    return end


def _is_blank_or_comment(line: str) -> bool:
    stripped = line.strip()
    return not stripped or stripped.startswith("#")


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())


_DISABLED_LINE = re.compile(r"\s*# off: (\S.*?)\s*")
_MAX_LINE_LENGTH, _MAX_COMMENT_STARTS = 10_000, 20
_COMMENT_START = re.compile(r"\s+#\s*")


@dataclass(frozen=True, slots=True)
class _DisabledLine:
    """Line of a disabled stage."""

    number: int
    stage: StageConfig
    comment: str

    @classmethod
    def read(cls, line: str, number: int) -> _DisabledLine | None:
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


def _find_disabled_lines(text: str, document: Any) -> Iterator[_DisabledLine]:
    if "# off: " not in text or "transforms" not in document:
        return
    lines = text.split("\n")
    for number in range(*_find_section(lines, document, "transforms")):
        line = _DisabledLine.read(lines[number], number + 1)
        if line is not None:
            yield line


def format_disabled_stage(stage: StageConfig, comment: str = "") -> str:
    """Return a disabled stage as a comment."""
    written = f"# off: {format_stage(name_arguments(stage))}"
    return f"{written}  # {comment}" if comment else written


def remove_disabled_stages(text: str) -> str:
    """Remove the lines of disabled stages."""
    disabled = {line.number - 1 for line in _find_disabled_lines(text, load_yaml(text))}
    return "\n".join(line for n, line in enumerate(text.split("\n")) if n not in disabled)


_COMMENT = re.compile(r"(?:^|\s)\s*#")


def _format_stage_lines(stage: StageConfig, indent: int) -> list[str]:
    """Return the lines of a stage with its dash in column ``indent``."""
    node = {"transforms": apply_style([build_stage_node(stage)], _BLOCK_DEPTHS["transforms"])}
    return _indent_lines(dump_yaml(node).splitlines()[1:], indent - 2)


def _edit_stage_lines(body: list[str], stage: StageConfig, indent: int) -> list[str]:
    """Change the lines of a stage to another stage; unchanged arguments keep their formatting."""
    old = load_yaml("transforms:\n" + "\n".join(body))
    item, node = old["transforms"][0], build_stage_node(stage)
    if isinstance(item, Mapping) and isinstance(node, dict) and list(item) == list(node):
        (name,) = node
        if isinstance(item[name], dict) and isinstance(node[name], dict):
            _merge_map(item[name], node[name])
            return _indent_lines(dump_yaml(old).splitlines()[1:], indent - 2)
    comments = _extract_comments(body) if len(body) == 1 else []
    return _append_comment(_format_stage_lines(stage, indent), "; ".join(comments))


def _extract_comments(body: list[str]) -> list[str]:
    """Return the comments in the lines of a stage, from top to bottom."""
    expected, lines, comments = load_yaml("transforms:\n" + "\n".join(body)), list(body), []
    for number, line in enumerate(body):
        for mark in _COMMENT.finditer(line):
            # A # is a comment if the value is the same without the rest of the line.
            left = [*lines[:number], line[: mark.start()], *lines[number + 1 :]]
            with suppress(PipelineError):
                if _is_same_value(load_yaml("transforms:\n" + "\n".join(left)), expected):
                    comments.append(line[mark.end() :].strip())
                    lines = left
                    break
    return comments


def _append_comment(lines: list[str], comment: str) -> list[str]:
    return [f"{lines[0]}  # {comment}", *lines[1:]] if comment else lines


def edit_section(text: str, pipeline: Pipeline, key: str) -> str:
    """Change the section of a top-level key to match the pipeline."""
    document = load_yaml(text)
    wanted = build_document(pipeline).get(key)
    lines = text.split("\n")
    if key not in document:
        if wanted is None:
            return text
        earlier = TOP_LEVEL_KEYS[: TOP_LEVEL_KEYS.index(key)]
        known = [_find_section(lines, document, other) for other in earlier if other in document]
        end = max((_trim_end(lines, *span, 0) for span in known), default=0)
        section = dump_yaml({key: apply_style(wanted, _BLOCK_DEPTHS.get(key, 0))}).splitlines()
        return "\n".join([*lines[:end], *section, *(lines[end:] or [""])])
    start, limit = _find_section(lines, document, key)
    end = _trim_end(lines, start, limit, 0)
    if wanted is None:
        return "\n".join(lines[:start] + lines[end:])
    section = load_yaml("\n".join(lines[start:end]))
    if isinstance(section[key], dict) and isinstance(wanted, dict):
        _merge_map(section[key], wanted)
    else:
        section[key] = apply_style(wanted, _BLOCK_DEPTHS.get(key, 0))
    return "\n".join([*lines[:start], *dump_yaml(section).splitlines(), *lines[end:]])


def _merge_map(node: Any, wanted: Mapping[str, Any]) -> None:
    """Make a loaded mapping equal to ``wanted``; equal entries keep their formatting."""
    for key in [key for key in node if key not in wanted]:
        del node[key]
    for key, value in wanted.items():
        if key not in node or not _is_same_value(node[key], value):
            node[key] = apply_style(value)


def _is_same_value(old: Any, new: Any) -> bool:
    """True if two nodes have the same value; 1, 1.0 and true differ."""
    return repr(decode(old)) == repr(decode(new))


def _indent_lines(lines: list[str], extra: int) -> list[str]:
    if extra < 0:
        return [line.removeprefix(" " * -extra) for line in lines]
    return [" " * extra + line if line.strip() else line for line in lines]


_IGNORE = re.compile(r"(?:^|\s)#\s*tdx:\s*ignore(?:\[([\w,\s]*)\])?(?![\w\[])")
ALL_CODES = "TDX"
"""Prefix of every code."""


def read_ignored_codes(text: str, starts: Sequence[int]) -> list[tuple[str, ...]]:
    """Return the codes that comments switch off for each stage.

    Example:
        >>> read_ignored_codes("- RewardSum  # tdx: ignore[TDX422, TDX49]", [1])
        [('TDX422', 'TDX49')]
    """
    lines = text.split("\n")
    ends = [*(start - 1 for start in starts[1:]), len(lines)]
    ignored = []
    for start, end in zip(starts, ends, strict=False):
        codes: list[str] = []
        # A comment of its own line belongs to the next stage, if there is one.
        for line in lines[start - 1 : end]:
            if line[:1].isalpha():
                break
            if (match := _IGNORE.search(line)) and not line.lstrip().startswith("#"):
                codes += (match[1] or ALL_CODES).upper().replace(",", " ").split()
        ignored.append(tuple(codes))
    return ignored
