"""Values that are to be explained, and whether an edit predicts them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from tdx.compare.edits import Edit, Explanation
from tdx.compare.values import EXACT, Tolerance, differing_elements

_RELATIVE = 2e-5
"""Error of a prediction that rounding in float32 explains, relative to the largest value."""


@dataclass(frozen=True, slots=True)
class Sides:
    """Values of one key after a stage in consecutive steps, ``[T, R, ...]`` for R sub-envs.

    Args:
        reference: What the stage of the reference returned.
        target: What that of the target returned.
        received: What both received. ``None``: it is not known.
        starts: Records in which an episode starts.
        tolerance: Largest difference that counts as equal.
        others: Other keys: what the stage received, and what that of the reference returned.
    """

    reference: Tensor
    target: Tensor
    received: Tensor | None = None
    starts: tuple[int, ...] = (0,)
    tolerance: Tolerance = EXACT
    others: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def row_dims(self) -> int:
        """Number of dims of one value."""
        return self.reference.ndim - 2

    def in_float64(self) -> Sides:
        """Return the same values in float64."""
        return Sides(
            self.reference.double(),
            self.target.double(),
            None if self.received is None else self.received.double(),
            self.starts,
            self.tolerance,
            {key: (one.double(), other.double()) for key, (one, other) in self.others.items()},
        )

    def episodes(self) -> list[tuple[int, int]]:
        """Return the first record of each episode, and that after its last one."""
        limits = [*self.starts, len(self.target)]
        if not self.starts or self.starts[0] > 0:
            limits.insert(0, 0)
        return [(one, other) for one, other in pairwise(limits) if one < other]


def reproduces(explanation: Explanation, sides: Sides) -> bool:
    """Return True if the edits of an explanation predict the target's values in another rollout.

    Args:
        explanation: The explanation.
        sides: Values of the same stage and key.
    """
    sides = sides.in_float64()
    *before, last = explanation.edits
    for edit in before:
        predicted = edit.predict(sides)
        if predicted is None:
            return False
        sides = with_reference(sides, predicted)
    return is_accepted(last, sides)


def with_reference(sides: Sides, reference: Tensor) -> Sides:
    """Return sides with other values of the reference."""
    return Sides(
        reference, sides.target, sides.received, sides.starts, sides.tolerance, sides.others
    )


def is_accepted(edit: Edit, sides: Sides) -> bool:
    """Return True if an edit predicts all values of the target."""
    predicted = edit.predict(sides)
    if predicted is None or predicted.shape != sides.target.shape:
        return False
    target = sides.target
    if edit.is_partial:
        known = ~predicted.isnan()
        # A prediction of a few values proves nothing.
        if 2 * int(known.sum()) < known.numel():
            return False
        predicted = torch.where(known, predicted, target)
    return not bool(differing_from(predicted, target, sides.tolerance, edit.slack).any())


def differing_from(
    predicted: Tensor, target: Tensor, tolerance: Tolerance, slack: float = 0.0
) -> Tensor:
    """Return a mask of the elements of a target that a prediction misses."""
    finite = target[target.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    differing = differing_elements(
        predicted, target, Tolerance(tolerance.rtol, max(tolerance.atol, slack))
    )
    if slack or not bool(differing.any()):
        return differing
    # Rounding of a feature is relative to the largest value that went into it.
    per_feature = target.nan_to_num(0, 0, 0).abs().flatten(0, 1).amax(0).clamp(min=1e-3 * largest)
    # Infinite predictions allow nothing.
    limit = torch.where(predicted.isfinite() & target.isfinite(), per_feature * _RELATIVE, -1.0)
    return differing & ((predicted - target).abs().nan_to_num(torch.inf) > limit)
