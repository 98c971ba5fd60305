"""Values of a key over reference steps, and how two of them differ."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any, Literal

import torch
from torch import Tensor

MAX_NUMBERS = 1_024
"""Numbers of one row that are kept; larger values are reduced to a thumbnail and a hash."""
_MAX_SIDE = 16
_MAX_FEATURES = 1_024
_MAX_CHANNELS = 8
Kind = Literal["spec", "dtype", "feature order", "scale", "value"]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Largest difference that counts as equal: ``atol + rtol * |value|``.

    Args:
        rtol: Relative part.
        atol: Absolute part.
    """

    rtol: float = 0.0
    atol: float = 0.0

    def widened(self, other: Tolerance) -> Tolerance:
        """Return the larger of two tolerances, part by part."""
        return Tolerance(max(self.rtol, other.rtol), max(self.atol, other.atol))


EXACT = Tolerance()
"""Equal values only."""


@dataclass(frozen=True, slots=True)
class Values:
    """Values of one key, ``[T, R, ...]`` for T records and R rows.

    Args:
        numbers: The values, or a thumbnail of each.
        shape: Shape of one row.
        dtype: Such as ``float32``.
        digests: Hash of each record if ``numbers`` is a thumbnail.
    """

    numbers: Tensor
    shape: tuple[int, ...]
    dtype: str
    digests: tuple[str, ...] = ()

    @classmethod
    def of(cls, records: Sequence[Tensor]) -> Values:
        """Create values from the records, ``[R, ...]`` each, of equal shapes."""
        whole = torch.stack(list(records))
        shape = tuple(whole.shape[2:])
        dtype = str(whole.dtype).removeprefix("torch.")
        if torch.Size(shape).numel() <= MAX_NUMBERS:
            return cls(whole, shape, dtype)
        digests = tuple(digest(record) for record in records)
        return cls(thumbnail(whole, 2), shape, dtype, digests)


@dataclass(frozen=True, slots=True)
class Change:
    """How two values differ.

    Args:
        kind: Kind of the difference.
        text: The difference in words.
        size: Largest absolute difference; ``None`` if it cannot be computed.
        step: First record that differs, from 0.
    """

    kind: Kind
    text: str
    size: float | None = None
    step: int | None = None


def digest(value: Tensor) -> str:
    """Return a hash of the bytes of a tensor."""
    data = value.detach().cpu().contiguous().reshape(-1)
    if data.dtype is torch.bool:
        data = data.to(torch.uint8)
    raw = data.view(torch.uint8).numpy().tobytes() if data.numel() else b""
    return hashlib.sha256(raw).hexdigest()[:16]


