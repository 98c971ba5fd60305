"""From the calls that a clock has noted to the rows of a profile."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tdx.core.meter import UNATTRIBUTED, Part
from tdx.profiling.clock import Times
from tdx.profiling.result import Row
from tdx.profiling.statistics import Counts

_GROUPS = {"policy": 0, "env": 1, "wrapper": 2, "stage": 3, "engine": 4}
_LANES = ("reset", "inverse", "step", "forward", "specs")


def rows_of(repeats: Sequence[Sequence[Times]], began_ns: Sequence[int]) -> tuple[Row, ...]:
    """One row for each part, in the order of the chain.

    Args:
        repeats: what the clock noted in each repeat.
        began_ns: when each of them began, by the same clock.
    """
    found: dict[Part, list[tuple[int, int, Times]]] = {}
    for number, (times, began) in enumerate(zip(repeats, began_ns, strict=True)):
        for each in times:
            found.setdefault(each.part, []).append((number, began, each))
    return tuple(_row(part, found[part]) for part in _in_order(found))


def _row(part: Part, noted: list[tuple[int, int, Times]]) -> Row:
    def joined(columns: Iterable[Counts]) -> Counts:
        return np.concatenate(list(columns))

    return Row(
        part=part,
        times_ns=joined(each.own_ns for _, _, each in noted),
        starts_ns=joined(each.start_ns - began for _, began, each in noted),
        spans_ns=joined(each.end_ns - each.start_ns for _, _, each in noted),
        steps=joined(each.steps for _, _, each in noted),
        repeats=joined(np.full(len(each.own_ns), number) for number, _, each in noted),
    )


def _in_order(parts: Iterable[Part]) -> list[Part]:
    """The policy, the env and the chain as data flows, then the engine's own work."""

    def place(part: Part) -> tuple[int, int, int, str]:
        last = part.name == UNATTRIBUTED
        return _GROUPS[part.work] + last, part.index, _LANES.index(part.lane), part.name

    return sorted(parts, key=place)
