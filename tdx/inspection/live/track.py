"""Numbers over the traces, in memory of a fixed size."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tdx.inspection.live.views import Curve

Array = np.ndarray[Any, Any]


class Track:
    """Keeps the latest rows of numbers, one row for each trace.

    Args:
        capacity: the most rows.
        width: how many numbers are in each.
    """

    def __init__(self, capacity: int, width: int = 1) -> None:
        self._ring = np.full((capacity, width), np.nan, dtype=np.float32)
        self.count = 0

    def append(self, numbers: Array | float) -> None:
        """Add the row of the next trace; nan where there is no number."""
        self._ring[self.count % len(self._ring)] = numbers
        self.count += 1

    def column(self, at: int) -> tuple[int, Array]:
        """The number of the first trace that is held, and one number of every trace from there."""
        size = len(self._ring)
        if self.count <= size:
            return 0, self._ring[: self.count, at]
        return self.count - size, np.roll(self._ring[:, at], -(self.count % size))

    def at(self, index: int, column: int = 0) -> float:
        """The number of a trace; nan where it is not held."""
        held = max(0, self.count - len(self._ring)) <= index < self.count
        return float(self._ring[index % len(self._ring), column]) if held else math.nan

    @property
    def nbytes(self) -> int:
        """The memory that it holds, from the beginning on."""
        return int(self._ring.nbytes)


def curve(
    name: str, first: int, numbers: Array, *, parts: int, window: tuple[int, int] | None = None
) -> Curve:
    """Numbers as a curve of a bounded size.

    Args:
        name: what they are of.
        first: the trace of the first number.
        numbers: one for each trace, nan where there is none.
        parts: the most parts.
        window: the first and the last trace that are wanted; all by default.

    Example:
        >>> import numpy as np
        >>> curve("reward", 0, np.array([0.0, 3.0, 1.0, 2.0]), parts=2).high
        (3.0, 2.0)
    """
    if window is not None:
        low, high = max(window[0], first), min(window[1], first + len(numbers) - 1)
        numbers, first = numbers[low - first : max(high + 1 - first, 0)], low
    count = len(numbers)
    known = numbers[~np.isnan(numbers)]
    latest = float(known[-1]) if known.size else None
    if count == 0:
        return Curve(name, first, first, (), (), None)
    starts = np.unique((np.arange(min(parts, count)) * count) // min(parts, count))
    lows, highs = np.fmin.reduceat(numbers, starts), np.fmax.reduceat(numbers, starts)
    return Curve(name, first, first + count - 1, _plain(lows), _plain(highs), latest)


def _plain(numbers: Array) -> tuple[float | None, ...]:
    return tuple(each if math.isfinite(each) else None for each in numbers.tolist())
