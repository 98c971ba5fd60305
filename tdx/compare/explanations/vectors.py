"""Edits of single numbers and of the features of a vector."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import permutations

import torch
from torch import Tensor

from tdx.compare.edits import STOP_UPDATES, Edit, Sides
from tdx.compare.explanations.model import differing_from, misses
from tdx.compare.orders import find_order
from tdx.compare.values import EXACT, Tolerance, differing_elements, format_number

_MAX_FEATURES = 1_024
_MAX_SHOWN = 12
_MAX_COUNTED = 10_000
_LIKENESS = 0.5
"""Correlation of a feature with the one that it may be."""
_MAX_SHIFT = 4
_MAX_PASSES = 3
"""Runs over the same values, of which the last one is compared."""
_MIN_PIXELS = 1_000
"""Pixels that may differ by noise alone."""
_MIN_CORRELATION = 0.02
"""Smallest correlation of neighboring pixels that is more than an artifact of rounding."""
_FEW = 2
"""Different numbers that a clip, a scale and a shift turn into the same ones."""
_MIN_CONSTANT = 3
"""Equal numbers of a feature that is called constant."""
_RANGES = (
    (255.0, 0.0, "0 … 255 instead of 0 … 1"),
    (1 / 255, 0.0, "0 … 1 instead of 0 … 255"),
    (2.0, -1.0, "-1 … 1 instead of 0 … 1"),
    (0.5, 0.5, "0 … 1 instead of -1 … 1"),
    (2 / 255, -1.0, "-1 … 1 instead of 0 … 255"),
    (127.5, 127.5, "0 … 255 instead of -1 … 1"),
)


def whole_edits(sides: Sides) -> Iterator[Edit]:
    """Yield edits without parameters: a stage that does nothing, works twice, or late."""
    received = sides.received
    if received is not None:
        yield Edit(
            "inactive",
            "the target passes on what it receives",
            hint="check that the stage reads and writes this key, and that it is switched on",
            predict=lambda sides: sides.received,
            cost=0.0,
        )
        yield from _inactive_records(received.shape == sides.reference.shape)
        twice = fit_map(received, sides.reference)
        if twice is not None and twice.is_change:
            yield Edit(
                "twice",
                "it is applied twice",
                hint="remove one of the two",
                predict=lambda sides, twice=twice: twice.apply(sides.reference),  # type: ignore[misc]
                cost=0.2,
            )
    yield from _swapped_statistics(sides)
    yield from _deltas(sides)
    yield from _smoothings(sides)
    yield from _time_shifts(sides)
    yield from _roundings(sides)
    yield from function_edits(sides)


def _inactive_records(is_same_shape: bool) -> Iterator[Edit]:
    """Yield a stage that does nothing after a reset, or nothing but that."""
    if not is_same_shape:
        return
    for records, others, text in (
        ("resets", "steps", "after a reset it passes on what it receives; in steps it is right"),
        (
            "steps",
            "resets",
            "in steps it passes on what it receives; it is right only after a reset",
        ),
    ):

        def predict(sides: Sides, *, in_resets: bool = records == "resets") -> Tensor | None:
            if sides.received is None:
                return None
            is_reset = torch.zeros(len(sides.reference), dtype=torch.bool)
            is_reset[[start for start, _ in sides.episodes()]] = True
            passes = (is_reset == in_resets).reshape(-1, *[1] * (sides.reference.ndim - 1))
            return torch.where(passes, sides.received, sides.reference)

        hint = f"apply the stage to the results of {records} too, not only to those of {others}"
        yield Edit("inactive", text, {"in": records}, hint, predict, 0.1)


class FeatureMap:
    """A factor and an offset for each feature, with the limits of a clip.

    Args:
        factor: Of each feature.
        offset: Of each feature.
        limits: Smallest and largest value. ``None``: they are not limited.
    """

    def __init__(
        self, factor: Tensor, offset: Tensor, limits: tuple[float, float] | None = None
    ) -> None:
        self.factor, self.offset, self.limits = factor, offset, limits

    @property
    def is_change(self) -> bool:
        """True if it changes anything."""
        same = torch.allclose(self.factor, torch.ones_like(self.factor), 1e-6, 1e-9)
        return not same or bool(self.offset.abs().gt(1e-9).any()) or self.limits is not None

    def fits(self, values: Tensor) -> bool:
        """Return True if values have as many features, or channels."""
        sizes = zip(reversed(self.factor.shape), reversed(values.shape), strict=False)
        return all(size in (1, own) for size, own in sizes)

    def apply(self, values: Tensor) -> Tensor:
        """Return the values of the other side."""
        result = values * self.factor + self.offset
        return result if self.limits is None else result.clamp(*self.limits)


def fit_map(
    one: Tensor, other: Tensor, tolerance: Tolerance = EXACT, *, joint: bool = False
) -> FeatureMap | None:
    """Return the map from one side to the other ``[T, R, ...]``, if there is one for each feature.

    ``joint``: one factor and one offset for all features.
    """
    if one.shape != other.shape or one.ndim < 2:
        return None
    size = 1 if joint else max(one[0, 0].numel(), 1)
    if size > _MAX_FEATURES:
        return None
    rows, columns = (side.reshape(-1, size) for side in (one, other))
    for limits in _limits_of(columns):
        fitted = _fit_columns(rows, columns, limits)
        if fitted is None:
            continue
        factor, offset = fitted
        if not joint:
            factor, offset = (part.reshape(one.shape[2:]) for part in fitted)
        found = FeatureMap(factor, offset, limits)
        if not misses(found.apply(one), other, tolerance):
            return found
    return None


def channel_maps(one: Tensor, other: Tensor, tolerance: Tolerance) -> Iterator[FeatureMap]:
    """Yield the maps of images with a factor and an offset for each channel."""
    # Images may be stacked, or have a batch dim of their own.
    if one.shape != other.shape or not 5 <= one.ndim <= 6:
        return
    for dim in (one.ndim - 3, one.ndim - 1):
        channels = one.shape[dim]
        if 2 <= channels <= 4:
            ours, theirs = (side.movedim(dim, -1).reshape(-1, 1, channels) for side in (one, other))
            found = fit_map(ours, theirs, tolerance)
            if found is not None:
                shape = (channels,) if dim == one.ndim - 1 else (channels, 1, 1)
                factor, offset = found.factor.reshape(shape), found.offset.reshape(shape)
                yield FeatureMap(factor, offset, found.limits)


def _limits_of(columns: Tensor) -> Iterator[tuple[float, float] | None]:
    """Yield no limits, then the smallest and largest value if several have them."""
    yield None
    limits = _reached_limits(columns)
    if limits[0] < limits[1] and limits != (-math.inf, math.inf):
        yield limits


def _fit_columns(
    rows: Tensor, columns: Tensor, limits: tuple[float, float] | None
) -> tuple[Tensor, Tensor] | None:
    used = rows.isfinite() & columns.isfinite()
    if limits is not None:
        used &= (columns > limits[0]) & (columns < limits[1])
    count = used.sum(0).clamp(min=1)
    x, y = torch.where(used, rows, 0.0), torch.where(used, columns, 0.0)
    mean_x, mean_y = x.sum(0) / count, y.sum(0) / count
    dx, dy = (torch.where(used, side - mean, 0.0) for side, mean in ((x, mean_x), (y, mean_y)))
    spread = (dx * dx).sum(0)
    is_fixed = spread <= 1e-20 * (1 + mean_x * mean_x)
    factor = torch.where(is_fixed, 0.0, (dx * dy).sum(0) / spread.clamp(min=1e-300))
    # A feature that does not move shows only the sum of both: prefer an offset.
    factor = torch.where(is_fixed & (mean_x - mean_y).abs().le(1e-12), 1.0, factor)
    offset = mean_y - factor * mean_x
    is_plain = is_fixed & (count > 0) & factor.eq(0)
    factor = torch.where(is_plain, 1.0, factor)
    offset = torch.where(is_plain, mean_y - mean_x, offset)
    # Two numbers per feature are fitted: fewer than three distinct values prove nothing.
    few = slice(None, _MAX_COUNTED)
    largest = rows.masked_fill(~used, -math.inf).amax(0)
    ordered = torch.where(used[few], rows[few], largest).sort(0).values
    distinct = 1 + (ordered[1:] != ordered[:-1]).sum(0)
    moving = ~is_fixed
    if bool((moving & (distinct < 3)).any()) or not bool(moving.any()):
        return None
    # An offset that is lost in the rounding of the values is none.
    scale = y.abs().amax(0).clamp(min=1e-12)
    offset = torch.where(offset.abs() <= 1e-6 * scale, 0.0, offset)
    return _rounded(factor), _rounded(offset)


def _rounded(values: Tensor) -> Tensor:
    """Round numbers that are within rounding of one with few digits."""
    rounded = torch.tensor([float(f"{float(value):.4g}") for value in values], dtype=values.dtype)
    is_near = (rounded - values).abs() <= 1e-7 * values.abs().clamp(min=1e-3)
    return torch.where(is_near, rounded, values)


def _swapped_statistics(sides: Sides) -> Iterator[Edit]:
    received = sides.received
    if received is None:
        return
    for key, (taken, made) in sides.others.items():
        if taken.shape != received.shape or (found := fit_map(taken, made)) is None:
            continue
        yield Edit(
            "swapped statistics",
            f"it is scaled with the statistics of {key}",
            {"key": key},
            f"give each key its own statistics, not those of {key}",
            lambda sides, found=found: (  # type: ignore[misc]
                None if sides.received is None else found.apply(sides.received)
            ),
            0.5,
        )


def _deltas(sides: Sides) -> Iterator[Edit]:
    reference = sides.reference
    for sign, verb in ((-1.0, "minus"), (1.0, "plus")):
        for key, (taken, _) in sides.others.items():
            if taken.shape[:2] != reference.shape[:2] or taken.shape[2:] != reference.shape[2:]:
                continue
            yield Edit(
                "delta",
                f"it is the value of the reference {verb} {key}",
                {"of": key, "sign": sign},
                "use absolute or relative values on both sides",
                lambda sides, key=key, sign=sign: (  # type: ignore[misc]
                    sides.reference + sign * sides.others[key][0]
                ),
                0.6,
            )
    yield Edit(
        "delta",
        "it is the change since the step before, not the value",
        {"of": "the step before", "sign": -1.0},
        "use absolute or relative values on both sides",
        lambda sides: sides.reference - _shifted(sides, 1),
        0.6,
        is_partial=True,
    )
    yield Edit(
        "delta",
        "it is the value, not the change since the step before",
        {"of": "the step before", "sign": 1.0},
        "use absolute or relative values on both sides",
        _from_changes,
        0.6,
        is_partial=True,
    )


def _from_changes(sides: Sides) -> Tensor | None:
    """Predict values whose changes are those of the reference, from the step before."""
    if sides.target.shape != sides.reference.shape:
        return None
    return _shifted(sides, 1, sides.target) + sides.reference


def _smoothings(sides: Sides) -> Iterator[Edit]:
    """Yield a weighted mean of the value and of what the target was in the step before."""
    reference, target = sides.reference, sides.target
    if reference.shape != target.shape or sides.row_dims > 1:
        return
    before = _shifted(sides, 1, target)
    gap, change = (side - before for side in (reference, target))
    is_used = gap.isfinite() & change.isfinite()
    gap, change = gap[is_used], change[is_used]
    weight = float((gap @ change) / (gap @ gap).clamp(min=1e-12))
    # One number is fitted.
    if len(gap) < _MIN_CONSTANT or not 1e-3 < weight < 1 - 1e-3:
        return
    weight = float(_rounded(torch.tensor([weight], dtype=torch.float64)))
    yield Edit(
        "smoothing",
        f"it is smoothed: {format_number(weight)} of the value, and {format_number(1 - weight)} of "
        "what it was in the step before",
        {"weight": weight},
        "smooth the values on both sides, or on neither",
        lambda sides: weight * sides.reference + (1 - weight) * _shifted(sides, 1, sides.target),
        1.2,
        is_partial=True,
    )


def _shifted(sides: Sides, steps: int, values: Tensor | None = None) -> Tensor:
    """Return values some steps before, by default the reference; NaN at the start of an episode."""
    values = sides.reference if values is None else values
    shifted = torch.full_like(values, torch.nan)
    for start, end in sides.episodes():
        if end - start > abs(steps):
            if steps > 0:
                shifted[start + steps : end] = values[start : end - steps]
            else:
                shifted[start : end + steps] = values[start - steps : end]
    return shifted


def _time_shifts(sides: Sides) -> Iterator[Edit]:
    for count in range(1, _MAX_SHIFT + 1):
        for steps, word in ((count, "late"), (-count, "early")):
            unit = "step" if count == 1 else "steps"
            yield Edit(
                "time shift",
                f"it comes {count} {unit} {word}",
                {"steps": steps},
                "return the value of the same step",
                lambda sides, steps=steps: _shifted(sides, steps),  # type: ignore[misc]
                0.4 + 0.1 * count,
                is_partial=True,
            )


_ROUNDINGS: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("to whole numbers", torch.round),
    ("down to whole numbers", torch.floor),
    ("toward zero to whole numbers", torch.trunc),
    ("to float16", lambda values: values.to(torch.float16).double()),
    ("to bfloat16", lambda values: values.to(torch.bfloat16).double()),
)


def _roundings(sides: Sides) -> Iterator[Edit]:
    for text, round_values in _ROUNDINGS:
        yield Edit(
            "rounding",
            f"it is rounded {text}",
            {"to": text.rpartition("to ")[2]},
            "keep the dtype of the reference until the end of the stage",
            lambda sides, round_values=round_values: round_values(sides.reference),  # type: ignore[misc]
            0.5,
        )


FUNCTIONS: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("sign(x)", torch.sign),
    ("|x|", torch.abs),
    ("tanh(x)", torch.tanh),
    ("sigmoid(x)", torch.sigmoid),
    ("log(x)", torch.log),
    ("log(1 + x)", torch.log1p),
    ("symlog(x)", lambda values: values.sign() * values.abs().log1p()),
    ("sqrt(x)", torch.sqrt),
    ("sign(x) sqrt(|x|)", lambda values: values.sign() * values.abs().sqrt()),
    (
        # Of the rewards of R2D2 and MuZero.
        "sign(x) (sqrt(|x| + 1) - 1) + 0.001 x",
        lambda values: values.sign() * ((values.abs() + 1).sqrt() - 1) + 0.001 * values,
    ),
)
"""Functions of single numbers."""


def function_edits(sides: Sides) -> Iterator[Edit]:
    """Yield functions of single numbers: of the reference, of what was received, or missing."""
    reference, target, received = sides.reference, sides.target, sides.received
    # Many functions make a constant, or are made from one.
    if reference.shape != target.shape or any(
        bool((side == side[0, 0]).all()) for side in (reference, target)
    ):
        return
    for name, function in FUNCTIONS:
        hint = f"apply {name} on both sides, or on neither"
        yield Edit(
            "function",
            f"it is {name} where the reference has x",
            {"function": name, "of": "reference"},
            hint,
            lambda sides, function=function: function(sides.reference),  # type: ignore[misc]
            1.1,
        )

        def predict_argument(
            sides: Sides, function: Callable[[Tensor], Tensor] = function
        ) -> Tensor:
            # Rounding, and the sign, lose what an inverse function would need.
            values = sides.reference
            is_result = (function(sides.target) - values).abs() <= 1e-5 * (1 + values.abs())
            return torch.where(is_result, sides.target, torch.nan)

        text = f"it is x where the reference has {name}"
        parameters = {"function": name, "of": "target"}
        yield Edit("function", text, parameters, hint, predict_argument, 1.2)
        if received is not None and received.shape == reference.shape:
            yield Edit(
                "function",
                f"it is {name} of what it receives",
                {"function": name, "of": "received"},
                "apply the function of the reference",
                lambda sides, function=function: (  # type: ignore[misc]
                    None if sides.received is None else function(sides.received)
                ),
                1.3,
            )


def few_values_edit(sides: Sides) -> Edit | None:
    """Return the edit that lists the values, where they are too few to show what changes them.

    A reward of 2 instead of 3 in all steps is clipped, scaled or shifted.
    """
    if sides.reference.shape != sides.target.shape or sides.target.numel() < _MIN_CONSTANT:
        return None
    one, other = sides.reference.flatten(), sides.target.flatten()
    values: list[tuple[float, float]] = []
    is_left = torch.ones_like(one, dtype=torch.bool)
    while bool(is_left.any()):
        if len(values) == _FEW:
            return None
        first = int(is_left.int().argmax())
        values.append((float(one[first]), float(other[first])))
        is_left &= (one != one[first]) | (other != other[first])
    values.sort()
    changed = [f"{format_number(y)} instead of {format_number(x)}" for x, y in values if x != y]
    kept = [format_number(x) for x, y in values if x == y]
    text = f"it is always {changed[0]}" if len(values) == 1 else f"it is {' and '.join(changed)}"
    text += f", and {kept[0]} is kept" if kept else ""

    def predict(sides: Sides) -> Tensor:
        predicted = torch.full_like(sides.reference, torch.nan)
        for x, y in values:
            predicted[sides.reference == x] = y
        return predicted

    parameters = {"values": [{"expected": x, "obtained": y} for x, y in values]}
    return Edit("few values", text, parameters, None, predict)


def scale_edits(sides: Sides) -> Iterator[Edit]:
    """Yield a factor and an offset: named ranges, of all features, and of each."""
    reference, target = sides.reference, sides.target
    if reference.shape != target.shape:
        return
    for factor, offset, text in _RANGES:
        yield Edit(
            "range",
            f"its range is {text}",
            {"factor": factor, "offset": offset},
            _undo_hint(factor, offset),
            lambda sides, factor=factor, offset=offset: sides.reference * factor + offset,  # type: ignore[misc]
            0.9,
        )
    joint = fit_map(reference, target, sides.tolerance, joint=True)
    if joint is not None and joint.is_change:
        factor, offset = float(joint.factor), float(joint.offset)
        parts = _scale_texts(factor, offset)
        if parts or joint.limits is None:
            text = f"it is {' and '.join(parts) or 'slightly scaled'}"
            parameters: dict[str, object] = {"factor": factor, "offset": offset}
            cost = 2.0
            hint = _undo_hint(factor, offset)
            if joint.limits is not None:
                hint = None
                text += f", and clipped to {_limits_text(joint.limits)}"
                parameters |= {"low": joint.limits[0], "high": joint.limits[1]}
                cost = 3.5
            apply = joint.apply
            yield Edit("scale", text, parameters, hint, lambda sides: apply(sides.reference), cost)
    for by_channel in channel_maps(reference, target, sides.tolerance):
        yield _feature_scale(by_channel, None, "reference", "channel")
    yield from _widths(sides)
    # Clipped values of the reference are lost, unless the stage received more.
    sources = [("reference", reference)]
    if sides.received is not None and sides.received.shape == target.shape:
        sources.append(("received", sides.received))
    # Features may be stacked, or have a batch dim: all rows of them have the same scale.
    is_vector = 1 <= sides.row_dims <= 2 and reference.shape[-1] > 1
    for name, source in sources if is_vector else ():
        taken, rows = source.flatten(1, -2), target.flatten(1, -2)
        found = fit_map(taken, rows, sides.tolerance)
        if found is None:
            continue
        base = None
        if name == "received":
            base = fit_map(taken, reference.flatten(1, -2), sides.tolerance)
        if name == "received" and base is None:
            continue
        yield _feature_scale(found, base, name)


def _widths(sides: Sides) -> Iterator[Edit]:
    """Yield statistics with the same means and other widths."""
    received = sides.received
    if received is None or received.shape != sides.target.shape or not 1 <= sides.row_dims <= 2:
        return
    received, reference, target = (
        side.flatten(1, -2) for side in (received, sides.reference, sides.target)
    )
    ours = fit_map(received, reference, sides.tolerance)
    theirs = fit_map(received, target, sides.tolerance)
    if ours is None or theirs is None or bool((ours.factor * theirs.factor <= 0).any()):
        return
    means, own_means = (-each.offset / each.factor for each in (ours, theirs))
    widths = ours.factor / theirs.factor
    spread = received.flatten(0, 1).std(0).clamp(min=1e-6)
    is_same = bool(((means - own_means).abs() <= 1e-3 * spread).all())
    if not is_same or float(widths.max() - widths.min()) <= 1e-3 * float(widths.max()):
        return
    shown = ", ".join(map(format_number, widths[:_MAX_SHOWN].tolist()))
    shown += ", …" if len(widths) > _MAX_SHOWN else ""
    yield Edit(
        "width",
        f"the widths of its statistics are {shown} times those of the reference, its means are not",
        {"widths": widths.tolist()},
        "load the statistics of the reference",
        lambda sides: None if sides.received is None else theirs.apply(sides.received),
        2.8,
    )


def moving_statistics(sides: Sides) -> Iterator[Edit]:
    """Yield statistics that each record updates, from those of the reference on.

    The update is that of Gymnasium and Stable-Baselines3: the mean and the variance of all values
    so far, where those of the reference stand for a number of values.
    """
    received, target = sides.received, sides.target
    if received is None or received.shape != target.shape or received.ndim < 3:
        return
    ours = fit_map(received, sides.reference, sides.tolerance)
    if ours is None or bool((ours.factor <= 0).any()) or len(target) < 4:
        return
    # Statistics in plain attributes are not restored: an earlier run may have updated them.
    for passes in range(_MAX_PASSES):
        for count in _counts_of(received, target, ours, passes):
            yield Edit(
                "moving statistics",
                f"its statistics are updated in each step, from {format_number(count)} values on",
                {"count": count},
                STOP_UPDATES,
                lambda sides, count=count, passes=passes: (  # type: ignore[misc]
                    None
                    if sides.received is None
                    else _updated(sides.received, ours, count, passes)
                ),
                1.5,
            )


def _counts_of(received: Tensor, target: Tensor, ours: FeatureMap, passes: int) -> list[float]:
    """Return the numbers of values that the first record allows, the likeliest first."""
    counts = [0.0001, *range(1, 101), *(10.0**power for power in range(3, 7))]
    # The statistics of one record need the sums up to it, not those of all records.
    earlier = torch.cat([received] * passes + [received[:1]])
    number, total, squares = _sums(earlier)
    number, total, squares = number[-1], total[-1], squares[-1]

    def gap(count: float) -> float:
        scaled = _scale(received[0, 0], ours, count, number, total, squares)
        return float((scaled - target[0, 0]).abs().max())

    best = min((gap(count), float(count)) for count in counts)[1]
    # Between two of the counts that are nearest, the gap has one minimum.
    low, high = best / 2, best * 2
    for _ in range(80):
        one, other = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, other) if gap(one) <= gap(other) else (one, high)
    refined = (low + high) / 2
    whole = float(round(refined))
    near = abs(refined - whole) <= 1e-3 * max(refined, 1)
    return [whole] if near and whole else [refined, best]


def _updated(received: Tensor, ours: FeatureMap, count: float, passes: int) -> Tensor:
    """Return values scaled by statistics that they update, after earlier passes over all."""
    rows = torch.cat([received] * (passes + 1))
    sums = (part[-len(received) :, None] for part in _sums(rows))
    return _scale(received, ours, count, *sums)


def _sums(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return how many values each record has seen, their sums and the sums of their squares."""
    places = torch.arange(1, len(rows) + 1, dtype=rows.dtype).reshape(-1, *[1] * (rows.ndim - 2))
    return rows.shape[1] * places, rows.sum(1).cumsum(0), (rows**2).sum(1).cumsum(0)


