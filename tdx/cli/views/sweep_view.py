"""The layout of a sweep: a line for each combination of settings, and how the costs grow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tdx.cli.output.view import Block, Cell, Heading, Paragraph, View
from tdx.cli.views.comparison import NOTHING
from tdx.cli.views.profile_columns import count, micros, number_table, sparkline
from tdx.profiling.result import ModeProfile
from tdx.profiling.saved import profile_to_json
from tdx.profiling.sweep import TOTAL_KEY, CostGrowth, SweepResult, fit_growth
from tdx.profiling.sweep import SweepCell as Setting
from tdx.profiling.sweep_axes import format_setting

_DISPENSABLE = ("noise", "µs/frame")


def sweep_view(subject: str, found: SweepResult) -> View:
    """Lay out a sweep.

    Args:
        subject: the pipeline.
        found: its cells.
    """
    grown = fit_growth(found)

    def blocks(width: int) -> list[Block]:
        axes = " ".join(f"{a.name}={','.join(map(format_setting, a.values))}" for a in found.axes)
        return [Heading(subject, f"{axes}  times in µs", level=1), *sweep_blocks(found, width)]

    data = {
        "subject": subject,
        "axes": [
            {"name": a.name, "values": [format_setting(v) for v in a.values]} for a in found.axes
        ],
        "interrupted": found.interrupted,
        "cells": [
            {
                "point": _point(cell),
                "problem": cell.problem,
                "profile": None if cell.profile is None else profile_to_json(cell.profile),
            }
            for cell in found.cells
        ],
        "growth": [_growth_data(each) for each in grown],
    }
    return View("profile-sweep", data, list(_records(found)), blocks)


def sweep_blocks(found: SweepResult, width: int) -> Iterator[Block]:
    """The cells, then how each cost grows along each axis of numbers."""
    yield _cells(found, width)
    for cell in found.cells:
        if cell.problem is not None:
            told = [Cell(f"{cell.label}: ", "name"), Cell(cell.problem, "bad")]
            yield Paragraph(told, indent=2)
    if found.interrupted:
        yield Paragraph([Cell("incomplete: ", "bad"), Cell("interrupted")], indent=2)
    for group in grouped(fit_growth(found)):
        yield from growth_blocks(group, width)


def _cells(found: SweepResult, width: int) -> Block:
    names = [axis.name for axis in found.axes]
    titles = (*names, "mode", "µs/step", "µs/frame", "frames/s", "noise")
    rows = [line for cell in found.cells for line in _lines(cell)]
    texts = ("mode", *(axis.name for axis in found.axes if not axis.is_numeric))
    return number_table(titles, rows, width, texts, _DISPENSABLE)


def _lines(cell: Setting) -> Iterator[list[Cell]]:
    point = [Cell(format_setting(value), "name") for value in cell.point.values()]
    modes = () if cell.profile is None else cell.profile.modes
    if not modes:
        yield [*point, *[Cell(NOTHING, "dim")] * 5]
    for mode in modes:
        yield [*point, *_figures(mode)]


def _figures(mode: ModeProfile) -> list[Cell]:
    rate = mode.frames_per_second
    return [
        Cell(mode.mode, "dim"),
        Cell(micros(mode.step_us)),
        Cell(micros(1e6 / rate if rate else None)),
        Cell(count(rate)),
        Cell(f"±{mode.noise.spread:.1%}", "dim"),
    ]


def grouped(found: Sequence[CostGrowth]) -> list[list[CostGrowth]]:
    """Those along the same axis, with the same other settings and mode, together."""
    groups: dict[tuple[str, ...], list[CostGrowth]] = {}
    for each in found:
        groups.setdefault((each.axis, named(each), each.mode), []).append(each)
    return list(groups.values())


def name_of(growth: CostGrowth) -> str:
    """The part whose cost it is."""
    key = (growth.label, growth.lane)
    return "whole step" if key == TOTAL_KEY else " ".join(key)


def named(growth: CostGrowth) -> str:
    """The settings that stay as they are."""
    return " ".join(f"{name}={format_setting(value)}" for name, value in growth.others.items())


def growth_blocks(group: Sequence[CostGrowth], width: int) -> Iterator[Block]:
    """What each part takes of a step at each value, and the slope that fits.

    Args:
        group: the parts, along the same axis.
        width: columns of the terminal.
    """
    first = next((each for each in group if (each.label, each.lane) == TOTAL_KEY), group[0])
    where = f", {named(first)}" if first.others else ""
    aside = f"µs of a step, {first.mode}{where}; slope: the cost grows as {first.axis} to that"
    yield Heading(f"along {first.axis}", aside)
    values = [f"{value:g}" for value in first.values]
    lines = []
    for each in sorted(group, key=lambda each: each is first):
        known = dict(zip(each.values, each.step_us, strict=True))
        costs = [known.get(value) for value in first.values]
        name = "whole step" if each is first else each.label
        lane = "" if each is first else each.lane
        slope = "" if each.slope is None else f"{each.slope:.2f}"
        plot = sparkline([cost or 0.0 for cost in costs])
        numbers = [Cell(micros(cost)) for cost in costs]
        cells = [Cell(name, "name"), Cell(lane, "dim"), *numbers, Cell(slope), Cell(plot, "added")]
        lines.append(cells)
    titles = ("part", "lane", *values, "slope", "growth")
    dispensable = ("growth", "lane", *values[1:-1])
    yield number_table(titles, lines, width, ("part", "lane", "growth"), dispensable)


def _point(cell: Setting) -> dict[str, Any]:
    plain = (bool, int, float, str)
    return {n: v if isinstance(v, plain) else format_setting(v) for n, v in cell.point.items()}


def _growth_data(growth: CostGrowth) -> dict[str, Any]:
    return {
        "axis": growth.axis,
        "others": {name: format_setting(value) for name, value in growth.others.items()},
        "mode": growth.mode,
        "label": growth.label,
        "lane": growth.lane,
        "values": list(growth.values),
        "step_us": list(growth.step_us),
        "slope": growth.slope,
    }


def _records(found: SweepResult) -> Iterator[dict[str, Any]]:
    """A record for each part in each mode of each cell; one for a cell without any."""
    for cell in found.cells:
        modes = () if cell.profile is None else cell.profile.modes
        base = {**_point(cell), "problem": cell.problem}
        if not modes:
            yield {**base, "mode": None, "label": None, "lane": None, "step_us": None}
        for mode in modes:
            yield {**base, "mode": mode.mode, "label": "step", "lane": "step", **_whole(mode)}
            for row in mode.rows:
                cost = round(mode.step_share_us(row), 4)
                yield {**base, "mode": mode.mode, "label": row.key[0], "lane": row.key[1]} | {
                    "step_us": cost
                }


def _whole(mode: ModeProfile) -> dict[str, float]:
    return {
        "step_us": round(mode.step_us, 4),
        "frames_per_second": round(mode.frames_per_second, 4),
        "noise": round(mode.noise.spread, 4),
    }
