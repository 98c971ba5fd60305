"""From a run to the lines of the table."""

from __future__ import annotations

from typing import Literal

from tdx.tui.profile.columns import Column, Line
from tdx.tui.profile.requests import MODES, CostRow, ModeCosts, ModeName
from tdx.tui.profile.runs import Key, Run, compared

Shown = Literal["planned", "eager", "compiled", "both", "all"]
"""A mode; ``both`` are eager and planned side by side, ``all`` are all three."""
SHOWN: tuple[Shown, ...] = ("planned", "eager", "compiled", "both", "all")
TITLES = {"both": "eager+planned", "all": "all modes"}
"""What is said of those that are no mode."""


def modes_for(wanted: Shown) -> tuple[ModeName, ...]:
    """The modes that are to be measured."""
    if wanted == "both":
        return ("eager", "planned")
    return MODES if wanted == "all" else (wanted,)


def shown_modes(run: Run, wanted: Shown) -> list[ModeCosts]:
    """What a run has of the modes that are wanted, or the one that it has."""
    found = [run.costs.mode(name) for name in modes_for(wanted)]
    there = [mode for mode in found if mode is not None]
    return there or list(run.costs.modes[:1])


def mode_of(run: Run, wanted: Shown) -> ModeCosts | None:
    """Of what is shown of a run the mode that rollouts run in, or the first."""
    there = shown_modes(run, wanted)
    first = next(iter(there), None)
    return next((mode for mode in there if mode.mode == "planned"), first)


def is_side_by_side(run: Run, wanted: Shown) -> bool:
    """Whether several modes can be shown beside each other, and shall be."""
    return len(shown_modes(run, wanted)) > 1


def lines_of(run: Run, wanted: Shown, other: Run | None) -> list[Line]:
    """The lines of a run, in the order of the chain.

    Args:
        run: what is shown.
        wanted: the mode, or several.
        other: the run that it is compared with; none for no comparison.
    """
    mode = mode_of(run, wanted)
    if mode is None:
        return []
    if is_side_by_side(run, wanted):
        return _beside(run, shown_modes(run, wanted))
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


def _beside(run: Run, modes: list[ModeCosts]) -> list[Line]:
    """A line for each part of any mode; stages that became one function stand with their first."""
    found: dict[Key, dict[str, CostRow]] = {}
    for mode in modes:
        for row in mode.rows:
            found.setdefault(run.key(row), {})[mode.mode] = row
    kinds = {row.work: None for mode in modes for row in mode.rows}
    works = [work for work in kinds if work != "engine"] + ["engine"]

    def place(rows: dict[str, CostRow]) -> tuple[int, int]:
        row = next(iter(rows.values()))
        return works.index(row.work), row.index

    ranked = sorted(found.values(), key=place)
    return [
        Line(f"row-{at}", at, next(iter(rows.values())), beside=rows)
        for at, rows in enumerate(ranked)
    ]


def sorted_lines(lines: list[Line], column: Column, inverted: bool) -> list[Line]:
    """The lines by a column; those that have nothing there come last."""
    there = [line for line in lines if column.value(line) is not None]
    rest = [line for line in lines if column.value(line) is None]
    down = column.largest_first != inverted
    return sorted(there, key=lambda line: _rank(column, line), reverse=down) + rest


def _rank(column: Column, line: Line) -> float:
    value = column.value(line)
    return float(value) if isinstance(value, (int, float)) else 0.0