def _scale(
    values: Tensor, ours: FeatureMap, count: float, number: Tensor, total: Tensor, squares: Tensor
) -> Tensor:
    """Scale values by the statistics of the reference, updated by the sums of some values."""
    mean, variance = -ours.offset / ours.factor, ours.factor**-2
    counts = count + number
    means = (count * mean + total) / counts
    seconds = (count * (variance + mean**2) + squares) / counts
    return (values - means) / (seconds - means**2).clamp(min=1e-12).sqrt()


def _feature_scale(
    found: FeatureMap, base: FeatureMap | None, source: str, part: str = "feature"
) -> Edit:
    """Return the edit of a factor and an offset for each feature, or for each channel."""
    factor, offset = found.factor.flatten(), found.offset.flatten()
    if base is not None:
        # Relative to the reference: target = factor * reference + offset.
        own = base.factor.flatten()
        ratio = torch.where(own == 0, 1.0, factor / own)
        factor, offset = ratio, offset - ratio * base.offset.flatten()
    changed = (factor - 1).abs().gt(1e-5) | offset.abs().gt(1e-6)
    indices = changed.nonzero().flatten().tolist()
    shown = [
        f"{part} {index} is {' and '.join(texts)}"
        for index in indices[:3]
        if (texts := _scale_texts(float(factor[index]), float(offset[index])))
    ]
    more = f", and {len(indices) - 3} more" if len(indices) > 3 else ""
    text = f"each {part} has its own scale: " if len(indices) > 1 else ""
    is_limited = found.limits is not None and (base is None or base.limits != found.limits)
    if indices or not is_limited:
        text += ", ".join(shown) + more if shown else f"each {part} is slightly scaled"
    cost = 3.0 + 0.5 * (source == "received") + 0.01 * len(indices)
    parameters: dict[str, object] = {"factor": factor.tolist(), "offset": offset.tolist()}
    if found.limits is not None:
        cost += 1
        if is_limited:
            text += f"{', and' if text else 'it is'} clipped to {_limits_text(found.limits)}"
        parameters |= {"low": found.limits[0], "high": found.limits[1]}
    hint = "compare the statistics, or the low and high, of both sides"

    def predict(sides: Sides) -> Tensor | None:
        values = sides.received if source == "received" else sides.reference
        return None if values is None else found.apply(values)

    return Edit("feature scale", text, parameters, hint, predict, cost)


