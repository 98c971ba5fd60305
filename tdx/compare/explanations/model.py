"""Whether an edit predicts the values of a target."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from tdx.compare.edits import Edit, Explanation, Sides
from tdx.compare.values import Tolerance, differing_elements

_RELATIVE = 2e-5
"""Error of a prediction that rounding in float32 explains, relative to the largest value."""
_SAMPLE = 1024
"""Elements that are compared first."""


def reproduces(explanation: Explanation, sides: Sides) -> bool:
    """Return True if the edits of an explanation predict the target's values in another rollout."""
    sides = sides.in_float64()
    *before, last = explanation.edits
    for edit in before:
        edited = apply_edit(edit, sides)
        if edited is None:
            return False
        sides = edited
    return is_accepted(last, sides)


def apply_edit(edit: Edit, sides: Sides) -> Sides | None:
    """Return the sides with a reference that has an edit.

    What is cut out of an image, or resized, has the same order of channels before it: the stage
    received them in that order, too.
    """
    predicted = edit.predict(sides)
    if predicted is None:
        return None
    received = sides.received
    if edit.kind == "channel order" and received is not None:
        dim = cast("int", edit.parameters["dim"]) + 2
        if received.ndim == sides.reference.ndim and received.shape[dim] == predicted.shape[dim]:
            received = edit.predict(replace(sides, reference=received))
    return replace(sides, reference=predicted, received=received)


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
    return not misses(predicted, target, sides.tolerance, edit.slack)


def misses(predicted: Tensor, target: Tensor, tolerance: Tolerance, slack: float = 0.0) -> bool:
    """Return True if a prediction misses any element of a target, see :func:`differing_from`."""
    if target.numel() > 4 * _SAMPLE and target.is_floating_point():
        # Most predictions of images are wrong nearly everywhere: a few elements show it.
        stride = target.numel() // _SAMPLE | 1
        one, other = predicted.flatten()[::stride], target.flatten()[::stride]
        error = (one - other).abs()
        # The largest that is allowed for any element; an infinite element decides nothing here.
        rounding = _RELATIVE * float(target.nan_to_num(0, 0, 0).abs().max())
        allowed = max(tolerance.atol, slack, rounding)
        allowed_here = allowed + tolerance.rtol * torch.maximum(one.abs(), other.abs())
        if bool(((error > allowed_here) & error.isfinite()).any()):
            return True
    return bool(differing_from(predicted, target, tolerance, slack).any())


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