def thumbnail(value: Tensor, lead: int) -> Tensor:
    """Return a value with fewer elements along its large dims.

    Args:
        value: Value with ``lead`` dims that are kept.
        lead: Number of the first dims.
    """
    side = _MAX_SIDE if value.ndim - lead > 1 else MAX_NUMBERS // 4
    for dim in range(lead, value.ndim):
        step = -(-value.shape[dim] // side)
        if step > 1:
            value = value[(slice(None),) * dim + (slice(None, None, step),)]
    return value.clone()


def compare(
    a: Values, b: Values, tolerance: Tolerance, *, exact_dtype: bool = True
) -> Change | None:
    """Compare two values; ``None`` if they are equal within a tolerance.

    Args:
        a: Values of the contract.
        b: Values of the target.
        tolerance: Largest difference.
        exact_dtype: False if float32 and float64 count as the same dtype.
    """
    if a.shape != b.shape:
        return Change("spec", f"the shape is {list(b.shape)} instead of {list(a.shape)}")
    change = _compare_numbers(a, b, tolerance)
    if change is not None and change.kind in ("feature order", "scale") and _is_float(b):
        if a.dtype != b.dtype and (exact_dtype or not _is_float(a)) and change.kind == "scale":
            text = f"the dtype is {b.dtype} instead of {a.dtype}, and {change.text}"
            return replace(change, text=text)
        return change
    if a.dtype != b.dtype and (exact_dtype or _is_float(a) != _is_float(b)):
        size = None if change is None else change.size
        return Change("dtype", f"the dtype is {b.dtype} instead of {a.dtype}", size)
    return change


def _is_float(values: Values) -> bool:
    return values.dtype.startswith(("float", "bfloat"))


def _compare_numbers(a: Values, b: Values, tolerance: Tolerance) -> Change | None:
    records = min(len(a.numbers), len(b.numbers))
    rows = min(a.numbers.shape[1], b.numbers.shape[1])
    has_hashes = a.digests and b.digests and rows == a.numbers.shape[1] == b.numbers.shape[1]
    if has_hashes and a.digests[:records] == b.digests[:records]:
        return None
    one, other = (each.numbers[:records, :rows].double() for each in (a, b))
    if one.shape != other.shape:
        return Change("spec", "the values have other shapes")
    apart = differing_elements(one, other, tolerance)
    if not bool(apart.any()):
        if has_hashes and tolerance == Tolerance():
            return Change("value", "pixels outside of the thumbnail differ")
        return None
    difference = (one - other).abs().nan_to_num(nan=torch.inf)
    size = float(difference.max())
    step = int(apart.flatten(1).any(1).nonzero()[0])
    found = _permutation(one, other, tolerance) or _scale(one, other, tolerance)
    if found is not None:
        return replace(found, size=size, step=step)
    feature = ""
    if one.ndim == 3 and one.shape[2] > 1:
        worst = int(difference.amax((0, 1)).argmax())
        share = int(apart.any(0).any(0).sum())
        feature = f", most in feature {worst} ({share} of {one.shape[2]} differ)"
    return Change("value", f"it differs by up to {format_number(size)}{feature}", size, step)


def differing_elements(a: Tensor, b: Tensor, tolerance: Tolerance) -> Tensor:
    """Return a mask of the elements that differ; NaN equals NaN."""
    limit = tolerance.atol + tolerance.rtol * torch.maximum(a.abs(), b.abs())
    apart = ~((a - b).abs() <= limit)
    return apart & ~(a.isnan() & b.isnan()) & (a != b)


def _permutation(a: Tensor, b: Tensor, tolerance: Tolerance) -> Change | None:
    """Find an order of the features, or of the axes, in which the values agree."""
    for dim in range(a.ndim - 1, 1, -1):
        size = a.shape[dim]
        if 2 <= size <= (_MAX_FEATURES if a.ndim == 3 else _MAX_CHANNELS):
            order = _matching_order(a.movedim(dim, 0), b.movedim(dim, 0), tolerance)
            if order is not None:
                what = "features" if a.ndim == 3 else f"slices along dim {dim - 2}"
                return Change("feature order", f"its {what} are in the order {_shorten(order)}")
    inner = list(range(2, a.ndim))
    for axes in permutations(inner) if 2 <= len(inner) <= 3 else ():
        turned = a.permute(0, 1, *axes)
        is_other = list(axes) != inner and turned.shape == b.shape
        if is_other and not bool(differing_elements(turned, b, tolerance).any()):
            order = [axis - 2 for axis in axes]
            return Change("feature order", f"its axes are in the order {order}")
    return None


def _matching_order(a: Tensor, b: Tensor, tolerance: Tolerance) -> list[int] | None:
    """Return which slice of ``a`` each slice of ``b`` is; ``None`` if they do not match."""
    free = list(range(len(a)))
    order: list[int] = []
    for index, part in enumerate(b):
        # Slices that are equal to several others stay where they are.
        candidates = sorted(free, key=lambda each: each != index)
        found = next(
            (c for c in candidates if not bool(differing_elements(a[c], part, tolerance).any())),
            None,
        )
        if found is None:
            return None
        free.remove(found)
        order.append(found)
    return order if order != sorted(order) else None


def _scale(a: Tensor, b: Tensor, tolerance: Tolerance) -> Change | None:
    """Find a factor and an offset that explain the difference."""
    one, other = a.reshape(-1), b.reshape(-1)
    finite = one.isfinite() & other.isfinite()
    if (
        not bool(finite.all())
        or one.numel() < 3
        or float(one.std()) == 0
        or float(other.std()) == 0
    ):
        return None
    fit = _fit(one, other)
    loose = Tolerance(max(tolerance.rtol * 10, 1e-5), max(tolerance.atol * 10, 1e-6))
    if fit is not None:
        factor, offset = fit
        if not bool(differing_elements(one * factor + offset, other, loose).any()):
            return Change("scale", _scale_text(factor, offset))
    return None


def _fit(a: Tensor, b: Tensor) -> tuple[float, float] | None:
    centered = a - a.mean()
    spread = float((centered * centered).sum())
    if spread == 0:
        return None
    factor = float((centered * (b - b.mean())).sum()) / spread
    return factor, float(b.mean()) - factor * float(a.mean())


def _scale_text(factor: float, offset: float) -> str:
    parts = []
    if abs(factor - 1) > 1e-4:
        parts.append(f"multiplied by {format_number(factor)}")
    if abs(offset) > 1e-5:
        parts.append(f"shifted by {format_number(offset)}")
    return f"it is {' and '.join(parts) or 'slightly scaled'}"


def _shorten(order: Sequence[int]) -> str:
    shown = ", ".join(str(each) for each in order[:12])
    return f"[{shown}{', …' if len(order) > 12 else ''}]"


def format_number(value: Any) -> str:
    """Return a number with at most four significant digits, a count with separators.

    Example:
        >>> format_number(0.00012345), format_number(25600.0)
        ('0.0001234', '25,600')
    """
    number = float(value)
    if not math.isfinite(number):
        return str(number)
    is_large = 1e3 <= abs(number) < 1e15
    return f"{number:,.0f}" if is_large else f"{number:.4g}"