def _scale_texts(factor: float, offset: float) -> list[str]:
    parts = []
    if abs(factor - 1) > 1e-4:
        parts.append(f"multiplied by {format_number(factor)}")
    if abs(offset) > 1e-5:
        parts.append(f"shifted by {format_number(offset)}")
    return parts


def _undo_hint(factor: float, offset: float) -> str | None:
    """Return the step that takes a scale back."""
    steps = []
    if abs(offset) > 1e-5:
        verb = "subtract" if offset > 0 else "add"
        steps.append(f"{verb} {format_number(abs(offset))}")
    if factor and abs(factor - 1) > 1e-4:
        is_small = abs(factor) < 1
        number = format_number(1 / factor if is_small else factor)
        steps.append(f"{'multiply' if is_small else 'divide'} by {number}")
    return " and then ".join(steps) or None


def _limits_text(limits: tuple[float, float]) -> str:
    if math.isinf(limits[0]):
        return f"at most {format_number(limits[1])}"
    if math.isinf(limits[1]):
        return f"at least {format_number(limits[0])}"
    return f"[{format_number(limits[0])}, {format_number(limits[1])}]"


def clip_edits(sides: Sides) -> Iterator[Edit]:
    """Yield a clip of the target, and one that the target lacks."""
    reference, target = sides.reference, sides.target
    if reference.shape != target.shape:
        return
    differing = differing_from(reference, target, sides.tolerance)
    # Values between the limits are those of the reference.
    if bool(differing.all()) or not bool(differing.any()) or not bool(target.isfinite().any()):
        return
    ours, theirs = (_reached_limits(side) for side in (reference, target))
    changed, before = target[differing], reference[differing]
    is_low, is_high = (changed > before), (changed < before)
    low = float(changed[is_low].max()) if bool(is_low.any()) else -math.inf
    high = float(changed[is_high].min()) if bool(is_high.any()) else math.inf
    # One number that is clipped may be any other number: a limit needs two.
    counts = int((changed == low).sum()), int((changed == high).sum())
    if low <= high and 1 not in counts:
        limits = low, high
        # A bound that both sides have stays.
        yield Edit(
            "clip",
            f"it is clipped to {_limits_text(limits)}",
            {
                "low": low if math.isfinite(low) else ours[0],
                "high": high if math.isfinite(high) else ours[1],
                "reference": {"low": ours[0], "high": ours[1]},
            },
            "clip both sides alike",
            lambda sides: sides.reference.clamp(*limits),
            1.0,
        )
    # The reference is clipped: what lies beyond its bounds is seen only before the stage.
    at_bound = (reference == ours[0]) | (reference == ours[1])
    beyond = (target > ours[1]) | (target < ours[0])
    if not bool((differing & ~(at_bound & beyond)).any()):
        own = sides.received is not None and fit_map(sides.received, target, sides.tolerance)
        is_clipped = any(map(math.isfinite, theirs))
        text = f"it is not clipped to {_limits_text(ours)}"
        parameters: dict[str, object] = {"low": -math.inf, "high": math.inf}
        if is_clipped and not (own and own.limits is None):
            text = f"it is clipped to {_limits_text(theirs)} instead of {_limits_text(ours)}"
            parameters = {"low": theirs[0], "high": theirs[1]}
        parameters["reference"] = {"low": ours[0], "high": ours[1]}

        def predict(sides: Sides, limits: tuple[float, float] = ours) -> Tensor:
            # Between the bounds the values are those of the reference, beyond them the target's.
            values, seen = sides.reference, sides.target
            free = (seen > limits[1]) | (seen < limits[0])
            is_bound = (values - seen.clamp(*limits)).abs() <= 1e-5 * (1 + values.abs())
            return torch.where(free & is_bound, seen, values)

        if own and own.limits != ours:
            found = own

            def predict(sides: Sides, limits: tuple[float, float] = ours) -> Tensor:
                assert sides.received is not None
                return found.apply(sides.received)

        yield Edit("clip", text, parameters, "clip both sides alike", predict, 1.5)


