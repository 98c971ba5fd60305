"""``tdx init --from``: the pipeline file for a stack of another library, and what was compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING

from tdx.cli.options import PipelineOptions
from tdx.cli.runtime import third_party_code
from tdx.errors import ArgumentError
from tdx.text import escape_control_characters

if TYPE_CHECKING:
    from tdx.inspection.stack_import import StackImport
    from tdx.stacks.conversion import ConvertedStage

_SHARED = ("env_kwargs", "seed", "allow_code")
"""Options of a pipeline that ``--from`` uses as well."""


def import_from(source: str, options: PipelineOptions) -> StackImport:
    """Convert the stack that a factory returns.

    Args:
        source: ``module:function`` or ``file.py:function``.
        options: Arguments of the factory, the seed, and the permission to import it.

    Raises:
        ArgumentError: ``--from`` is combined with options of another pipeline.
        TdxError: The factory cannot be used, or no stage has a counterpart.
    """
    from tdx.cli.pipelines import parse_env_kwargs
    from tdx.inspection.stack_import import import_stack, make_env_config
    from tdx.stacks.targets import open_target

    for field in fields(options):
        if field.name not in _SHARED and getattr(options, field.name):
            name = "--t" if field.name == "transforms" else f"--{field.name.replace('_', '-')}"
            raise ArgumentError(
                f"--from and {name} cannot be combined",
                hint="the stack defines the env and its stages: edit the written file",
            )
    config = make_env_config(source, parse_env_kwargs(options.env_kwargs))
    with third_party_code():
        return import_stack(lambda: open_target(config, options.allow_code), seed=options.seed or 0)


def file_notes(found: StackImport, source: str) -> list[str]:
    """Return the lines at the head of the file: where it comes from, and what was compared."""
    lines = [f"Converted from {source}."]
    lines += [f"{_sentence(each.part)}: {each}." for each in found.comparisons]
    if found.gap:
        lines.append(f"{_sentence(found.gap)}.")
    lines += _env_lines(found)
    lines += [
        f"{stage.index} {stage.call}: {_describe(stage)}"
        for stage in found.stages
        if not stage.is_missing and not stage.stages
    ]
    return [*lines, ""]


def _env_lines(found: StackImport) -> list[str]:
    missing = found.missing_env
    if missing is None:
        return []
    return [
        f"The env {found.pipeline.env.id} is a proposal, which was not compared:",
        f"  reason: {missing.reason}",
        f"  to do: {missing.advice}",
    ]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def stage_comments(found: StackImport) -> list[str]:
    """Return a comment on each stage of the pipeline, and one for what follows the last."""
    comments: list[str] = []
    pending: list[str] = []
    for stage in found.stages:
        if stage.is_missing:
            pending += _missing_lines(stage)
        elif stage.stages:
            own = escape_control_characters(f"{stage.index} {stage.call}: {_describe(stage)}")
            comments += ["\n".join([*pending, own]), *[""] * (len(stage.stages) - 1)]
            pending = []
    return [*comments, "\n".join(pending)]


def _missing_lines(stage: ConvertedStage) -> Iterator[str]:
    from tdx.pipeline.file.stage_lines import format_disabled_stage
    from tdx.stacks.conversion import Missing

    assert isinstance(stage.result, Missing)
    for line in (
        f"{stage.index} {stage.call}: not converted",
        f"  reason: {stage.result.reason}",
        f"  to do: {stage.result.advice}",
    ):
        yield escape_control_characters(line)
    if stage.result.suggestion is not None:
        # A disabled stage, which the app can enable.
        yield format_disabled_stage(stage.result.suggestion, 0).removeprefix("# ")


def _describe(stage: ConvertedStage) -> str:
    return str(getattr(stage.result, "comment", ""))


def summary_lines(found: StackImport) -> Iterator[str]:
    """Return the lines for the terminal: each stage and its counterpart, and the comparisons."""
    from tdx.pipeline import format_stage

    width = max((len(stage.name) for stage in found.stages), default=0)
    for stage in found.stages:
        text = ", ".join(map(format_stage, stage.stages)) or _describe(stage)
        if stage.is_missing:
            text = f"not converted: {getattr(stage.result, 'reason', '')}"
        yield escape_control_characters(f"{stage.index:>2} {stage.name.ljust(width)}  {text}")
    yield from (f"{each.part}: {each}" for each in found.comparisons)
    if found.gap:
        yield found.gap
    yield from map(escape_control_characters, _env_lines(found))
