"""Find the order of features that explains a difference; loads neither torch nor NumPy."""

from __future__ import annotations

from collections.abc import Callable


def find_order(size: int, distance: Callable[[int, int], float]) -> list[int] | None:
    """Return which of the first side's items each item of the second side is.

    Each item takes the nearest one that is left; of equal ones, that of its own position. A
    distance is 0 between equal items, above 1 if one cannot be the other. ``None``: an item matches
    none, or all are in their own positions.

    Example:
        >>> find_order(3, lambda one, other: 2 * ("abc"[one] != "cab"[other]))
        [2, 0, 1]
    """
    free = list(range(size))
    order: list[int] = []
    for index in range(size):
        best, nearest = index, float("inf")
        for candidate in sorted(free, key=lambda item: item != index):
            if (gap := distance(candidate, index)) < nearest:
                best, nearest = candidate, gap
            if nearest <= 0:
                break
        if nearest > 1:
            return None
        free.remove(best)
        order.append(best)
    return order if order != sorted(order) else None