def _reached_limits(values: Tensor) -> tuple[float, float]:
    """Return the smallest and the largest value where several have it, as after a clip."""
    finite = values[values.isfinite()]
    if not finite.numel():
        return -math.inf, math.inf
    low, high = float(finite.min()), float(finite.max())
    is_low, is_high = (int((finite == limit).sum()) > 1 for limit in (low, high))
    return (low if is_low else -math.inf), (high if is_high else math.inf)


def order_edits(sides: Sides) -> Iterator[Edit]:
    """Yield another order of features, channels and axes, a selection, and a padding."""
    reference, target = sides.reference, sides.target
    # Features may be stacked: all steps have them in the same order.
    if 3 <= reference.ndim == target.ndim <= 4 and reference.shape[:-1] == target.shape[:-1]:
        order = match_features(reference.flatten(1, -2), target.flatten(1, -2), sides.tolerance)
        if order is not None:
            yield _reordered(order, sides)
    if sides.row_dims == 1:
        return
    inner = range(2, reference.ndim)
    if reference.shape == target.shape:
        for dim in inner:
            size = reference.shape[dim]
            if not 2 <= size <= 8:
                continue
            order = _match_slices(reference, target, dim, sides.tolerance)
            if order is not None:
                yield _selected_slices(dim, order)
        for dim in inner:
            # Shorter ones are channels or steps, which may have any order.
            if reference.shape[dim] > 8:
                yield Edit(
                    "flip",
                    f"it is mirrored: dim {dim - 2} is in reverse order",
                    {"dim": dim - 2},
                    f"flip dim {dim - 2} back, or do not flip it",
                    lambda sides, dim=dim: sides.reference.flip(dim),  # type: ignore[misc]
                    0.7,
                )
    for axes in permutations(inner) if 2 <= len(inner) <= 3 else ():
        turned = tuple(reference.shape[axis] for axis in axes)
        if list(axes) != list(inner) and turned == tuple(target.shape[2:]):
            names = [axis - 2 for axis in axes]
            yield Edit(
                "axis order",
                f"its axes are in the order {names}",
                {"axes": names},
                f"permute its axes by {[names.index(axis) for axis in range(len(names))]}",
                lambda sides, axes=axes: sides.reference.permute(0, 1, *axes),  # type: ignore[misc]
                0.7,
            )
    received = sides.received
    if received is None or received.ndim != reference.ndim or received.shape == target.shape:
        return
    if received[0, 0].numel() == target[0, 0].numel() and any(
        torch.equal(received.permute(0, 1, *axes), reference) for axes in permutations(inner)
    ):
        shape = list(target.shape[2:])
        yield Edit(
            "reshape",
            f"it is reshaped to {shape}, where the reference moves axes",
            {"shape": shape},
            "permute the axes instead of reshaping",
            lambda sides: (
                None if sides.received is None else sides.received.reshape(sides.target.shape)
            ),
            0.7,
        )


