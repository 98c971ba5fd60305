"""View of a written pipeline file, and of the stack that it was converted from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tdx.cli.views import Block, Cell, Heading, Style, Table, View, fact, stage_list
from tdx.cli.views.comparisons import difference_blocks
from tdx.foundation.serialization import Result
from tdx.foundation.text import count_text
from tdx.inspection.stack_import import StackImport
from tdx.pipeline import Pipeline, format_stage


@dataclass(frozen=True, slots=True)
class WrittenPipeline(Result):
    """A pipeline file.

    Args:
        path: The file.
        env: Id of the env.
        stages: The stages as ``-t`` takes them.
        conversion: What it was converted from.
    """

    path: str
    env: str
    stages: tuple[str, ...]
    conversion: StackImport | None


def written_view(path: str, pipeline: Pipeline, imported: StackImport | None) -> View:
    """Lay out a pipeline file."""
    calls = tuple(map(format_stage, pipeline.transforms))

    def blocks() -> Iterator[Block]:
        stages = count_text(len(calls), "stage")
        yield Heading(path, f"{pipeline.env.id}, {stages}", level=1)
        yield from stage_list(calls) if imported is None else conversion_blocks(imported)

    return View("init", WrittenPipeline(path, pipeline.env.id, calls, imported), blocks)


def conversion_blocks(imported: StackImport) -> Iterator[Block]:
    """Lay out the stages of a stack with their counterparts, and what was compared."""
    rows = []
    for stage in imported.stages:
        style: Style = "" if stage.missing is None else "bad"
        cells = Cell(str(stage.index), "dim"), Cell(stage.name, "name"), Cell(stage.outcome, style)
        rows.append([*cells])
    yield Table.of(("", "stage", "counterpart"), rows)
    for comparison in imported.comparisons:
        difference = comparison.difference
        yield fact(comparison.part, str(comparison) if difference is None else "differs", indent=0)
        if difference is not None:
            yield from difference_blocks(difference)
    if imported.missing_env is not None:
        yield fact("the env is a proposal", imported.missing_env.reason, indent=0)
    if imported.gap:
        yield fact("note", imported.gap, indent=0)
