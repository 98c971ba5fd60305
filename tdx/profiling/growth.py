"""How each cost grows along an axis of a sweep, with the exponent that fits best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tdx.core.meter import UNATTRIBUTED
from tdx.profiling.result import Mode, ModeProfile
from tdx.profiling.sweep import Cell, Sweep
from tdx.profiling.sweep_axes import Axis, Point, shown

TOTAL = ("step", "step")
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Growth:
    """How the cost of one part grows with one setting, where all others stay as they are.

    Args:
        axis: the setting.
        others: the other settings.
        mode: how it ran.
        label: whose cost; ``step`` for the whole.
        lane: which of its calls.
        values: the setting's values, as far as they were measured.
        step_us: what it takes of a step of all envs, for each of them.
        slope: the exponent ``a`` for which ``value ** a`` fits best: 0 for a cost that stays, 1
            for one that grows as the value does; ``None`` for fewer than two costs.
    """

    axis: str
    others: Point
    mode: Mode
    label: str
    lane: str
    values: tuple[float, ...]
    step_us: tuple[float, ...]
    slope: float | None


def growths(found: Sweep) -> tuple[Growth, ...]:
    """How each part's cost grows along each numeric axis.

    Args:
        found: the cells of a sweep.
    """
    return tuple(growth for axis in found.axes for growth in _along(axis, found.cells))


def slope_of(values: Sequence[float], costs: Sequence[float]) -> float | None:
    """The exponent that fits best, by least squares over logarithms.

    Args:
        values: of the setting.
        costs: at each of them; those of nothing are left out.

    Example:
        >>> round(slope_of([1, 10, 100], [3.0, 30.0, 300.0]), 6)
        1.0
    """
    pairs = [(x, y) for x, y in zip(values, costs, strict=True) if x > 0 and y > 0]
    if len({x for x, _ in pairs}) < 2:
        return None
    logs = np.log(np.array(pairs))
    return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])


def _along(axis: Axis, cells: Sequence[Cell]) -> Iterator[Growth]:
    if not axis.is_numeric or len(axis.values) < 2:
        return
    groups: dict[tuple[tuple[str, str], ...], list[Cell]] = {}
    for cell in cells:
        key = tuple((name, shown(at)) for name, at in cell.point.items() if name != axis.name)
        groups.setdefault(key, []).append(cell)
    for group in groups.values():
        others = {name: at for name, at in group[0].point.items() if name != axis.name}
        for mode, costs in _costs(axis, group).items():
            for (label, lane), points in costs.items():
                values, step_us = (tuple(each) for each in zip(*points, strict=True))
                slope = slope_of(values, step_us)
                yield Growth(axis.name, others, mode, label, lane, values, step_us, slope)


def _costs(axis: Axis, cells: Sequence[Cell]) -> dict[Mode, dict[Key, list[tuple[float, float]]]]:
    found: dict[Mode, dict[Key, list[tuple[float, float]]]] = {}
    for cell in cells:
        value = cell.point[axis.name]
        assert isinstance(value, (int, float))
        for mode in () if cell.profile is None else cell.profile.modes:
            if mode.error is not None:
                continue
            table = found.setdefault(mode.mode, {})
            for key, cost in [(TOTAL, mode.step_us), *_rows(mode)]:
                table.setdefault(key, []).append((float(value), cost))
    return found


def _rows(mode: ModeProfile) -> Iterator[tuple[Key, float]]:
    """What each part takes of a step; a stage by its name, as its place may differ."""
    seen: Counter[Key] = Counter()
    for row in mode.rows:
        part = row.part
        if part.name == UNATTRIBUTED:
            continue
        name = part.name if part.work == "stage" else part.label
        seen[name, part.lane] += 1
        number = seen[name, part.lane]
        label = name if number == 1 else f"{name} ({number})"
        yield (label, part.lane), mode.step_share_us(row)
