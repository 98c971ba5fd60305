"""View of what ``tdx.watch`` recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tdx.cli.views import (
    Block,
    Cell,
    Column,
    Heading,
    Paragraph,
    Table,
    View,
    sparkline,
    stage_list,
)
from tdx.foundation.text import count_text
from tdx.inspection.watch_records import Drift, WatchReport

_MAX_BARS = 30
_DETAILS = ("std", "minimum", "maximum")
"""Statistics that only JSON and CSV have."""
_SHARES = ("nan", "outside")


def watch_view(report: WatchReport) -> View:
    """Lay out what moved, and the course of each number."""

    def blocks() -> list[Block]:
        steps = report.steps
        aside = count_text(len(steps), "sample")
        aside += f"  steps {steps[0]:,} to {steps[-1]:,}" if steps else ""
        head: list[Block] = [
            Heading(report.path, f"{report.env}  {aside}", level=1),
            *stage_list(report.chain),
        ]
        moved = [drift for drift in report.drifts if drift.moved is not None]
        if not moved:
            return [*head, Paragraph([Cell("nothing moved", "good")]), *_courses(report.drifts)]
        rows = [
            [Cell(drift.stage, "name"), Cell(drift.name), Cell(str(drift.moved), "changed")]
            for drift in moved
        ]
        table = Table.of(("stage", "number", "moved"), rows)
        return [*head, Heading("moved"), table, *_courses(report.drifts)]

    return View("watch", report, blocks, lambda: report.drifts)


def _courses(drifts: Sequence[Drift]) -> Iterator[Block]:
    rows = [
        [
            Cell(drift.stage, "name"),
            Cell(drift.name),
            Cell(f"{drift.first:.4g}"),
            Cell(f"{drift.last:.4g}"),
            Cell(plot(drift.values)),
        ]
        for drift in drifts
        if _is_shown(drift)
    ]
    titles = ("stage", "number", "first", "last", "course")
    if rows:
        yield Heading("course")
        yield Table([Column(title, fixed=title == "course") for title in titles], rows)


def _is_shown(drift: Drift) -> bool:
    statistic = drift.name.rpartition("/")[2]
    if statistic in _SHARES:
        return any(drift.values)
    if statistic == "changed":
        return len({value for value in drift.values if value is not None}) > 1
    return "/" not in drift.name or statistic not in _DETAILS


def plot(values: Sequence[float | None]) -> str:
    """Plot numbers as bars between their minimum and maximum; a missing one is a space.

    Example:
        >>> plot([0.0, 0.5, None, 1.0])
        '▁▅ █'
    """
    count = min(len(values), _MAX_BARS)
    thinned = [values[index * len(values) // count] for index in range(count)]
    known = [number for number in thinned if number is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    scale = 7 / (high - low) if high > low else 0.0
    heights = [0 if number is None else 1 + round((number - low) * scale) for number in thinned]
    return sparkline(heights, largest=8)
