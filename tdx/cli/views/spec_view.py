"""The layout of a spec report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tdx.cli.output.terminal import table_width
from tdx.cli.output.view import Block, Cell, Column, Heading, Paragraph, Table, View
from tdx.cli.views.comparison import (
    MARKS,
    NOTHING,
    STYLES,
    comparison,
    spec_columns,
    spec_list,
)
from tdx.inspection.leaf import LeafSpec, SpecText, shape_text
from tdx.inspection.spec_report import KeyChange, SpecReport
from tdx.keys import format_key


def spec_view(
    report: SpecReport, calls: Sequence[str], *, stages: bool = False, key: str | None = None
) -> View:
    """Lay out a spec report.

    Args:
        report: what to show.
        calls: each stage as the user would write it.
        stages: show the specs after every stage.
        key: follow this one key through the chain.

    Raises:
        KeyNotFoundError: there is no such key at any stage.
    """
    shown = report if key is None else report.only(key)
    each = stages or key is not None
    data = shown.to_dict(each=each)
    for stage, call in zip(data["stages"], calls, strict=True):
        stage["call"] = call

    def blocks(width: int) -> list[Block]:
        if key is not None:
            return [*_head(shown, calls), *_one_key(shown, width)]
        if stages:
            return [*_head(shown, calls), *_each_stage(shown, calls, width)]
        return [*_head(shown, calls), _whole_chain(shown, width)]

    return View("spec", data, list(_records(shown, calls, each=each)), blocks)


def _head(report: SpecReport, calls: Sequence[str]) -> list[Block]:
    before, after = report.before, report.after
    batch = _arrow(shape_text(before.batch_size), shape_text(after.batch_size))
    facts = f"batch {batch}  device {_arrow(before.device, after.device)}"
    chain = [
        Paragraph([Cell(f"{index} ", "dim"), Cell(call)], indent=2)
        for index, call in enumerate(calls)
    ]
    return [Heading(report.env, facts, level=1), *chain]


def _arrow(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"


def _whole_chain(report: SpecReport, width: int) -> Table:
    if not report.stages:
        return spec_list([change.after for change in report.changes if change.after], width)
    return comparison(report.changes, width, [stage.name for stage in report.stages])


def _each_stage(report: SpecReport, calls: Sequence[str], width: int) -> list[Block]:
    blocks: list[Block] = [Heading("env"), spec_list(_env_leaves(report), width)]
    for stage, call in zip(report.stages, calls, strict=True):
        blocks.append(Heading(f"after stage {stage.index}", call))
        blocks.append(comparison(stage.changes, width, sides=("before", "after")))
    return blocks


def _env_leaves(report: SpecReport) -> list[LeafSpec]:
    changes = report.stages[0].changes if report.stages else report.changes
    return [change.before for change in changes if change.before]


def _one_key(report: SpecReport, width: int) -> list[Block]:
    """The key through the chain, one table for each part that it belongs to."""
    changes = [*report.changes, *(change for stage in report.stages for change in stage.changes)]
    blocks: list[Block] = []
    for part in dict.fromkeys(change.part for change in changes):
        steps = [change for change in changes if change.part == part]
        sides = [side for change in steps for side in (change.before, change.after) if side]
        blocks.append(Heading(format_key(steps[0].key), part))
        table = _key_table(report, part, SpecText(sides))
        if table_width(table) > width:
            table = _key_table(report, part, SpecText(sides, whole=False))
        blocks.append(table)
    return blocks


def _key_table(report: SpecReport, part: str, text: SpecText) -> Table:
    return Table([Column(), Column("stage"), Column("spec")], list(_key_rows(report, part, text)))


def _key_rows(report: SpecReport, part: str, text: SpecText) -> Iterator[list[Cell]]:
    first = next((leaf for leaf in _env_leaves(report) if leaf.part == part), None)
    yield [Cell(""), Cell("env"), Cell(text(first) if first else NOTHING)]
    for stage in report.stages:
        change = next((one for one in stage.changes if one.part == part), None)
        after = change.after if change else None
        style = STYLES[change.change] if change else ""
        mark = MARKS[change.change] if change else " "
        spec = Cell(text(after), style) if after else Cell(NOTHING, "dim")
        yield [Cell(mark, style), Cell(f"{stage.index} {stage.name}", style), spec]


def _records(report: SpecReport, calls: Sequence[str], *, each: bool) -> Iterator[dict[str, Any]]:
    """A row for each key of the whole chain, then of each stage if that is asked for."""
    for change in report.changes:
        yield _record(change, {"stage": None, "transform": None, "call": None})
    if each:
        for stage, call in zip(report.stages, calls, strict=True):
            place = {"stage": stage.index, "transform": stage.name, "call": call}
            for change in stage.changes:
                yield _record(change, place)


def _record(change: KeyChange, place: dict[str, Any]) -> dict[str, Any]:
    row = change.to_dict()
    before, after = row.pop("before"), row.pop("after")
    return {**place, **row, **spec_columns("before", before), **spec_columns("after", after)}
