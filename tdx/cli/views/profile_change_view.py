"""The layout of two profiles beside each other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from tdx.cli.output.view import Block, Cell, Heading, Paragraph, Style, Table, View
from tdx.cli.views.profile_columns import micros, number_table
from tdx.profiling.compare import (
    TOTAL_LABEL,
    FigureChange,
    Limit,
    LimitViolation,
    ProfileComparison,
)

_SLIGHT = 0.005
_DISPENSABLE = ("noise", "before", "lane")


def change_view(found: ProfileComparison, limits: Sequence[Limit], before: str, after: str) -> View:
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

    return View("profile-comparison", change_data(found), list(_records(found)), blocks)


def verdict(found: ProfileComparison, limits: Sequence[Limit]) -> str:
    """What came out, in a few words."""
    if found.failures:
        return f"too slow: {', '.join(_name(label) for label in found.failing)}"
    return "within the limits" if limits else "nothing was to be held to a limit"


def change_blocks(found: ProfileComparison, limits: Sequence[Limit], width: int) -> Iterator[Block]:
    """What differs, without a heading."""
    for failure in found.failures:
        yield Paragraph([Cell("too slow: ", "bad"), Cell(failure.message)], indent=2)
    for difference in found.differences:
        yield Paragraph([Cell("not alike: ", "changed"), Cell(difference)], indent=2)
    figures = {limit.figure for limit in limits} or {"mean"}
    changes = [
        change
        for change in found.changes
        if change.figure in figures or change.label == TOTAL_LABEL
    ]
    yield _table(changes, found.failures, width)
    for title, keys in (("gone", found.removed), ("new", found.new)):
        if keys:
            names = ", ".join(f"{label} {lane}" for label, lane in keys)
            yield Paragraph([Cell(f"{title}: ", "dim"), Cell(names)], indent=2)


def _table(
    changes: Sequence[FigureChange], failures: Sequence[LimitViolation], width: int
) -> Table:
    failed: set[tuple[str, str, str]] = {
        (each.change.mode, each.change.label, each.change.lane) for each in failures
    }
    several = len({change.mode for change in changes}) > 1
    rows = [_row(change, failed, several) for change in changes]
    titles = ("part", "lane", "figure", "before", "after", "change", "noise", "")
    return number_table(titles, rows, width, ("part", "lane", "figure", ""), _DISPENSABLE)


def _row(change: FigureChange, failed: set[tuple[str, str, str]], several: bool) -> list[Cell]:
    name = _name(change.label)
    style, told = _judged(change, (change.mode, change.label, change.lane) in failed)
    return [
        Cell(f"{change.mode}: {name}" if several else name, "name"),
        Cell("" if change.label == TOTAL_LABEL else change.lane, "dim"),
        Cell(change.figure, "dim"),
        Cell(micros(change.before_us)),
        Cell(micros(change.after_us)),
        Cell(_percent(change.ratio - 1), style),
        Cell(f"±{change.noise:.0%}", "dim"),
        Cell(told, style),
    ]


def _name(label: str) -> str:
    return "whole step" if label == TOTAL_LABEL else label


def _judged(change: FigureChange, failed: bool) -> tuple[Style, str]:
    if failed:
        return "bad", "too slow"
    if not change.is_significant or abs(change.ratio - 1) < _SLIGHT:
        return "dim", "the same"
    return ("changed", "slower") if change.ratio > 1 else ("good", "faster")


def _percent(share: float) -> str:
    return "new" if math.isinf(share) else f"{share:+.0%}"


def change_data(found: ProfileComparison) -> dict[str, Any]:
    """All that differs, as plain data."""
    return {
        "failed": bool(found.failures),
        "failures": [
            {"limit": each.limit.text, "message": each.message, **_change(each.change)}
            for each in found.failures
        ],
        "differences": list(found.differences),
        "gone": [{"label": label, "lane": lane} for label, lane in found.removed],
        "new": [{"label": label, "lane": lane} for label, lane in found.new],
        "changes": [_change(change) for change in found.changes],
    }


def _change(change: FigureChange) -> dict[str, Any]:
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


def _records(found: ProfileComparison) -> Iterator[dict[str, Any]]:
    broken = {id(failure.change): failure.limit.text for failure in found.failures}
    for change in found.changes:
        yield {**_change(change), "limit": broken.get(id(change))}
