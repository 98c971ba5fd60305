"""The rows of two values that differ most, for a person who looks for the cause."""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul

from tdx.compare.model import RowPlace
from tdx.compare.report import ExampleRow
from tdx.compare.values import (
    Tolerance,
    Values,
    differing_elements,
    element_gaps,
    thumbnail_strides,
)
from tdx.foundation.torch_internals import unravel_positions

_MAX_EXAMPLES = 5


def example_rows(
    a: Values, b: Values, tolerance: Tolerance, places: Sequence[Sequence[RowPlace]]
) -> tuple[ExampleRow, ...]:
    """Return the rows that differ most, the worst first, with the number that differs most.

    ``places`` is where each record and row was recorded.

    Example:
        >>> import torch
        >>> one, other = (Values.of([torch.tensor([[1.0, number]])]) for number in (2.0, 5.0))
        >>> example_rows(one, other, Tolerance(), [[RowPlace(0, 0, 0)]])
        (ExampleRow(episode=0, step=0, env=0, element=(1,), expected=2.0, obtained=5.0),)
    """
    is_whole = a.whole is not None and b.whole is not None
    one, other = (side.whole if is_whole else side.numbers for side in (a, b))
    assert one is not None
    assert other is not None
    records, rows = (min(sizes) for sizes in zip(one.shape[:2], other.shape[:2], strict=True))
    one, other = one[:records, :rows], other[:records, :rows]
    if one.shape != other.shape or not one.numel() or len(places) < records:
        return ()
    differing = differing_elements(one, other, tolerance)
    # Complex numbers, and rows that agree, are no examples.
    if one.is_complex() or other.is_complex() or not bool(differing.any()):
        return ()
    gaps = element_gaps(one, other).double().masked_fill(~differing, -1)
    worst = gaps.reshape(records * rows, -1).max(1)
    shape = one.shape[2:]
    strides = [1] * len(shape) if is_whole or not a.digests else thumbnail_strides(a.shape)
    examples: list[ExampleRow] = []
    for row in worst.values.argsort(descending=True, stable=True)[:_MAX_EXAMPLES].tolist():
        if worst.values[row] < 0:
            break
        place = places[row // rows][row % rows]
        position = [int(at) for at in unravel_positions(worst.indices[row], shape)]
        sides = (
            float(side.reshape(records * rows, -1)[row, worst.indices[row]])
            for side in (one, other)
        )
        element = tuple(map(mul, position, strides))
        examples.append(ExampleRow(place.episode, place.step, place.env, element, *sides))
    return tuple(examples)
