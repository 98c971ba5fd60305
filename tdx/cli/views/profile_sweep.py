"""Sweeps: the cost of each combination of settings; and the estimate of ``--dry-run``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tdx.cli.charts import growth_plot
from tdx.cli.views import (
    NONE,
    Block,
    Cell,
    Gallery,
    Heading,
    Picture,
    View,
    duration_text,
    fact,
    micros,
    sparkline,
)
from tdx.cli.views.profile_table import number_table, whole_number
from tdx.foundation.serialization import Entries, Entry, Result
from tdx.profiling.compare import TOTAL_KEY
from tdx.profiling.result import ModeProfile
from tdx.profiling.run import Estimate, ProfilePlan
from tdx.profiling.sweep import CostGrowth, SweepResult, fit_growth, format_setting
from tdx.profiling.sweep import SweepCell as Setting

_PLOT_TEXT = (
    "Both axes are logarithmic: a slope of 0 is a constant cost, a slope of 1 a proportional one."
)


@dataclass(frozen=True, slots=True)
class SweepDocument(Result):
    """A sweep.

    Args:
        subject: The pipeline as a ``tdx`` command line.
    """

    json_entries: ClassVar[Entries] = (
        "subject",
        *(Entry(name, f"sweep.{name}") for name in ("axes", "interrupted", "cells")),
        Entry("growth", "sweep", fit_growth),
    )

    subject: str
    sweep: SweepResult


def sweep_view(subject: str, sweep: SweepResult) -> View:
    """Lay out a sweep."""

    def blocks() -> list[Block]:
        axes = " ".join(f"{a.name}={','.join(map(format_setting, a.values))}" for a in sweep.axes)
        names = [axis.name for axis in sweep.axes]
        titles = (*names, "mode", "µs/step", "µs/frame", "frames/s", "noise")
        rows = [line for cell in sweep.cells for line in _lines(cell)]
        words = ("mode", *(axis.name for axis in sweep.axes if not axis.is_numeric))
        shown: list[Block] = [
            Heading(subject, f"{axes}  times in µs", level=1),
            number_table(titles, rows, words, ("noise", "µs/frame")),
        ]
        shown += [
            fact(cell.label, cell.problem, "bad", title_style="name")
            for cell in sweep.cells
            if cell.problem is not None
        ]
        if sweep.interrupted:
            shown.append(fact("incomplete", "interrupted", title_style="bad"))
        # By axis, other settings and mode.
        groups: dict[tuple[str, ...], list[CostGrowth]] = {}
        for part in fit_growth(sweep):
            groups.setdefault((part.axis, other_settings(part), part.mode), []).append(part)
        for group in groups.values():
            shown += growth_blocks(group)
        return shown

    return View("profile_sweep", SweepDocument(subject, sweep), blocks, lambda: _records(sweep))


def _lines(cell: Setting) -> Iterator[list[Cell]]:
    point = [Cell(format_setting(value), "name") for value in cell.point.values()]
    modes = () if cell.profile is None else cell.profile.modes
    if not modes:
        yield [*point, *[Cell(NONE, "dim")] * 5]
    for mode in modes:
        rate = mode.frames_per_second
        yield [
            *point,
            Cell(mode.mode, "dim"),
            Cell(micros(mode.step_us)),
            Cell(micros(1e6 / rate if rate else None)),
            Cell(whole_number(rate)),
            Cell(f"±{mode.noise.spread:.1%}", "dim"),
        ]


def other_settings(growth: CostGrowth) -> str:
    """Return the settings that are constant along the axis."""
    return " ".join(f"{name}={format_setting(value)}" for name, value in growth.others.items())


def growth_blocks(group: Sequence[CostGrowth]) -> Iterator[Block]:
    """Yield the time per step of each part at each value, and the fitted slope."""
    first = next((part for part in group if (part.label, part.lane) == TOTAL_KEY), group[0])
    settings = f", {other_settings(first)}" if first.others else ""
    aside = f"µs per step, {first.mode}{settings}; cost grows as {first.axis} ** slope"
    yield Heading(f"along {first.axis}", aside)
    values = [f"{value:g}" for value in first.values]
    lines = []
    for part in sorted(group, key=lambda part: part is first):
        step_us = dict(zip(part.values, part.step_us, strict=True))
        costs = [step_us.get(value) for value in first.values]
        name = "whole step" if part is first else part.label
        lane = "" if part is first else part.lane
        slope = "" if part.slope is None else f"{part.slope:.2f}"
        plot = sparkline([cost or 0.0 for cost in costs])
        numbers = [Cell(micros(cost)) for cost in costs]
        cells = [Cell(name, "name"), Cell(lane, "dim"), *numbers, Cell(slope), Cell(plot, "added")]
        lines.append(cells)
    titles = ("part", "lane", *values, "slope", "growth")
    optional = ("growth", "lane", *values[1:-1])
    yield number_table(titles, lines, ("part", "lane", "growth"), optional)

    def draw() -> str:
        values = sorted({value for growth in group for value in growth.values})
        drawn = []
        for growth in sorted(group, key=lambda growth: -max(growth.step_us)):
            key = (growth.label, growth.lane)
            costs = dict(zip(growth.values, growth.step_us, strict=True))
            name = "whole step" if key == TOTAL_KEY else " ".join(key)
            drawn.append((name, [costs.get(value) for value in values]))
        return growth_plot(first.axis, values, drawn)

    yield Gallery([Picture(draw)], text=_PLOT_TEXT)


def _records(sweep: SweepResult) -> Iterator[dict[str, object]]:
    """Yield a record for each part in each mode of each cell; one for a cell without modes."""
    for cell in sweep.cells:
        modes = () if cell.profile is None else cell.profile.modes
        base = {**cell.plain_point, "problem": cell.problem}
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


_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class EstimateDocument(Result):
    """Estimated time of a measurement.

    Args:
        subject: The pipeline as a ``tdx`` command line.
        seconds: Duration of all modes.
        modes: Duration of each mode.
    """

    subject: str
    seconds: float
    modes: tuple[Estimate, ...]


def estimate_view(plan: ProfilePlan, estimates: Sequence[Estimate]) -> View:
    """Lay out the estimated time of each mode and the size of its samples."""
    seconds = sum(estimate.seconds for estimate in estimates)

    def blocks() -> list[Block]:
        titles = ("mode", "steps", "µs/step", "about", "samples")
        rows = [
            [
                Cell(estimate.mode, "name"),
                Cell(f"{estimate.steps:,}"),
                Cell(micros(estimate.step_us)),
                Cell(duration_text(estimate.seconds)),
                Cell(f"{estimate.saved_bytes / _MIB:,.1f} MiB"),
            ]
            for estimate in estimates
        ]
        about = f"about {duration_text(seconds)}; nothing is measured"
        table = number_table(titles, rows, ("mode",), ("steps", "samples"))
        return [Heading(plan.subject, about, level=1), table]

    result = EstimateDocument(plan.subject, seconds, tuple(estimates))
    return View("profile_estimate", result, blocks, lambda: estimates)
