"""Edits of stacked steps: how many, in which order, how far apart, and what fills the start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal

import torch
from torch import Tensor

from tdx.compare.edits import Edit, Sides
from tdx.compare.explanations.model import misses
from tdx.compare.values import Tolerance

Fill = Literal["first", "zeros", "unknown"]
Padding = Literal["first", "zeros", "previous episode"]
# What fills the start of an episode, and of the first one.
_PADDINGS: tuple[tuple[Padding, Fill], ...] = (
    ("first", "first"),
    ("zeros", "zeros"),
    ("previous episode", "zeros"),
    ("previous episode", "first"),
    # It was used before the recorded steps.
    ("previous episode", "unknown"),
)
_PADDING_TEXTS = {
    "first": "copies of the first step",
    "zeros": "zeros",
    "previous episode": "steps of the episode before",
}
_MAX_LENGTH = 64
_MAX_SPACING = 4
_MAX_THINNED = 6


@dataclass(frozen=True, slots=True)
class History:
    """How steps are stacked.

    Args:
        dim: Dim of a value along which they are stacked, from 0.
        is_new_dim: True if the dim holds steps only; otherwise the steps are joined along it.
        length: Number of steps.
        newest_first: True if the newest step is the first one.
        spacing: Number of steps from one to the next.
        padding: What fills the steps before the start of an episode.
        by_feature: True if the steps of one feature are neighbors.
        first_padding: What fills the start of the first episode, if the start of the others has
            steps of the episode before.
    """

    dim: int
    is_new_dim: bool
    length: int
    newest_first: bool = False
    spacing: int = 1
    padding: Padding = "first"
    by_feature: bool = False
    first_padding: Fill = "first"

    @property
    def start_of_first(self) -> Fill:
        """What fills the start of the first episode."""
        return self.first_padding if self.padding == "previous episode" else self.padding

    def apply(self, received: Tensor, episodes: list[tuple[int, int]]) -> Tensor:
        """Return the stacked steps, ``[T, R, ...]``; NaN where they are unknown."""
        fill = self.start_of_first
        slots = []
        for age in range(self.length):
            back = age * self.spacing
            slot = torch.zeros_like(received)
            for start, end in episodes:
                if end - start > back:
                    slot[start + back : end] = received[start : end - back]
                for record in range(start, min(start + back, end)):
                    if self.padding == "previous episode" and record >= back:
                        slot[record] = received[record - back]
                    elif fill == "first":
                        slot[record] = received[start]
                    elif fill == "unknown":
                        slot[record] = torch.nan
            slots.append(slot)
        if not self.newest_first:
            slots.reverse()
        place = self.dim + 2
        if self.is_new_dim:
            return torch.stack(slots, place)
        if self.by_feature:
            return torch.stack(slots, place + 1).flatten(place, place + 1)
        return torch.cat(slots, place)


def find_histories(
    received: Tensor, made: Tensor, episodes: list[tuple[int, int]], tolerance: Tolerance
) -> list[History]:
    """Return the ways of stacking that make the values of a stage from what it received."""
    found = []
    for dim, is_new_dim, length in _forms(received, made):
        orders = (False, True)
        by_feature = (False, True) if not is_new_dim and received.shape[dim + 2] > 1 else (False,)
        spacings = range(1, _MAX_SPACING + 1) if length > 1 else (1,)
        # Most are rejected by a few numbers of each image.
        few = _thinned(received, made, dim, is_new_dim)
        for newest_first, spacing, (padding, fill), grouped in product(
            orders, spacings, _PADDINGS, by_feature
        ):
            if fill == "unknown" and len(episodes) == 1:
                # Nothing would show that it is the episode before.
                continue
            history = History(
                dim, is_new_dim, length, newest_first, spacing, padding, grouped, fill
            )
            for frames, stacks in (few, (received, made)):
                predicted = history.apply(frames, episodes)
                if fill == "unknown":
                    predicted = torch.where(predicted.isnan(), stacks, predicted)
                if misses(predicted, stacks, tolerance):
                    break
            else:
                found.append(history)
    return found


def _thinned(received: Tensor, made: Tensor, dim: int, is_new_dim: bool) -> tuple[Tensor, Tensor]:
    """Return a few rows and columns of both, in all dims along which steps are not stacked."""
    for frame_dim in range(received.ndim - 2):
        if frame_dim == dim and not is_new_dim:
            continue
        step = max(received.shape[frame_dim + 2] // _MAX_THINNED, 1)
        place = frame_dim + 2
        received = received[(slice(None),) * place + (slice(None, None, step),)]
        place += is_new_dim and frame_dim >= dim
        made = made[(slice(None),) * place + (slice(None, None, step),)]
    return received, made


def _forms(received: Tensor, made: Tensor) -> Iterator[tuple[int, bool, int]]:
    """Yield the dims along which steps may be stacked, and how many."""
    frame, stacked = tuple(received.shape[2:]), tuple(made.shape[2:])
    if len(stacked) == len(frame) + 1:
        for dim, length in enumerate(stacked):
            if (*stacked[:dim], *stacked[dim + 1 :]) == frame and length <= _MAX_LENGTH:
                yield dim, True, length
    elif len(stacked) == len(frame):
        for dim, (one, other) in enumerate(zip(frame, stacked, strict=True)):
            rest = (*frame[:dim], *frame[dim + 1 :]) == (*stacked[:dim], *stacked[dim + 1 :])
            if rest and one and other % one == 0 and 1 < other // one <= _MAX_LENGTH:
                yield dim, False, other // one


def history_edits(sides: Sides) -> Iterator[Edit]:
    """Yield another length, order, spacing or padding of stacked steps."""
    received = sides.received
    if received is None:
        return
    episodes = sides.episodes()
    ours = find_histories(received, sides.reference, episodes, sides.tolerance)
    if not ours:
        return
    theirs = find_histories(received, sides.target, episodes, sides.tolerance)
    # The reference was recorded from its start on.
    ours = [history for history in ours if history.first_padding != "unknown"]
    pairs = [
        (changes, one, other)
        for one, other in product(ours, theirs)
        if (changes := list(_changes(one, other)))
    ]
    if not pairs:
        return
    texts, one, other = min(
        pairs, key=lambda pair: (len(pair[0]), pair[2].first_padding == "unknown")
    )

    def predict(sides: Sides) -> Tensor | None:
        return None if sides.received is None else other.apply(sides.received, sides.episodes())

    ours_then_theirs = [
        {
            "length": history.length,
            "newest_first": history.newest_first,
            "spacing": history.spacing,
            "padding": history.padding,
            "first_padding": history.start_of_first,
        }
        for history in (one, other)
    ]
    parameters = {**ours_then_theirs[1], "reference": ours_then_theirs[0]}
    hint = "stack as many steps as the reference, in its order, with its padding"
    is_partial = other.first_padding == "unknown"
    yield Edit(
        *("history", ", and ".join(texts), parameters, hint, predict, 0.3), is_partial=is_partial
    )


def _changes(one: History, other: History) -> Iterator[str]:
    if one.length != other.length:
        yield f"it stacks {other.length} instead of {one.length} steps"
    if one.newest_first != other.newest_first:
        place = "first" if other.newest_first else "last"
        yield f"the newest step is the {place} one"
    if one.spacing != other.spacing:
        yield f"its steps are {other.spacing} instead of {one.spacing} apart"
    if one.padding != other.padding:
        own, recorded = _PADDING_TEXTS[other.padding], _PADDING_TEXTS[one.padding]
        yield f"at the start of an episode it has {own} instead of {recorded}"
    elif one.first_padding != other.first_padding and other.first_padding != "unknown":
        own, recorded = _PADDING_TEXTS[other.first_padding], _PADDING_TEXTS[one.first_padding]
        yield f"at the start of the first episode it has {own} instead of {recorded}"
    if one.by_feature != other.by_feature:
        what = "feature" if other.by_feature else "step"
        yield f"the numbers of one {what} are neighbors"
    if one.is_new_dim != other.is_new_dim:
        what = "have a dim of their own" if other.is_new_dim else "are joined along another dim"
        yield f"its steps {what}"
    elif one.dim != other.dim:
        yield f"its steps are along dim {other.dim} instead of {one.dim}"
