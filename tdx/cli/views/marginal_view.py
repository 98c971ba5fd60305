"""The layout of what a chain takes with and without each of its stages."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from tdx.cli.output.view import Block, Cell, Heading, Paragraph, Style
from tdx.cli.views.profile_columns import micros, number_table
from tdx.profiling.marginal import MarginalCost, MarginalCosts

_TITLES = ("stage", "own", "saved without it", "noise", "for others", "share")
_DISPENSABLE = ("share", "noise", "for others")


def marginal_blocks(found: MarginalCosts, width: int) -> Iterator[Block]:
    """What a step saves without each stage, and how much of that is not the stage's own time.

    Args:
        found: what was measured.
        width: columns of the terminal.
    """
    yield Heading(f"marginal cost, {found.mode}", "µs of a step, with and without each stage")
    if found.error is not None:
        yield Paragraph([Cell("incomplete: ", "bad"), Cell(found.error)], indent=2)
    rows = [_row(stage) for stage in found.stages]
    yield number_table(_TITLES, rows, width, ("stage",), _DISPENSABLE)
    for stage in found.stages:
        if stage.needed is not None:
            told = f": the chain does not run without it: {stage.needed}"
            yield Paragraph([Cell(_name(stage), "name"), Cell(told, "dim")], indent=2)


def _name(stage: MarginalCost) -> str:
    return f"{stage.index} {stage.name}"


def _row(stage: MarginalCost) -> list[Cell]:
    name, own = Cell(_name(stage), "name"), Cell(micros(stage.own_us))
    cost, others = stage.cost, stage.for_neighbors_us
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


def marginal_data(found: MarginalCosts) -> dict[str, Any]:
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
                **_cost(stage),
            }
            for stage in found.stages
        ],
    }


def _cost(stage: MarginalCost) -> dict[str, Any]:
    cost = stage.cost
    return {
        "saved_us": None if cost is None else finite(cost.saved_us),
        "noise_us": None if cost is None else finite(cost.noise_us),
        "for_neighbours_us": finite(stage.for_neighbors_us),
        "significant": cost is not None and bool(cost.is_significant),
        "turns": 0 if cost is None else cost.turns,
    }


def finite(value: float | None) -> float | None:
    """A number that JSON can hold."""
    return None if value is None or not math.isfinite(value) else float(value)
