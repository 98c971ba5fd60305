"""The layout of two profiles beside each other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from tdx.cli.output.view import Block, Cell, Heading, Paragraph, Style, Table, View
from tdx.cli.views.profile_table import micros, number_table
from tdx.pipeline import format_stage
from tdx.profiling.advice import Advice, Advised
from tdx.profiling.compare import TOTAL, Change, Comparison, Failure
from tdx.profiling.limits import Limit
from tdx.profiling.marginal import Marginal, MarginalCost
from tdx.profiling.result import Mode

_SLIGHT = 0.005
_OPTIONAL_CHANGE_COLUMNS = ("noise", "before", "lane")


def change_view(found: Comparison, limits: Sequence[Limit], before: str, after: str) -> View:
    """Lay out what has become slower or faster.

    Args:
        found: what differs.
        limits: what may not grow.
        before: what the first profile is called.
        after: what the second is called.
    """

    def blocks(width: int) -> list[Block]:
        head = Heading(f"{before} → {after}", verdict(found, limits), level=1)
        return [head, *change_blocks(found, limits, width)]

    return View("profile-comparison", change_data(found), list(_change_records(found)), blocks)


def verdict(found: Comparison, limits: Sequence[Limit]) -> str:
    """What came out, in a few words."""
    if found.failures:
        return f"too slow: {', '.join(_name(label) for label in found.failing)}"
    return "within the limits" if limits else "nothing was to be held to a limit"


def change_blocks(found: Comparison, limits: Sequence[Limit], width: int) -> Iterator[Block]:
    """What differs, without a heading."""
    for failure in found.failures:
        yield Paragraph([Cell("too slow: ", "bad"), Cell(failure.message)], indent=2)
    for difference in found.differences:
        yield Paragraph([Cell("not alike: ", "changed"), Cell(difference)], indent=2)
    figures = {limit.figure for limit in limits} or {"mean"}
    changes = [
        change for change in found.changes if change.figure in figures or change.label == TOTAL
    ]
    yield _change_table(changes, found.failures, width)
    for title, keys in (("gone", found.gone), ("new", found.new)):
        if keys:
            names = ", ".join(f"{label} {lane}" for label, lane in keys)
            yield Paragraph([Cell(f"{title}: ", "dim"), Cell(names)], indent=2)


def _change_table(changes: Sequence[Change], failures: Sequence[Failure], width: int) -> Table:
    failed: set[tuple[str, str, str]] = {
        (each.change.mode, each.change.label, each.change.lane) for each in failures
    }
    several = len({change.mode for change in changes}) > 1
    rows = [_change_row(change, failed, several) for change in changes]
    titles = ("part", "lane", "figure", "before", "after", "change", "noise", "")
    return number_table(
        titles, rows, width, ("part", "lane", "figure", ""), _OPTIONAL_CHANGE_COLUMNS
    )


def _change_row(change: Change, failed: set[tuple[str, str, str]], several: bool) -> list[Cell]:
    name = _part_name(change.label)
    style, told = _judged(change, (change.mode, change.label, change.lane) in failed)
    return [
        Cell(f"{change.mode}: {name}" if several else name, "name"),
        Cell("" if change.label == TOTAL else change.lane, "dim"),
        Cell(change.figure, "dim"),
        Cell(micros(change.before_us)),
        Cell(micros(change.after_us)),
        Cell(_percent(change.ratio - 1), style),
        Cell(f"±{change.noise:.0%}", "dim"),
        Cell(told, style),
    ]


def _part_name(label: str) -> str:
    return "whole step" if label == TOTAL else label


def _judged(change: Change, failed: bool) -> tuple[Style, str]:
    if failed:
        return "bad", "too slow"
    if not change.is_significant or abs(change.ratio - 1) < _SLIGHT:
        return "dim", "the same"
    return ("changed", "slower") if change.ratio > 1 else ("good", "faster")


def _percent(share: float) -> str:
    return "new" if math.isinf(share) else f"{share:+.0%}"


def change_data(found: Comparison) -> dict[str, Any]:
    """All that differs, as plain data."""
    return {
        "failed": bool(found.failures),
        "failures": [
            {"limit": each.limit.text, "message": each.message, **_change_data(each.change)}
            for each in found.failures
        ],
        "differences": list(found.differences),
        "gone": [{"label": label, "lane": lane} for label, lane in found.gone],
        "new": [{"label": label, "lane": lane} for label, lane in found.new],
        "changes": [_change_data(change) for change in found.changes],
    }


def _change_data(change: Change) -> dict[str, Any]:
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


def _change_records(found: Comparison) -> Iterator[dict[str, Any]]:
    broken = {id(failure.change): failure.limit.text for failure in found.failures}
    for change in found.changes:
        yield {**_change_data(change), "limit": broken.get(id(change))}


_MARGINAL_TITLES = ("stage", "own", "saved without it", "noise", "for others", "share")
_OPTIONAL_MARGINAL_COLUMNS = ("share", "noise", "for others")


def marginal_blocks(found: Marginal, width: int) -> Iterator[Block]:
    """What a step saves without each stage, and how much of that is not the stage's own time.

    Args:
        found: what was measured.
        width: columns of the terminal.
    """
    yield Heading(f"marginal cost, {found.mode}", "µs of a step, with and without each stage")
    if found.error is not None:
        yield Paragraph([Cell("incomplete: ", "bad"), Cell(found.error)], indent=2)
    rows = [_marginal_row(stage) for stage in found.stages]
    yield number_table(_MARGINAL_TITLES, rows, width, ("stage",), _OPTIONAL_MARGINAL_COLUMNS)
    for stage in found.stages:
        if stage.needed is not None:
            told = f": the chain does not run without it: {stage.needed}"
            yield Paragraph([Cell(_stage_name(stage), "name"), Cell(told, "dim")], indent=2)


def _stage_name(stage: MarginalCost) -> str:
    return f"{stage.index} {stage.name}"


def _marginal_row(stage: MarginalCost) -> list[Cell]:
    name, own = Cell(_stage_name(stage), "name"), Cell(micros(stage.own_us))
    cost, others = stage.cost, stage.for_neighbours_us
    if cost is None or others is None:
        return [name, own, Cell("needed" if stage.needed else "–", "dim"), *[Cell("")] * 3]
    style: Style = "" if cost.is_significant else "dim"
    return [
        name,
        own,
        Cell(_signed(cost.saved_us), style),
        Cell("±" + (micros(cost.noise_us) if math.isfinite(cost.noise_us) else "?"), "dim"),
        Cell(_signed(others), style),
        Cell(f"{cost.saved_share:.1%}", style),
    ]


def _signed(value: float) -> str:
    return f"-{micros(-value)}" if value < 0 else micros(value)


def marginal_data(found: Marginal) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "mode": found.mode,
        "step_us": found.step_us,
        "error": found.error,
        "stages": [
            {
                "stage": stage.index,
                "name": stage.name,
                "own_us": stage.own_us,
                "needed": stage.needed,
                **_marginal_cost_data(stage),
            }
            for stage in found.stages
        ],
    }


def _marginal_cost_data(stage: MarginalCost) -> dict[str, Any]:
    cost = stage.cost
    return {
        "saved_us": None if cost is None else finite(cost.saved_us),
        "noise_us": None if cost is None else finite(cost.noise_us),
        "for_neighbours_us": finite(stage.for_neighbours_us),
        "significant": cost is not None and bool(cost.is_significant),
        "turns": 0 if cost is None else cost.turns,
    }


def finite(value: float | None) -> float | None:
    """A number that JSON can hold."""
    return None if value is None or not math.isfinite(value) else float(value)


_VALUES = {"same": "the same values", "close": "values within 1 %", "other": "other values"}


def advice_blocks(mode: Mode, found: Advised) -> Iterator[Block]:
    """What saved time first, then what was tried in vain.

    Args:
        mode: how the pipeline ran.
        found: what was tried.
    """
    tried = len(found.advice) + len(found.in_vain)
    told = f"{tried} change{'' if tried == 1 else 's'} tried, {len(found.advice)} worth it"
    yield Heading(f"advice, {mode}", told)
    if found.interrupted:
        yield Paragraph([Cell("incomplete: ", "bad"), Cell("interrupted")], indent=2)
    for advice in found.advice:
        yield from _advice(advice)
    for advice in found.in_vain:
        cells = [Cell("no gain: ", "dim"), Cell(advice.remedy.change)]
        yield Paragraph([*cells, Cell(f" ({_saving(advice)})", "dim")], indent=2)
    for why in found.refused:
        yield Paragraph([Cell("not tried: ", "dim"), Cell(why)], indent=2)
    if not tried and not found.refused:
        yield Paragraph([Cell("Nothing was found that would be worth a try.")], indent=2)


def _advice(advice: Advice) -> Iterator[Block]:
    saving, remedy = advice.saving, advice.remedy
    share = Cell(f"-{saving.saved_share:.0%} ", "good")
    yield Paragraph([share, Cell(remedy.change, "name")], indent=2)
    yield Paragraph([Cell("because: ", "dim"), Cell(remedy.found)], indent=4)
    yield Paragraph([Cell("measured: ", "dim"), Cell(_saving(advice))], indent=4)
    chain = " → ".join(format_stage(stage) for stage in remedy.pipeline.transforms)
    yield Paragraph([Cell("chain: ", "dim"), Cell(chain)], indent=4)


def _saving(advice: Advice) -> str:
    saving = advice.saving
    noise = finite(saving.noise_us)
    room = "" if noise is None else f" ± {micros(noise)}"
    before, after = micros(saving.before_us), micros(saving.after_us)
    saved = f"{'-' if saving.saved_us < 0 else ''}{micros(abs(saving.saved_us))}"
    return f"{before} → {after} µs a step, saved {saved}{room}; {_VALUES[advice.values]}"


def advice_data(mode: Mode, found: Advised) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "mode": mode,
        "advice": [_advice_item_data(each) for each in found.advice],
        "in_vain": [_advice_item_data(each) for each in found.in_vain],
        "refused": list(found.refused),
        "interrupted": found.interrupted,
    }


def _advice_item_data(advice: Advice) -> dict[str, Any]:
    remedy, saving = advice.remedy, advice.saving
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
