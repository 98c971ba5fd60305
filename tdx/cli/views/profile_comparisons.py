"""Comparisons of profiles: with a baseline, without each stage, and with suggested changes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tdx.cli.views import (
    NONE,
    Block,
    Cell,
    Heading,
    Paragraph,
    Style,
    View,
    dim,
    fact,
    micros,
)
from tdx.cli.views.profile_table import number_table
from tdx.foundation.text import count_text
from tdx.pipeline import format_stage
from tdx.profiling.compare import (
    FIGURE,
    TOTAL_LABEL,
    Calibration,
    DetectableChange,
    FigureChange,
    ProfileComparison,
)
from tdx.profiling.interleaved import MarginalCost, MarginalCosts
from tdx.profiling.suggestions import Suggestions, TriedChange

_SLIGHT = 0.005
_JUDGEMENT_STYLES: dict[str, Style] = {"the same": "dim", "slower": "changed", "faster": "good"}


def comparison_view(
    comparison: ProfileComparison, before: str, after: str, *, is_summary: bool = False
) -> View:
    """Lay out which parts are slower or faster."""

    def blocks() -> Iterator[Block]:
        yield Heading(f"{before} → {after}", verdict(comparison), level=1)
        yield from comparison_blocks(comparison, is_summary=is_summary)

    def records() -> Iterator[dict[str, object]]:
        limits = {id(failure.change): failure.limit.text for failure in comparison.failures}
        for change in comparison.changes:
            yield {**change.to_dict(), "limit": limits.get(id(change))}

    return View("profile_comparison", comparison, blocks, records)


def verdict(comparison: ProfileComparison) -> str:
    """Return the result in a few words, and how the whole step changed."""
    totals = [change for change in comparison.changes if change.label == TOTAL_LABEL]
    steps = []
    for change in totals:
        mode = f"{change.mode} " if len(totals) > 1 else ""
        times = f"{micros(change.before_us)} → {micros(change.after_us)} µs per step"
        noise = f"{change.ratio - 1:+.0%}, noise ±{change.noise:.0%}"
        steps.append(f"{mode}{_judgement(change)}, {times} ({noise})")
    whole = "; ".join(steps)
    if comparison.failures:
        names = ", ".join(_part_name(label) for label in comparison.failing)
        return f"too slow: {names}; {whole}"
    return f"within the limits; {whole}" if comparison.limits else whole


def _judgement(change: FigureChange) -> str:
    if not change.is_significant or abs(change.ratio - 1) < _SLIGHT:
        return "the same"
    return "slower" if change.ratio > 1 else "faster"


def comparison_blocks(
    comparison: ProfileComparison, *, is_summary: bool = False
) -> Iterator[Block]:
    """Yield the differences without a heading; in a summary only the parts that changed."""
    for failure in comparison.failures:
        yield fact("too slow", failure.message, title_style="bad")
    for difference in comparison.differences:
        yield fact("different", difference, title_style="changed")
    figures = {limit.figure for limit in comparison.limits} or {"mean"}
    changes = [
        change
        for change in comparison.changes
        if change.figure in figures or change.label == TOTAL_LABEL
    ]
    failed: set[tuple[str, str, str]] = {
        (failure.change.mode, failure.change.label, failure.change.lane)
        for failure in comparison.failures
    }
    has_modes = len({change.mode for change in changes}) > 1
    shown = [
        change
        for change in changes
        if not is_summary or change.label == TOTAL_LABEL or _judgement(change) != "the same"
    ]
    rows = [_change_row(change, failed, has_modes) for change in shown]
    titles = ("part", "lane", "figure", "before", "after", "change", "noise", "")
    yield number_table(titles, rows, ("part", "lane", "figure", ""), ("noise", "before", "lane"))
    if len(shown) < len(changes):
        count = count_text(len(changes) - len(shown), "other figure")
        yield dim(f"{count}: the same within the noise; --detail shows them", 2)
    for title, keys in (("gone", comparison.removed), ("new", comparison.new)):
        if keys:
            names = ", ".join(f"{label} {lane}" for label, lane in keys)
            yield fact(title, names)


def _change_row(
    change: FigureChange, failed: set[tuple[str, str, str]], has_modes: bool
) -> list[Cell]:
    name = _part_name(change.label)
    style: Style
    if (change.mode, change.label, change.lane) in failed:
        style, verdict = "bad", "too slow"
    else:
        verdict = _judgement(change)
        style = _JUDGEMENT_STYLES[verdict]
    return [
        Cell(f"{change.mode}: {name}" if has_modes else name, "name"),
        Cell("" if change.label == TOTAL_LABEL else change.lane, "dim"),
        Cell(_figure_text(change.label, change.figure), "dim"),
        Cell(micros(change.before_us)),
        Cell(micros(change.after_us)),
        Cell("new" if math.isinf(change.ratio) else f"{change.ratio - 1:+.0%}", style),
        Cell(f"±{change.noise:.0%}", "dim"),
        Cell(verdict, style),
    ]


def _figure_text(label: str, figure: str) -> str:
    """Return a figure with its unit: rows are measured by call, the whole by step."""
    return f"{figure}/step" if label == TOTAL_LABEL else f"{figure}/call"


def _part_name(label: str) -> str:
    return "whole step" if label == TOTAL_LABEL else label


def calibration_view(calibration: Calibration) -> View:
    """Lay out the smallest changes that profiles can show."""

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

    def blocks() -> list[Block]:
        runs = f"{calibration.runs} runs of {count_text(calibration.repeats, 'repeat')}"
        titles = ("part", "lane", "figure", "µs", "share", "smallest change")
        rows = [row(change) for change in calibration.changes]
        total = [change for change in calibration.changes if change.label == TOTAL_LABEL]
        steps = ", ".join(f"{change.growth:.1%}" for change in total)
        return [
            Heading(calibration.subject, runs, level=1),
            number_table(titles, rows, ("part", "lane", "figure"), ("figure", "lane")),
            fact("whole step", f"changes from {steps}"),
            fact("suggested limit", f"--fail-if {calibration.limit}", "name"),
        ]

    has_modes = len({change.mode for change in calibration.changes}) > 1
    return View("profile_calibration", calibration, blocks, lambda: calibration.changes)


_MARGINAL_TITLES = ("stage", "own time", "saved without it", "noise", "effect on others", "share")
_OPTIONAL_MARGINAL_COLUMNS = ("share", "noise", "effect on others")


def marginal_blocks(marginal: MarginalCosts) -> Iterator[Block]:
    """Yield the time per step that is saved without each stage."""
    yield Heading(f"marginal cost, {marginal.mode}", "µs per step, with and without each stage")
    if marginal.error is not None:
        yield fact("incomplete", marginal.error, title_style="bad")
    rows = []
    for stage in marginal.stages:
        head = [Cell(_stage_name(stage), "name"), Cell(micros(stage.own_us))]
        cost, others = stage.cost, stage.for_neighbors_us
        if cost is None or others is None:
            reason = Cell("needed" if stage.needed else NONE, "dim")
            rows.append([*head, reason, *[Cell("")] * 3])
            continue
        style: Style = "" if cost.is_significant else "dim"
        noise = micros(cost.noise_us) if math.isfinite(cost.noise_us) else "?"
        rows.append(
            [
                *head,
                Cell(micros(cost.saved_us), style),
                Cell(f"±{noise}", "dim"),
                Cell(micros(others), style),
                Cell(f"{cost.saved_share:.1%}", style),
            ]
        )
    yield number_table(_MARGINAL_TITLES, rows, ("stage",), _OPTIONAL_MARGINAL_COLUMNS)
    for stage in marginal.stages:
        if stage.needed is not None:
            why = f": the chain does not run without it: {stage.needed}"
            yield Paragraph([Cell(_stage_name(stage), "name"), Cell(why, "dim")], indent=2)


def _stage_name(stage: MarginalCost) -> str:
    return f"{stage.index} {stage.name}"


_VALUES = {"same": "same values", "close": "values within 1 %", "other": "different values"}


def advice_blocks(advised: Suggestions) -> Iterator[Block]:
    """Yield the changes that saved time, then the others."""
    tried = len(advised.advice) + len(advised.without_gain)
    result = f"{count_text(tried, 'change')} tried, {len(advised.advice)} saved time"
    yield Heading(f"advice, {advised.mode}", result)
    if advised.interrupted:
        yield fact("incomplete", "interrupted", title_style="bad")
    for advice in advised.advice:
        yield from _advice(advice)
    for advice in advised.without_gain:
        cells = [Cell("no gain: ", "dim"), Cell(advice.candidate.change)]
        yield Paragraph([*cells, Cell(f" ({_saving(advice)})", "dim")], indent=2)
    for why in advised.refused:
        yield fact("not tried", why)
    if not tried and not advised.refused:
        yield Paragraph([Cell("no suggestions")], indent=2)


def _advice(advice: TriedChange) -> Iterator[Block]:
    saving, remedy = advice.saving, advice.candidate
    share = Cell(f"-{saving.saved_share:.0%} ", "good")
    yield Paragraph([share, Cell(remedy.change, "name")], indent=2)
    yield fact("reason", remedy.found, indent=4)
    yield fact("measured", _saving(advice), indent=4)
    chain = " → ".join(format_stage(stage) for stage in remedy.pipeline.transforms)
    yield fact("chain", chain, indent=4)


def _saving(advice: TriedChange) -> str:
    saving = advice.saving
    tolerance = f" ± {micros(saving.noise_us)}" if math.isfinite(saving.noise_us) else ""
    before, after = micros(saving.before_us), micros(saving.after_us)
    saved = f"{micros(saving.saved_us)}{tolerance}"
    return f"{before} → {after} µs per step, saved {saved}; {_VALUES[advice.values]}"
