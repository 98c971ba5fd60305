"""A pipeline file with comments that say what the env gives and what each stage is for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tdx.inspection.leaf import INPUT_PARTS, LeafSpec
from tdx.inspection.spec_text import SpecText
from tdx.keys import format_key
from tdx.pipeline import Pipeline, write_pipeline
from tdx.text import escape_control_characters

_STAGE = "  - "


def commented(pipeline: Pipeline, leaves: Sequence[LeafSpec], reasons: Sequence[str]) -> str:
    """The YAML text of a pipeline with comments.

    Args:
        pipeline: the pipeline.
        leaves: the specs of its env without the chain.
        reasons: what each stage is for.
    """
    head = map(escape_control_characters, _head(pipeline, leaves))
    lines: list[str] = [f"# {line}".rstrip() for line in head]
    remaining = iter(reasons)
    in_stages = False
    for line in write_pipeline(pipeline).splitlines():
        in_stages = line.startswith("transforms:") or (in_stages and line.startswith(" "))
        reason = next(remaining, "") if in_stages and line.startswith(_STAGE) else ""
        if reason:
            lines.append(f"  # {reason}")
        lines.append(line)
    return "".join(f"{line}\n" for line in lines)


def _head(pipeline: Pipeline, leaves: Sequence[LeafSpec]) -> Iterator[str]:
    yield f"A pipeline for {pipeline.env.id}: the env, and the stages that its data go through."
    yield "`tdx inspect chain --pipeline FILE` shows what each stage does, and"
    yield "`tdx list transforms` what else there is."
    yield ""
    text = SpecText(leaves, whole=False)
    width = max((len(format_key(leaf.key)) for leaf in leaves), default=0)
    for title, given in (("The env gives", False), ("It takes", True)):
        yield f"{title}:"
        for leaf in leaves:
            if (leaf.part in INPUT_PARTS) == given:
                yield f"  {format_key(leaf.key).ljust(width)}  {text(leaf)}"


def stage_reasons(pipeline: Pipeline) -> list[str]:
    """What each stage of a pipeline does, in the words of its docstring."""
    from tdx.pipeline import load_catalog
    from tdx.pipeline.docstrings import strip_markup

    infos = (load_catalog().find(stage.name) for stage in pipeline.transforms)
    return [strip_markup(info.summary) if info else "" for info in infos]
