"""Plots of keys and rewards over the traces, in bounded memory."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tdx.inspection.live.arrays import RowSelector, as_array
from tdx.inspection.live.views import PlotView
from tdx.keys import format_key

if TYPE_CHECKING:
    from tdx.core.tracing import StepTrace

Array = np.ndarray[Any, Any]
_ELEMENT = re.compile(r"(?P<key>.+)\[(?P<place>\d+)\]")
_MAX_ELEMENTS = 8


class SeriesBuffer:
    """Ring buffer with one row of numbers per trace.

    Args:
        capacity: Maximum number of rows.
        width: Numbers per row.
    """

    def __init__(self, capacity: int, width: int = 1) -> None:
        self._ring = np.full((capacity, width), np.nan, dtype=np.float32)
        self.count = 0

    def append(self, numbers: Array | float) -> None:
        """Append the row of the next trace; NaN for missing numbers."""
        self._ring[self.count % len(self._ring)] = numbers
        self.count += 1

    def column(self, at: int) -> tuple[int, Array]:
        """Return the first trace in the buffer, and one number per trace from there."""
        size = len(self._ring)
        if self.count <= size:
            return 0, self._ring[: self.count, at]
        return self.count - size, np.roll(self._ring[:, at], -(self.count % size))

    def at(self, index: int, column: int = 0) -> float:
        """Return the number of a trace; NaN if it is not in the buffer."""
        held = max(0, self.count - len(self._ring)) <= index < self.count
        return float(self._ring[index % len(self._ring), column]) if held else math.nan

    @property
    def nbytes(self) -> int:
        """Allocated memory in bytes."""
        return int(self._ring.nbytes)


def build_plot(
    name: str, first: int, numbers: Array, *, parts: int, window: tuple[int, int] | None = None
) -> PlotView:
    """Divide numbers into a bounded number of bins.

    Args:
        name: Name of the numbers.
        first: Trace of the first number.
        numbers: One number per trace, NaN if missing.
        parts: Maximum number of bins.
        window: First and last trace to include. Defaults to all.

    Example:
        >>> import numpy as np
        >>> build_plot("reward", 0, np.array([0.0, 3.0, 1.0, 2.0]), parts=2).high
        (3.0, 2.0)
    """
    if window is not None:
        low, high = max(window[0], first), min(window[1], first + len(numbers) - 1)
        numbers, first = numbers[low - first : max(high + 1 - first, 0)], low
    count = len(numbers)
    known = numbers[~np.isnan(numbers)]
    latest = float(known[-1]) if known.size else None
    if count == 0:
        return PlotView(name, first, first, (), (), None)
    starts = np.unique((np.arange(min(parts, count)) * count) // min(parts, count))
    lows, highs = np.fmin.reduceat(numbers, starts), np.fmax.reduceat(numbers, starts)
    return PlotView(
        name, first, first + count - 1, _finite_or_none(lows), _finite_or_none(highs), latest
    )


def _finite_or_none(numbers: Array) -> tuple[float | None, ...]:
    return tuple(each if math.isfinite(each) else None for each in numbers.tolist())


def read_number(trace: StepTrace, name: str, row: int | None) -> float:
    """Return the number with a name; the mean of several, NaN if there is none.

    Args:
        trace: The trace.
        name: Key with dots, or an element of one: ``"observation[0]"``.
        row: Row of the batch. ``None``: all rows.
    """
    element = _ELEMENT.fullmatch(name)
    parts = tuple((element["key"] if element else name).split("."))
    value = trace.env_tensordict.get(parts, None)
    if value is None and trace.phase == "step":
        value = trace.tensordict.get(parts, None)
    numbers = as_array(RowSelector(tuple(trace.tensordict.batch_size), row).of(value))
    if numbers is None or numbers.size == 0:
        return math.nan
    if element:
        place = int(element["place"])
        return float(numbers.reshape(-1)[place]) if place < numbers.size else math.nan
    return float(numbers.reshape(-1)[0] if numbers.size == 1 else numbers.mean())


def number_names(trace: StepTrace, row: int | None) -> Iterator[str]:
    """Yield the names that :func:`read_number` accepts for a trace; some occur twice."""
    rows = RowSelector(tuple(trace.tensordict.batch_size), row)
    for level in (trace.env_tensordict, trace.tensordict):
        for key in level.keys(True, True):
            parts = (key,) if isinstance(key, str) else tuple(key)
            numbers = as_array(rows.of(level.get(key))) if parts[0] != "next" else None
            if numbers is not None and numbers.size:
                name = format_key(key)
                yield name
                if 1 < numbers.size <= _MAX_ELEMENTS:
                    yield from (f"{name}[{n}]" for n in range(numbers.size))
