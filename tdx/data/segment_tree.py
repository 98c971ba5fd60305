"""A segment tree: sums or minima of ranges of an array whose elements change."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class SegmentTree:
    """An array of float64 that reduces any range in logarithmic time.

    Args:
        size: Number of elements.
        operation: ``np.add`` or ``np.minimum``.
        neutral: Value of elements that were not set.
    """

    def __init__(self, size: int, operation: np.ufunc, neutral: float) -> None:
        self.size = size
        self.operation = operation
        self.neutral = neutral
        self._first = 1 << max(size - 1, 0).bit_length()
        self._nodes: Floats = np.full(2 * self._first, neutral)

    @property
    def values(self) -> Floats:
        """All elements; a view."""
        return self._nodes[self._first : self._first + self.size]

    @property
    def total(self) -> float:
        """Reduction of all elements."""
        return float(self._nodes[1])

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        return self.values[index]

    def __setitem__(self, index: Any, values: Any) -> None:
        self.values[index] = values
        changed = np.atleast_1d(np.arange(self._first, self._first + self.size)[index])
        while len(changed) and changed[0] > 1:
            changed = np.unique(changed >> 1)
            children = 2 * changed
            self._nodes[changed] = self.operation(self._nodes[children], self._nodes[children + 1])

    def query(self, start: int, stop: int) -> float:
        """Return the reduction of the elements from ``start`` to ``stop`` (excluded)."""
        low, high = start + self._first, min(stop, self.size) + self._first
        found = self.neutral
        while low < high:
            if low & 1:
                found, low = float(self.operation(found, self._nodes[low])), low + 1
            if high & 1:
                high -= 1
                found = float(self.operation(found, self._nodes[high]))
            low, high = low >> 1, high >> 1
        return found

    def find(self, mass: Floats) -> NDArray[np.int64]:
        """Return the element in which a cumulative sum reaches each mass; never one of zero.

        Args:
            mass: Numbers from 0 to the sum of a tree of ``np.add``, ``[N]``.
        """
        node = np.ones(len(mass), dtype=np.int64)
        left_mass = np.asarray(mass, dtype=np.float64)
        while node[0] < self._first:
            left, right = self._nodes[2 * node], self._nodes[2 * node + 1]
            goes_right = (left_mass >= left) & (right > 0)
            left_mass = np.where(goes_right, left_mass - left, left_mass)
            node = 2 * node + goes_right
        return node - self._first
