"""Predict what a stage of the reference makes of other values than it has received."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import permutations

from torch import Tensor

from tdx.compare.edits import Sides
from tdx.compare.explanations.history import find_histories
from tdx.compare.explanations.images import image_stages
from tdx.compare.explanations.model import misses
from tdx.compare.explanations.vectors import (
    FUNCTIONS,
    channel_maps,
    fit_map,
    match_features,
)


def predict_stage(sides: Sides, received: Tensor) -> tuple[Tensor, float] | None:
    """Return what the stage of the reference would make of what the target's stage received.

    With it comes the error that is allowed in each value. ``None``: what the stage does is not
    known: neither a scale, a clip, an order, a history, nor a crop, a resize or a gray image.
    """
    sides, received = sides.in_float64(), received.double()
    own = sides.received
    if own is None or own.shape[:2] != received.shape[:2] or own.ndim != received.ndim:
        return None
    if own.shape != received.shape and not 5 <= own.ndim <= 6:
        # Features of a vector have no counterpart; images have their channels.
        return None
    for stage, slack in _candidates(sides, own, received):
        made = stage(own)
        if made.shape == sides.reference.shape and not misses(
            made, sides.reference, sides.tolerance, slack
        ):
            return stage(received), slack
    return None


def _candidates(
    sides: Sides, own: Tensor, received: Tensor
) -> Iterator[tuple[Callable[[Tensor], Tensor], float]]:
    """Yield what the stage may do, and the error that is allowed in each value."""
    made, tolerance = sides.reference, sides.tolerance
    is_same_shape = own.shape == received.shape
    yield (lambda values: values), 0.0
    if own.ndim == made.ndim == 3:
        order = match_features(own, made, tolerance)
        if order is not None and -1 not in order:
            yield (lambda values: values[:, :, order]), 0.0
    for axes in permutations(range(2, own.ndim)) if 4 <= own.ndim <= 5 else ():
        if tuple(own.shape[axis] for axis in axes) == tuple(made.shape[2:]):
            yield partial(Tensor.permute, dims=(0, 1, *axes)), 0.0
    # The limits of a clip are known only where values have reached them.
    scaled = fit_map(own, made, tolerance, joint=not is_same_shape)
    for known in (scaled, *channel_maps(own, made, tolerance)):
        if known is not None and known.fits(received):
            yield known.apply, 0.0
    if own.shape == made.shape and own.ndim <= 4:
        yield from ((function, 0.0) for _, function in FUNCTIONS)
    if is_same_shape:
        yield from image_stages(own, made)
    for history in find_histories(own, made, sides.episodes(), tolerance):
        yield partial(history.apply, episodes=sides.episodes()), 0.0