def match_features(one: Tensor, other: Tensor, tolerance: Tolerance) -> list[int] | None:
    """Return which feature of the first side each of the second side is; -1 for a constant."""
    size, own_size = one.shape[2], other.shape[2]
    if not 1 <= max(size, own_size) <= _MAX_FEATURES or one.shape[:2] != other.shape[:2]:
        return None
    ours, theirs = one.flatten(0, 1).double(), other.flatten(0, 1).double()
    # NaN equals NaN, and infinity itself.
    columns, own_columns = (
        side.T.contiguous().nan_to_num(nan=1e30, posinf=1e31, neginf=-1e31)
        for side in (ours, theirs)
    )
    gaps = torch.cdist(columns, own_columns, p=math.inf)
    limits = tolerance.atol + tolerance.rtol * theirs.nan_to_num(0, 0, 0).abs().amax(0)
    same = (gaps <= limits).tolist()

    if size == own_size:
        found = find_order(size, lambda origin, index: 2.0 * (not same[origin][index]))
        if found is not None:
            return found
    order: list[int] = []
    free = list(range(size))
    for index in range(own_size):
        near = sorted(free, key=lambda origin: origin != index)
        origin = next((origin for origin in near if same[origin][index]), None)
        if origin is None:
            column = theirs[:, index]
            # Few numbers are equal by chance.
            if len(column) < _MIN_CONSTANT or not bool((column == column[0]).all()):
                return None
            order.append(-1)
        else:
            free.remove(origin)
            order.append(origin)
    kept = [origin for origin in order if origin >= 0]
    # Of one feature that is left, nothing can be said.
    is_informative = own_size < size or any(
        not bool((ours[:, origin] == ours[0, origin]).all()) for origin in kept
    )
    return order if is_informative and order != list(range(size)) else None


