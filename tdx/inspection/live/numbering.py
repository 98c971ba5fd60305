"""The numbers by which a user knows the stages of a chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageNumbers:
    """Translates the index of a traced stage to the number that is shown for it.

    Args:
        numbers: Shown numbers of the pipeline's stages, in order; none: their traced indices.
        inner: Stages that the env has below those of the pipeline, which have no number.

    Example:
        >>> StageNumbers((0, 3), inner=1).title(2, "RewardSum")
        '3 RewardSum'
    """

    numbers: Sequence[int] = ()
    inner: int = 0

    def number(self, index: int) -> int:
        """The number of a stage; -1 for one that has none."""
        if not self.numbers:
            return index
        at = index - self.inner
        return self.numbers[at] if 0 <= at < len(self.numbers) else -1

    def title(self, index: int, name: str) -> str:
        """Number and name of a stage; the name alone for one that has no number."""
        number = self.number(index)
        return f"{number} {name}" if number >= 0 else name


TRACED = StageNumbers()
"""Each stage has its traced index."""
