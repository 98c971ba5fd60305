"""From a run to the lines of the table."""

from __future__ import annotations

from tdx.tui.profile.columns import Column, Line
from tdx.tui.profile.requests import ModeCosts
from tdx.tui.profile.runs import Run, compared

Shown = str
BOTH = "both"
"""Two modes side by side."""


def mode_of(run: Run, wanted: Shown) -> ModeCosts | None:
    """What a run has of the mode that is wanted, or of the one that it has."""
    if wanted == BOTH:
        wanted = "planned"
    found = run.costs.mode(wanted)
    return found or next(iter(run.costs.modes), None)


def is_side_by_side(run: Run, wanted: Shown) -> bool:
    """Whether two modes can be shown beside each other, and shall be."""
    return wanted == BOTH and len(run.costs.modes) > 1


def lines_of(run: Run, wanted: Shown, other: Run | None) -> list[Line]:
    """The lines of a run, in the order of the chain.

    Args:
        run: what is shown.
        wanted: the mode, or both.
        other: the run that it is compared with; none for no comparison.
    """
    mode = mode_of(run, wanted)
    if mode is None:
        return []
    if is_side_by_side(run, wanted):
        return _both(run)
    comparison = None if other is None else compared(run, other, mode.mode)
    rows = [(run.key(row), row) for row in mode.rows]
    if other is not None and comparison is not None:
        rows += [(other.key(row), row) for row in comparison.gone]
    deltas = {} if comparison is None else comparison.rows
    most = max((row.share for row in mode.rows), default=1.0)
    return [
        Line(f"row-{place}", place, row, deltas.get(key), most=most)
        for place, (key, row) in enumerate(rows)
    ]


def _both(run: Run) -> list[Line]:
    eager, planned = run.costs.mode("eager"), run.costs.mode("planned")
    if eager is None or planned is None:
        return []
    others = {run.key(row): row for row in planned.rows}
    lines = [
        Line(f"row-{place}", place, row, other=others.pop(run.key(row), None))
        for place, row in enumerate(eager.rows)
    ]
    for row in others.values():
        lines.append(Line(f"row-{len(lines)}", len(lines), row, other=row, only_other=True))
    return lines


def sorted_lines(lines: list[Line], column: Column, inverted: bool) -> list[Line]:
    """The lines by a column; those that have nothing there come last."""
    there = [line for line in lines if column.value(line) is not None]
    rest = [line for line in lines if column.value(line) is None]
    down = column.largest_first != inverted
    return sorted(there, key=lambda line: _rank(column, line), reverse=down) + rest


def _rank(column: Column, line: Line) -> float:
    value = column.value(line)
    return float(value) if isinstance(value, (int, float)) else 0.0
