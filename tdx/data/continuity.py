"""Whether a stored step goes on where the one before it ended."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

Path = tuple[str, ...]
# These say something of a step, not of where it led.
NOT_STATES = frozenset({"reward", "action", "done", "terminated", "truncated", "_reset"})
MOST_BYTES = 1024


class Continuity:
    """Marks the steps that do not follow on the row before them.

    A step follows if what its root holds is what the ``next`` of the row before held. A rollout
    that was cut without a done flag, or several that were put one behind the other, are told
    apart in this way.

    Args:
        shapes: the shape of every leaf in one step.
        rows: the number of rows there is room for.
        width: the number of steps in a row.
    """

    def __init__(
        self, shapes: Mapping[Path, torch.Size] | None = None, rows: int = 0, width: int = 1
    ) -> None:
        self.begins = torch.zeros(rows, width, dtype=torch.bool)
        self._pairs = compared({} if shapes is None else shapes)
        self._incoming: Tensor | None = None

    def look(
        self,
        incoming: Mapping[Path, Tensor],
        stored: Mapping[Path, Tensor],
        newest: int | None,
        size: tuple[int, int],
    ) -> None:
        """Compare rows that come in with each other, and the first with the newest stored.

        Args:
            incoming: the leaves, ``[rows, *B, ...]`` each.
            stored: the storage's leaves.
            newest: the row that was written last, if there is one.
            size: how many rows come in, and the number of steps in each.
        """
        begins = torch.zeros(size, dtype=torch.bool)
        for root, following in self._pairs:
            now, after = incoming[root], incoming[following]
            if size[0] > 1:
                begins[1:] |= _differ(after[:-1], now[1:], (size[0] - 1, size[1]))
            if newest is not None:
                begins[:1] |= _differ(stored[following][newest : newest + 1], now[:1], (1, size[1]))
        self._incoming = begins

    def write(self, at: int, first: int, count: int) -> None:
        """Keep what was found of the rows from ``first`` on, which were written to ``at``."""
        assert self._incoming is not None
        self.begins[at : at + count] = self._incoming[first : first + count]

    def forget(self, index: object) -> None:
        """Nothing is known of rows that were replaced from outside."""
        self.begins[index] = False  # type: ignore[index]

    def empty(self) -> None:
        """Forget everything."""
        self.begins.zero_()


def compared(shapes: Mapping[Path, torch.Size]) -> tuple[tuple[Path, Path], ...]:
    """The leaves that are both at the root and in ``next``: the smallest, up to some size."""
    pairs = [
        (path, ("next", *path))
        for path in shapes
        if path and path[-1] not in NOT_STATES and ("next", *path) in shapes
    ]
    chosen: list[tuple[Path, Path]] = []
    elements = 0
    for root, following in sorted(pairs, key=lambda pair: math.prod(shapes[pair[0]])):
        size = math.prod(shapes[root])
        if shapes[root] != shapes[following]:
            continue
        if chosen and elements + size > MOST_BYTES:
            break
        chosen.append((root, following))
        elements += size
    return tuple(chosen)


def _differ(before: Tensor, after: Tensor, size: tuple[int, int]) -> Tensor:
    after = after.to(before.device)
    return (before != after).reshape(*size, -1).any(-1).cpu()
