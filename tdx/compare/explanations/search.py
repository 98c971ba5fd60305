"""Find the edits that explain a difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import cast

from tdx.compare.edits import Edit, Explanation, Sides
from tdx.compare.explanations.history import history_edits
from tdx.compare.explanations.images import crop_edits, gray_edits, resampling_edits
from tdx.compare.explanations.model import (
    apply_edit,
    is_accepted,
    misses,
    reproduces,
)
from tdx.compare.explanations.vectors import (
    clip_edits,
    discrete_edits,
    few_values_edit,
    moving_statistics,
    noise_edit,
    order_edits,
    scale_edits,
    whole_edits,
)

_SINGLE: tuple[Callable[[Sides], Iterator[Edit]], ...] = (
    *(whole_edits, order_edits, clip_edits, scale_edits),
    *(crop_edits, resampling_edits, gray_edits),
)
_SECOND: tuple[Callable[[Sides], Iterator[Edit]], ...] = (clip_edits, scale_edits, order_edits)
"""Edits that are tried on top of another one."""
_AFTER_CHANNELS = (crop_edits, resampling_edits)
"""Those of what a stage received, which are tried on top of another order of channels."""
_MAX_ALTERNATIVES = 3
_MAX_NUMBERS = 20_000
"""Numbers that edits are tried on first."""
_MAX_SIDE = 64
"""Rows and columns of large images whose numbers edits are tried on first."""


def explain(sides: Sides) -> Explanation | None:
    """Return the cheapest edits that predict the values of the target; ``None`` if there are none.

    Example:
        >>> import torch
        >>> values = torch.rand(8, 1, 3)
        >>> explain(Sides(values, values[:, :, [1, 0, 2]])).edits[0].parameters
        {'order': [1, 0, 2]}
    """
    sides = sides.in_float64()
    if sides.target.numel() == 0 or sides.reference.shape[:2] != sides.target.shape[:2]:
        return None
    same = sides.reference.shape == sides.target.shape
    if same and not misses(sides.reference, sides.target, sides.tolerance):
        return None
    few = _first_records(sides)
    accepted = [
        edit
        for find in _SINGLE
        for edit in find(few)
        if is_accepted(edit, few) and is_accepted(edit, sides)
    ]
    for find in (history_edits, moving_statistics):
        accepted += [edit for edit in find(sides) if is_accepted(edit, sides)]
    listed = few_values_edit(sides)
    if listed is not None:
        count = len(cast("list[object]", listed.parameters["values"]))
        accepted = [edit for edit in accepted if _is_shown_by_few(edit, count)]
        if not accepted:
            return _explanation((listed,), sides)
    if accepted:
        accepted.sort(key=lambda edit: edit.cost)
        best = accepted[0]
        others = [edit for edit in accepted[1:] if edit.kind != best.kind]
        return _explanation((best,), sides, others)
    pairs = [pair for pair in _pairs(few) if reproduces(_explanation(pair, sides), sides)]
    if pairs:
        return _explanation(min(pairs, key=lambda pair: sum(edit.cost for edit in pair)), sides)
    noise = noise_edit(sides)
    return None if noise is None else _explanation((noise,), sides)


def _is_shown_by_few(edit: Edit, count: int) -> bool:
    """Return True if one or two different numbers, and where they are, show an edit."""
    if count == 1:
        return edit.kind == "inactive" and not edit.parameters
    return edit.kind not in ("clip", "rounding", "function")


class Explainer:
    """Explains equal values once, for several comparisons of the same two sides."""

    def __init__(self) -> None:
        self._known: list[tuple[Sides, Explanation | None]] = []

    def explain(self, sides: Sides) -> Explanation | None:
        """Return what :func:`explain` returns."""
        for known, found in self._known:
            if known.is_equal(sides):
                return found
        found = explain(sides)
        self._known.append((sides, found))
        return found


def _first_records(sides: Sides) -> Sides:
    """Return the records that edits are tried on first; a few of images."""
    records = max(_MAX_NUMBERS // max(sides.target[0].numel(), sides.reference[0].numel()), 3)
    if records >= len(sides.target):
        return sides
    return replace(
        sides,
        reference=sides.reference[:records],
        target=sides.target[:records],
        received=None if sides.received is None else sides.received[:records],
        starts=tuple(start for start in sides.starts if start < records),
        others={key: (a[:records], b[:records]) for key, (a, b) in sides.others.items()},
    )


def _explanation(
    edits: tuple[Edit, ...], sides: Sides, alternatives: Sequence[Edit] = ()
) -> Explanation:
    by_text = {edit.text: edit for edit in alternatives}
    shown = tuple(by_text.values())[:_MAX_ALTERNATIVES]
    values = sides.target.numel()
    predicted = edits[0].predict(sides) if edits[0].is_partial else None
    if predicted is not None:
        # It says nothing about the first steps of an episode.
        values = int((~predicted.isnan()).sum())
    return Explanation(edits, shown, values, len(sides.target))


def _every_nth_pixel(sides: Sides) -> Sides | None:
    """Return the values at some rows and columns of large images; ``None`` for smaller values.

    The values that a stage received do not show its images at other places, so they are left out.
    """
    if sides.target[0, 0].numel() <= _MAX_NUMBERS:
        return None
    places = (
        slice(None),
        slice(None),
        *(slice(None, None, max(size // _MAX_SIDE, 1)) for size in sides.target.shape[2:]),
    )
    reference, target = sides.reference[places], sides.target[places]
    return Sides(reference, target, None, sides.starts, sides.tolerance)


def _is_possible(find: Callable[[Sides], Iterator[Edit]], few: Sides) -> bool:
    """Return False if no edit predicts some of the numbers."""
    if not misses(few.reference, few.target, few.tolerance):
        # The others may still differ.
        return True
    return any(is_accepted(edit, few) for edit in find(few))


def _pairs(sides: Sides) -> Iterator[tuple[Edit, Edit]]:
    """Yield two edits that predict the target together: one without numbers, and another one."""
    for first in discrete_edits(sides):
        rest = apply_edit(first, sides)
        if rest is None:
            continue
        finders = _SECOND if rest.reference.shape == sides.target.shape else ()
        few = _every_nth_pixel(rest)
        for find in (*finders, *(_AFTER_CHANNELS if first.kind == "channel order" else ())):
            # What holds for each number holds for some of them; an order and a crop do not.
            is_of_numbers = find in (clip_edits, scale_edits)
            if is_of_numbers and few is not None and not _is_possible(find, few):
                continue
            for edit in find(rest):
                second = replace(edit, is_partial=first.is_partial)
                if is_accepted(second, rest):
                    yield first, second