def _reordered(order: Sequence[int], sides: Sides) -> Edit:
    size, constant = sides.reference.shape[-1], sides.target.flatten(0, -2)[0].tolist()
    kept = [origin for origin in order if origin >= 0]
    padded = [index for index, origin in enumerate(order) if origin < 0]
    shown = ", ".join(map(str, order[:_MAX_SHOWN])) + (", …" if len(order) > _MAX_SHOWN else "")

    def predict(sides: Sides) -> Tensor | None:
        columns = [
            torch.full_like(sides.reference[..., :1], constant[index])
            if origin < 0
            else sides.reference[..., origin : origin + 1]
            for index, origin in enumerate(order)
        ]
        return torch.cat(columns, -1)

    parameters: dict[str, object] = {"order": list(order)}
    if padded:
        parameters["values"] = {str(index): constant[index] for index in padded}
        lost = sorted(set(range(size)) - set(kept))
        what = "feature" if len(padded) == 1 else "features"
        verb = "is" if len(padded) == 1 else "are"
        text = f"{what} {', '.join(map(str, padded[:_MAX_SHOWN]))} {verb} constant"
        if kept == sorted(kept) and not lost:
            text = f"it is padded: {text}"
            hint = f"drop {what} {', '.join(map(str, padded[:_MAX_SHOWN]))}"
            return Edit("padding", text, parameters, hint, predict, 1.2)
        if kept == list(range(size)) or [o for o in order if o >= 0] == [
            index for index, origin in enumerate(order) if origin == index
        ]:
            hint = f"pass on the {what} instead of a constant"
            return Edit("constant", text, parameters, hint, predict, 1.4)
        text += f", the others are in the order [{shown}]"
        return Edit("padding", text, parameters, None, predict, 2.0)
    if len(order) < size:
        text = f"it has only the features [{shown}] of {size}"
        hint = f"pass on all {size} features"
        return Edit("selection", text, parameters, hint, predict, 1.0)
    moved = [index for index, origin in enumerate(order) if index != origin]
    text = f"its features are in the order [{shown}]"
    if len(moved) == 2:
        text = f"features {moved[0]} and {moved[1]} are swapped: {text}"
    back = ", ".join(str(order.index(origin)) for origin in range(min(size, _MAX_SHOWN)))
    back += ", …" if size > _MAX_SHOWN else ""
    hint = f"index the features by [{back}], or build them in the order of the reference"
    return Edit("permutation", text, parameters, hint, predict, 1.0)


