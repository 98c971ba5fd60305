"""The columns for modes side by side: what a part takes in each, and what that saves."""

from __future__ import annotations

from collections.abc import Sequence

from tdx.tui.profile.columns import Column, Line, columns_that_fit
from tdx.tui.profile.numbers import bar, micros, percent
from tdx.tui.profile.requests import MODES


def columns_beside(lines: Sequence[Line], width: int) -> list[Column]:
    """The columns that fit: a time for each mode, what it saves of the first, and bars.

    Args:
        lines: what is to be shown.
        width: cells that there are.
    """
    modes = [mode for mode in MODES if any(mode in line.beside for line in lines)]
    most = max((row.step_us for line in lines for row in line.beside.values()), default=1.0)
    wide = 12 if width < 110 else 24
    saves = [_saves(modes[0], mode) for mode in modes[1:]]
    bars = [_bar(mode, wide, most) for mode in modes]
    found = columns_that_fit([*map(_time, modes), *saves, *bars], lines, width)
    ids = [
        "part",
        *(name for mode in modes for name in (mode, f"{mode}_saves")),
        *(f"{mode}_bar" for mode in modes),
    ]
    return sorted(found, key=lambda column: ids.index(column.id))


def _us(line: Line, mode: str) -> float | None:
    row = line.beside.get(mode)
    return None if row is None else row.step_us


def _time(mode: str) -> Column:
    def text(line: Line) -> str:
        found = _us(line, mode)
        return "·" if found is None else micros(found)

    return Column(
        mode,
        mode,
        8,
        lambda line: _us(line, mode),
        text,
        lambda line: "dim" if _us(line, mode) is None else "",
    )


def _saves(first: str, mode: str) -> Column:
    """How much less a part takes than in the first mode."""

    def ratio(line: Line) -> float | None:
        before, after = _us(line, first), _us(line, mode)
        return None if after is None or not before else after / before - 1

    def text(line: Line) -> str:
        found = ratio(line)
        if found is None:
            return ""
        return "≈" if abs(found) < 0.005 else percent(found)

    return Column(
        f"{mode}_saves",
        "saves",
        7,
        ratio,
        text,
        lambda line: "faster" if (ratio(line) or 0.0) < -0.02 else "dim",
        largest_first=False,
    )


def _bar(mode: str, width: int, most: float) -> Column:
    """Bars of all modes have the same measure."""
    return Column(
        f"{mode}_bar",
        f"{mode} bar",
        width,
        lambda line: _us(line, mode),
        lambda line: bar((_us(line, mode) or 0.0) / most if most else 0.0, width),
        lambda line: "bar",
    )
