"""State that the stages of a stack keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tdx.cli.views import (
    Block,
    Cell,
    Column,
    Heading,
    Paragraph,
    Table,
    View,
    count_text,
    stage_list,
)
from tdx.inspection.leaf import shape_text
from tdx.inspection.state_report import StateEntry, StateReport

if TYPE_CHECKING:
    from torch import Tensor

_COLUMNS = ("stage", "name", "shape", "dtype", "min", "mean", "max")


def state_view(report: StateReport, calls: Sequence[str]) -> View:
    """Lay out the state of each stage.

    Args:
        report: Report to show.
        calls: Each stage as a call.
    """
    data = report.to_dict()
    data["calls"] = list(calls)

    def blocks(width: int) -> list[Block]:
        facts = f"after {count_text(report.steps, 'random step')}"
        result: list[Block] = [Heading(report.env, facts, level=1), *stage_list(calls)]
        if not report.entries:
            return [*result, Paragraph([Cell("no stage keeps a state")])]
        titles = (*_COLUMNS, *(("changed",) if report.steps else ()))
        rows = [_row(each, marked=bool(report.steps)) for each in report.entries]
        return [*result, Table([Column(title) for title in titles], rows)]

    return View("state", data, [each.to_dict() for each in report.entries], blocks)


def _row(entry: StateEntry, *, marked: bool) -> list[Cell]:
    cells = [f"{entry.stage} {entry.transform}", entry.name, shape_text(entry.shape), entry.dtype]
    cells += _numbers(entry.value)
    if marked:
        cells.append("yes" if entry.changed else "no")
    return [Cell(text) for text in cells]


def _numbers(value: Tensor) -> list[str]:
    if not value.numel():
        return ["", "", ""]
    wide = value.double()
    return [f"{float(each):.4g}" for each in (wide.min(), wide.mean(), wide.max())]
