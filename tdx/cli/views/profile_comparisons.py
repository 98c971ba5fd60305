"""Comparisons of profiles: with a baseline, without each stage, and with suggested changes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from tdx.cli.views import NONE, Block, Cell, Heading, Paragraph, Style, Table, View, count_text
from tdx.cli.views.profile_table import micros, number_table
from tdx.pipeline import format_stage
from tdx.profiling.calibration import FIGURE, Calibration, DetectableChange
from tdx.profiling.compare import (
    TOTAL_LABEL,
    FigureChange,
    Limit,
    LimitViolation,
    ProfileComparison,
)
from tdx.profiling.interleaved import MarginalCost, MarginalCosts
from tdx.profiling.result import Mode
from tdx.profiling.suggestions import Suggestions, TriedChange

_SLIGHT = 0.005
_OPTIONAL_CHANGE_COLUMNS = ("noise", "before", "lane")


def comparison_view(
    comparison: ProfileComparison, limits: Sequence[Limit], before: str, after: str
) -> View:
    """Lay out which parts are slower or faster.

    Args:
        comparison: Comparison to show.
        limits: Limits of the comparison.
        before: Name of the first profile.
        after: Name of the second profile.
    """

    def blocks(width: int) -> list[Block]:
        head = Heading(f"{before} → {after}", verdict(comparison, limits), level=1)
        return [head, *comparison_blocks(comparison, limits, width)]

    def data() -> dict[str, Any]:
        return comparison_data(comparison)

    return View("profile_comparison", data, lambda: _change_records(comparison), blocks)


def verdict(comparison: ProfileComparison, limits: Sequence[Limit]) -> str:
    """Return the result in a few words."""
    if comparison.failures:
        return f"too slow: {', '.join(_part_name(label) for label in comparison.failing)}"
    return "within the limits" if limits else "no limits given"


def comparison_blocks(
    comparison: ProfileComparison, limits: Sequence[Limit], width: int
) -> Iterator[Block]:
    """Yield the differences without a heading."""
    for failure in comparison.failures:
        yield Paragraph([Cell("too slow: ", "bad"), Cell(failure.message)], indent=2)
    for difference in comparison.differences:
        yield Paragraph([Cell("different: ", "changed"), Cell(difference)], indent=2)
    figures = {limit.figure for limit in limits} or {"mean"}
    changes = [
        change
        for change in comparison.changes
        if change.figure in figures or change.label == TOTAL_LABEL
    ]
    yield _change_table(changes, comparison.failures, width)
    for title, keys in (("gone", comparison.removed), ("new", comparison.new)):
        if keys:
            names = ", ".join(f"{label} {lane}" for label, lane in keys)
            yield Paragraph([Cell(f"{title}: ", "dim"), Cell(names)], indent=2)


def _change_table(
    changes: Sequence[FigureChange], failures: Sequence[LimitViolation], width: int
) -> Table:
    failed: set[tuple[str, str, str]] = {
        (each.change.mode, each.change.label, each.change.lane) for each in failures
    }
    has_modes = len({change.mode for change in changes}) > 1
    rows = [_change_row(change, failed, has_modes) for change in changes]
    titles = ("part", "lane", "figure", "before", "after", "change", "noise", "")
    return number_table(
        titles, rows, width, ("part", "lane", "figure", ""), _OPTIONAL_CHANGE_COLUMNS
    )


def _change_row(
    change: FigureChange, failed: set[tuple[str, str, str]], has_modes: bool
) -> list[Cell]:
    name = _part_name(change.label)
    style, verdict = _judge(change, (change.mode, change.label, change.lane) in failed)
    return [
        Cell(f"{change.mode}: {name}" if has_modes else name, "name"),
        Cell("" if change.label == TOTAL_LABEL else change.lane, "dim"),
        Cell(_figure_text(change.label, change.figure), "dim"),
        Cell(micros(change.before_us)),
        Cell(micros(change.after_us)),
        Cell(_percent(change.ratio - 1), style),
        Cell(f"±{change.noise:.0%}", "dim"),
        Cell(verdict, style),
    ]


def _figure_text(label: str, figure: str) -> str:
    """Return a figure with its unit: rows are measured by call, the whole by step."""
    return f"{figure}/step" if label == TOTAL_LABEL else f"{figure}/call"


def _part_name(label: str) -> str:
    return "whole step" if label == TOTAL_LABEL else label


def _judge(change: FigureChange, failed: bool) -> tuple[Style, str]:
    if failed:
        return "bad", "too slow"
    if not change.is_significant or abs(change.ratio - 1) < _SLIGHT:
        return "dim", "the same"
    return ("changed", "slower") if change.ratio > 1 else ("good", "faster")


def _percent(share: float) -> str:
    return "new" if math.isinf(share) else f"{share:+.0%}"


def comparison_data(comparison: ProfileComparison) -> dict[str, Any]:
    """Return the differences as plain data."""
    return {
        "failed": bool(comparison.failures),
        "failures": [
            {"limit": each.limit.text, "message": each.message, **_change_data(each.change)}
            for each in comparison.failures
        ],
        "differences": list(comparison.differences),
        "gone": [{"label": label, "lane": lane} for label, lane in comparison.removed],
        "new": [{"label": label, "lane": lane} for label, lane in comparison.new],
        "changes": [_change_data(change) for change in comparison.changes],
    }


def _change_data(change: FigureChange) -> dict[str, Any]:
    return {
        "mode": change.mode,
        "label": change.label,
        "lane": change.lane,
        "figure": change.figure,
        "before_us": round(change.before_us, 4),
        "after_us": round(change.after_us, 4),
        "ratio": None if math.isinf(change.ratio) else round(change.ratio, 4),
        "noise": round(change.noise, 4),
        "significant": bool(change.is_significant),
    }


def _change_records(comparison: ProfileComparison) -> Iterator[dict[str, Any]]:
    limits = {id(failure.change): failure.limit.text for failure in comparison.failures}
    for change in comparison.changes:
        yield {**_change_data(change), "limit": limits.get(id(change))}


def calibration_view(calibration: Calibration) -> View:
    """Lay out the smallest changes that profiles can show.

    Args:
        calibration: Calibration to show.
    """

    def row(change: DetectableChange) -> list[Cell]:
        is_total = change.label == TOTAL_LABEL
        name = _part_name(change.label)
        return [
            Cell(f"{change.mode}: {name}" if has_modes else name, "name"),
            Cell("" if is_total else change.lane, "dim"),
            Cell(_figure_text(change.label, "mean" if is_total else FIGURE), "dim"),
            Cell(micros(change.time_us)),
            Cell(f"{change.share:.1%}", "dim"),
            Cell(f"+{change.growth:.0%}" if math.isfinite(change.growth) else NONE),
        ]

    def blocks(width: int) -> list[Block]:
        runs = f"{calibration.runs} runs of {count_text(calibration.repeats, 'repeat')}"
        titles = ("part", "lane", "figure", "µs", "share", "smallest change")
        rows = [row(change) for change in calibration.changes]
        total = [each for each in calibration.changes if each.label == TOTAL_LABEL]
        steps = ", ".join(f"{each.growth:.1%}" for each in total)
        limit = Cell(f"--fail-if {calibration.limit}", "name")
        return [
            Heading(calibration.subject, runs, level=1),
            number_table(titles, rows, width, ("part", "lane", "figure"), ("figure", "lane")),
            Paragraph([Cell("whole step: ", "dim"), Cell(f"changes from {steps}")], indent=2),
            Paragraph([Cell("suggested limit: ", "dim"), limit], indent=2),
        ]

    def data() -> dict[str, Any]:
        return {**calibration.to_dict(), "limit": calibration.limit}

    def records() -> Iterator[dict[str, Any]]:
        return (change.to_dict() for change in calibration.changes)

    has_modes = len({change.mode for change in calibration.changes}) > 1
    return View("profile_calibration", data, records, blocks)


_MARGINAL_TITLES = ("stage", "own time", "saved without it", "noise", "effect on others", "share")
_OPTIONAL_MARGINAL_COLUMNS = ("share", "noise", "effect on others")


def marginal_blocks(marginal: MarginalCosts, width: int) -> Iterator[Block]:
    """Yield the time per step that is saved without each stage.

    Args:
        marginal: Measurement of one mode.
        width: Maximum columns.
    """
    yield Heading(f"marginal cost, {marginal.mode}", "µs per step, with and without each stage")
    if marginal.error is not None:
        yield Paragraph([Cell("incomplete: ", "bad"), Cell(marginal.error)], indent=2)
    rows = [_marginal_row(stage) for stage in marginal.stages]
    yield number_table(_MARGINAL_TITLES, rows, width, ("stage",), _OPTIONAL_MARGINAL_COLUMNS)
    for stage in marginal.stages:
        if stage.needed is not None:
            reason = f": the chain does not run without it: {stage.needed}"
            yield Paragraph([Cell(_stage_name(stage), "name"), Cell(reason, "dim")], indent=2)


def _stage_name(stage: MarginalCost) -> str:
    return f"{stage.index} {stage.name}"


def _marginal_row(stage: MarginalCost) -> list[Cell]:
    name, own = Cell(_stage_name(stage), "name"), Cell(micros(stage.own_us))
    cost, others = stage.cost, stage.for_neighbors_us
    if cost is None or others is None:
        return [name, own, Cell("needed" if stage.needed else NONE, "dim"), *[Cell("")] * 3]
    style: Style = "" if cost.is_significant else "dim"
    return [
        name,
        own,
        Cell(_format_signed(cost.saved_us), style),
        Cell("±" + (micros(cost.noise_us) if math.isfinite(cost.noise_us) else "?"), "dim"),
        Cell(_format_signed(others), style),
        Cell(f"{cost.saved_share:.1%}", style),
    ]


def _format_signed(value: float) -> str:
    return f"-{micros(-value)}" if value < 0 else micros(value)


def marginal_data(marginal: MarginalCosts) -> dict[str, Any]:
    """Return the measurement as plain data."""
    return {
        "mode": marginal.mode,
        "step_us": marginal.step_us,
        "error": marginal.error,
        "stages": [
            {
                "stage": stage.index,
                "name": stage.name,
                "own_us": stage.own_us,
                "needed": stage.needed,
                **_marginal_cost_data(stage),
            }
            for stage in marginal.stages
        ],
    }


def _marginal_cost_data(stage: MarginalCost) -> dict[str, Any]:
    cost = stage.cost
    return {
        "saved_us": None if cost is None else finite(cost.saved_us),
        "noise_us": None if cost is None else finite(cost.noise_us),
        "for_neighbors_us": finite(stage.for_neighbors_us),
        "significant": cost is not None and bool(cost.is_significant),
        "turns": 0 if cost is None else cost.turns,
    }


def finite(value: float | None) -> float | None:
    """Return a finite number, or ``None`` for JSON."""
    return None if value is None or not math.isfinite(value) else float(value)


_VALUES = {"same": "same values", "close": "values within 1 %", "other": "different values"}


def advice_blocks(mode: Mode, advised: Suggestions) -> Iterator[Block]:
    """Yield the changes that saved time, then the others.

    Args:
        mode: Execution mode.
        advised: Changes that were tried.
    """
    tried = len(advised.advice) + len(advised.without_gain)
    result = f"{count_text(tried, 'change')} tried, {len(advised.advice)} saved time"
    yield Heading(f"advice, {mode}", result)
    if advised.interrupted:
        yield Paragraph([Cell("incomplete: ", "bad"), Cell("interrupted")], indent=2)
    for advice in advised.advice:
        yield from _advice(advice)
    for advice in advised.without_gain:
        cells = [Cell("no gain: ", "dim"), Cell(advice.candidate.change)]
        yield Paragraph([*cells, Cell(f" ({_saving(advice)})", "dim")], indent=2)
    for why in advised.refused:
        yield Paragraph([Cell("not tried: ", "dim"), Cell(why)], indent=2)
    if not tried and not advised.refused:
        yield Paragraph([Cell("no suggestions")], indent=2)


def _advice(advice: TriedChange) -> Iterator[Block]:
    saving, remedy = advice.saving, advice.candidate
    share = Cell(f"-{saving.saved_share:.0%} ", "good")
    yield Paragraph([share, Cell(remedy.change, "name")], indent=2)
    yield Paragraph([Cell("reason: ", "dim"), Cell(remedy.found)], indent=4)
    yield Paragraph([Cell("measured: ", "dim"), Cell(_saving(advice))], indent=4)
    chain = " → ".join(format_stage(stage) for stage in remedy.pipeline.transforms)
    yield Paragraph([Cell("chain: ", "dim"), Cell(chain)], indent=4)


def _saving(advice: TriedChange) -> str:
    saving = advice.saving
    noise = finite(saving.noise_us)
    tolerance = "" if noise is None else f" ± {micros(noise)}"
    before, after = micros(saving.before_us), micros(saving.after_us)
    saved = f"{'-' if saving.saved_us < 0 else ''}{micros(abs(saving.saved_us))}"
    return f"{before} → {after} µs per step, saved {saved}{tolerance}; {_VALUES[advice.values]}"


def advice_data(mode: Mode, result: Suggestions) -> dict[str, Any]:
    """Return the measurement as plain data."""
    return {
        "mode": mode,
        "advice": [_advice_item_data(each) for each in result.advice],
        "without_gain": [_advice_item_data(each) for each in result.without_gain],
        "refused": list(result.refused),
        "interrupted": result.interrupted,
    }


def _advice_item_data(advice: TriedChange) -> dict[str, Any]:
    remedy, saving = advice.candidate, advice.saving
    return {
        "kind": remedy.kind,
        "stages": list(remedy.stages),
        "found": remedy.found,
        "change": remedy.change,
        "chain": [format_stage(stage) for stage in remedy.pipeline.transforms],
        "mode": remedy.mode,
        "before_us": finite(saving.before_us),
        "after_us": finite(saving.after_us),
        "saved_us": finite(saving.saved_us),
        "saved_share": finite(saving.saved_share),
        "noise_us": finite(saving.noise_us),
        "values": advice.values,
    }