def _match_slices(one: Tensor, other: Tensor, dim: int, tolerance: Tolerance) -> list[int] | None:
    ours, theirs = one.movedim(dim, 0), other.movedim(dim, 0)

    size = one.shape[dim]
    same = [
        [not bool(differing_elements(ours[i], theirs[j], tolerance).any()) for i in range(size)]
        for j in range(size)
    ]
    order = find_order(size, lambda origin, index: 2.0 * (not same[index][origin]))
    if order is None and all(map(any, same)):
        # Some of them are there several times.
        order = [j if same[j][j] else same[j].index(True) for j in range(size)]
    return None if order == list(range(size)) else order


def _selected_slices(dim: int, order: list[int]) -> Edit:
    if len(set(order)) < len(order):
        index = torch.tensor(order)
        return Edit(
            "selection",
            f"its slices along dim {dim - 2} are the slices {order} of the reference",
            {"dim": dim - 2, "order": order},
            "pass on each slice once",
            lambda sides: sides.reference.index_select(dim, index),
            1.0,
        )
    return _reordered_slices(dim, order)


def _reordered_slices(dim: int, order: list[int]) -> Edit:
    text = f"its slices along dim {dim - 2} are in the order {order}"
    if order == [2, 1, 0]:
        text += " (BGR instead of RGB)"
    index = torch.tensor(order)
    return Edit(
        "channel order",
        text,
        {"dim": dim - 2, "order": order},
        "reverse the channels once"
        if order == [2, 1, 0]
        else f"index dim {dim - 2} by {[order.index(origin) for origin in range(len(order))]}",
        lambda sides: sides.reference.index_select(dim, index),
        0.8,
    )


