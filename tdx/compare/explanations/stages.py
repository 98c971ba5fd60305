"""Predict what a stage of the reference makes of other values than it has received."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from tdx.compare.explanations.history import find_histories
from tdx.compare.explanations.model import Sides, differing_from
from tdx.compare.explanations.vectors import fit_map, match_features


def predict_stage(sides: Sides, received: Tensor) -> Tensor | None:
    """Return what the stage of the reference would make of what the target's stage received.

    Args:
        sides: Values of both sides; ``sides.received`` is what the stage of the reference received.
        received: What the stage of the target received, of the same shape.

    Returns:
        The values; ``None`` if what the stage does is neither a scale, a clip, an order of the
        features nor a history.
    """
    sides, received = sides.in_float64(), received.double()
    if sides.received is None or sides.received.shape != received.shape:
        return None
    for predicted, check in _candidates(sides, sides.received, received):
        if check.shape == sides.reference.shape and not bool(
            differing_from(check, sides.reference, sides.tolerance).any()
        ):
            return predicted
    return None


def _candidates(sides: Sides, own: Tensor, received: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield predictions for the target, and what they say of the reference."""
    made, tolerance = sides.reference, sides.tolerance
    yield received, own
    if own.ndim == made.ndim == 3:
        order = match_features(own, made, tolerance)
        if order is not None and -1 not in order:
            yield received[:, :, order], own[:, :, order]
    # The limits of a clip are known only where values have reached them.
    scaled = fit_map(own, made, tolerance)
    if scaled is not None:
        yield scaled.apply(received), scaled.apply(own)
    if torch.equal(own, received):
        return
    for history in find_histories(own, made, sides, tolerance):
        episodes = sides.episodes()
        yield history.apply(received, episodes), history.apply(own, episodes)