def discrete_edits(sides: Sides) -> Iterator[Edit]:
    """Yield edits that another one may follow: orders of channels and axes, and shifts in time."""
    reference, target = sides.reference, sides.target
    inner = range(2, reference.ndim)
    if sides.row_dims >= 2:
        for dim in inner:
            if reference.shape[dim] == 3:
                yield _reordered_slices(dim, [2, 1, 0])
    if 2 <= len(inner) <= 3:
        yield from (edit for edit in order_edits(sides) if edit.kind in ("axis order", "flip"))
    if sides.row_dims == 1 and target.ndim == 3:
        order = _correlated_order(reference, target)
        if order is not None:
            yield _reordered(order, sides)
    yield from (
        edit for edit in whole_edits(sides) if edit.kind in ("time shift", "delta", "twice")
    )


def _correlated_order(one: Tensor, other: Tensor) -> list[int] | None:
    """Return the feature of the first side that moves most like each of the second side."""
    if one.shape[:2] != other.shape[:2] or max(one.shape[2], other.shape[2]) > _MAX_FEATURES:
        return None
    sides = []
    for values in (one, other):
        rows = values.flatten(0, 1)
        if not bool(rows.isfinite().all()):
            return None
        centered = rows - rows.mean(0)
        sides.append(centered / centered.norm(dim=0).clamp(min=1e-12))
    likeness = (sides[0].T @ sides[1]).abs()
    # Of equal ones, the feature at its own place.
    likeness += 1e-7 * torch.eye(*likeness.shape, dtype=likeness.dtype)
    order = [-1] * other.shape[2]
    free = set(range(one.shape[2]))
    for place in likeness.flatten().argsort(descending=True).tolist():
        origin, index = divmod(place, other.shape[2])
        if float(likeness[origin, index]) <= _LIKENESS or -1 not in order:
            break
        if origin in free and order[index] < 0:
            order[index] = origin
            free.remove(origin)
    if -1 in order or order == list(range(one.shape[2])):
        return None
    return order


def noise_edit(sides: Sides) -> Edit | None:
    """Return the edit of values that differ from the reference by noise, if they may do so."""
    reference, target = sides.reference, sides.target
    if reference.shape != target.shape:
        return None
    # Sub-envs may draw the same numbers.
    reference, target = reference[:, :1], target[:, :1]
    gap = target - reference
    is_used = gap.isfinite()
    is_whole = all(bool((side == side.round()).all()) for side in (reference, target))
    if is_whole:
        # Numbers such as those of a counter need no noise to differ; pixels at the ends of their
        # range keep one side of it.
        if sides.row_dims < 2 or min(reference.min(), target.min()) < 0 or reference.max() > 255:
            return None
        margin = 4 * float(gap[is_used].std())
        is_used &= (reference >= margin) & (reference <= 255 - margin)
        if int(is_used.sum()) < _MIN_PIXELS or _has_structure(gap, is_used):
            return None
    rest = gap[is_used]
    share = 0.5 if is_whole else 0.9
    if rest.numel() < 32 or int((rest != 0).sum()) < share * rest.numel():
        return None
    if not is_whole and len(rest[:_MAX_COUNTED].unique()) < 0.9 * min(rest.numel(), _MAX_COUNTED):
        return None
    deviation, mean = float(rest.std()), float(rest.mean())
    # A cast to whole numbers drops the fraction, which is half a step of each pixel.
    bias = 0.51 if is_whole else 0.0
    if abs(mean) > bias + 4 * deviation / math.sqrt(rest.numel()):
        return None
    # What is left of a scale, a shift or a clip moves with the values.
    values = reference[is_used]
    centered = values - values.mean()
    spread = float(centered.norm()) * float((rest - mean).norm())
    if spread and abs(float(centered @ (rest - mean))) / spread > 4 / math.sqrt(rest.numel()):
        return None
    return Edit(
        "noise",
        f"it is consistent with noise of a standard deviation of {format_number(deviation)}",
        {"deviation": deviation},
        "switch the noise off, or seed it alike on both sides",
        lambda sides: sides.reference,
        9.0,
        slack=8 * deviation,
    )


def _has_structure(gap: Tensor, is_used: Tensor) -> bool:
    """Return True if neighboring pixels differ alike, as after a resize or another image."""
    # All pixels share the bias of a cast, and its share in the correlation counts for nothing.
    gap = gap - gap[is_used].mean()
    for dim in range(2, gap.ndim):
        size = gap.shape[dim] - 1
        one, other = (gap.narrow(dim, start, size) for start in (0, 1))
        both = is_used.narrow(dim, 0, size) & is_used.narrow(dim, 1, size)
        pairs = one[both], other[both]
        count = len(pairs[0])
        if count < _MIN_PIXELS:
            continue
        spread = float(pairs[0].norm() * pairs[1].norm())
        if spread and abs(float(pairs[0] @ pairs[1])) / spread > max(
            5 / math.sqrt(count), _MIN_CORRELATION
        ):
            return True
    return False
