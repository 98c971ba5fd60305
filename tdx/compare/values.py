"""Values of both sides: what counts as equal, how two of them differ, and by how much."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

from tdx.core.tracing.passages import is_same
from tdx.foundation.text import count_text, dtype_name

MAX_NUMBERS = 1_024
"""Numbers of one row that are kept; larger values are reduced to a thumbnail and a hash."""
_MAX_SIDE = 16
_MAX_WHOLE = 4_000_000
"""Numbers of large values that stay in memory, to be explained."""
ChangeKind = Literal["missing", "extra", "spec", "dtype", "value"]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Largest difference that counts as equal: ``atol + rtol * |value|``.

    NaN equals NaN. The relative part applies to floating-point numbers only. Values that differ by
    more are allowed if ``rows`` or ``quantile`` is given and each given one holds.

    Args:
        rtol: Relative part.
        atol: Absolute part.
        rows: Share of the rows that may differ by more, below 1; a row is one step of one env.
        quantile: Share of the absolute differences, over all numbers, that must not exceed
            ``limit``.
        limit: Largest allowed quantile.
    """

    rtol: float = 0.0
    atol: float = 0.0
    rows: float | None = None
    quantile: float | None = None
    limit: float | None = None

    @property
    def is_exact(self) -> bool:
        """True if a row agrees only if its values are equal."""
        return self.rtol == self.atol == 0

    def widened(self, other: Tolerance) -> Tolerance:
        """Return this tolerance with the larger relative and absolute part of both."""
        return replace(self, rtol=max(self.rtol, other.rtol), atol=max(self.atol, other.atol))


TOLERANCE_FIELDS = tuple(field.name for field in fields(Tolerance))
EXACT = Tolerance()
"""Equal values only."""
_FLOAT_TOLERANCES = {
    "float64": Tolerance(1e-7, 1e-9),
    "float32": Tolerance(1e-5, 1e-6),
    "bfloat16": Tolerance(2e-2, 1e-2),
    "float16": Tolerance(2e-3, 1e-3),
}


def float_tolerance(dtypes: Sequence[str]) -> Tolerance:
    """Return the tolerance of the least exact of some dtypes; integers are equal exactly.

    Example:
        >>> float_tolerance(["float32", "int64"]).rtol, float_tolerance(["uint8"]).is_exact
        (1e-05, True)
    """
    known = [_FLOAT_TOLERANCES[dtype] for dtype in dtypes if dtype in _FLOAT_TOLERANCES]
    return max(known, key=lambda tolerance: tolerance.rtol, default=EXACT)


@dataclass(frozen=True, slots=True)
class Change:
    """How two values differ.

    Args:
        kind: Kind of the difference: ``missing`` if only the first side has a value, ``extra`` if
            only the second one has it, ``spec`` for another shape.
        text: The difference in words.
        size: Largest absolute difference; ``None`` if it cannot be computed.
        step: First record that differs, from 0.
        sides: Both shapes, both dtypes, or the elements that differ most.
        calls: In how many calls it differs, as ``3 of 12``; empty if it is not known.
        allowance: What the tolerance says of rows and quantiles; empty if it says nothing.
        is_allowed: True if the tolerance allows the difference.
    """

    kind: ChangeKind
    text: str
    size: float | None = None
    step: int | None = None
    sides: tuple[str, str] = ("", "")
    calls: str = ""
    allowance: str = ""
    is_allowed: bool = False


def differing_elements(a: Tensor, b: Tensor, tolerance: Tolerance = EXACT) -> Tensor:
    """Return a mask of the elements that differ; NaN equals NaN."""
    if a.dtype != b.dtype:
        try:
            common = torch.promote_types(a.dtype, b.dtype)
        except RuntimeError:
            # torch does not promote unsigned integers of more than 8 bits.
            common = torch.float64
        a, b = a.to(common), b.to(common)
    differing = a != b
    is_rounded = a.is_floating_point() or a.is_complex()
    if is_rounded:
        differing &= ~(a.isnan() & b.isnan())
    # Large integers are not exact in float64.
    is_exact = tolerance.is_exact or not (is_rounded or tolerance.atol >= 1)
    if is_exact or not bool(differing.any()):
        return differing
    one, other = _to_widest(a), _to_widest(b)
    rtol = tolerance.rtol if is_rounded else 0.0
    limit = tolerance.atol + rtol * torch.maximum(one.abs(), other.abs())
    # An infinite limit allows nothing: infinity equals only itself.
    return differing & ~(((one - other).abs() <= limit) & one.isfinite() & other.isfinite())


def _to_widest(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def compare_tensors(
    a: Tensor, b: Tensor, tolerance: Tolerance = EXACT, *, step_dim: int = 0
) -> Change | None:
    """Compare two tensors; ``None`` if they agree in shape, dtype and values.

    Example:
        >>> change = compare_tensors(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5]))
        >>> change.text, change.size, change.step
        ('it differs by up to 0.5', 0.5, 1)
    """
    if a.shape != b.shape:
        return shape_change(a.shape, b.shape)
    change = _compare_numbers(a, b.to(a.device), tolerance, step_dim)
    if a.dtype == b.dtype:
        return change
    return dtype_change(dtype_name(a.dtype), dtype_name(b.dtype), change)


def shape_change(a: Sequence[int], b: Sequence[int]) -> Change:
    """Return the difference of two shapes, which are not equal."""
    sides = str(list(a)), str(list(b))
    return Change("spec", f"the shape is {sides[1]} instead of {sides[0]}", sides=sides)


def dtype_change(a: str, b: str, change: Change | None = None) -> Change:
    """Return the difference of two dtypes, with that of the values."""
    text = f"the dtype is {b} instead of {a}"
    if change is None:
        return Change("dtype", text, sides=(a, b))
    return replace(change, kind="dtype", text=text, sides=(a, b), allowance="", is_allowed=False)


def _compare_numbers(a: Tensor, b: Tensor, tolerance: Tolerance, step_dim: int) -> Change | None:
    differing = differing_elements(a, b, tolerance)
    if not bool(differing.any()):
        return None
    gap = element_gaps(a, b).masked_fill(~differing, 0)
    size, worst = float(gap.max()), int(gap.argmax())
    step = None
    if a.ndim:
        step = int(
            differing.movedim(step_dim, 0).reshape(a.shape[step_dim], -1).any(1).nonzero()[0]
        )
    one, other = (f"{side.reshape(-1)[worst].item():.9g}" for side in (a, b))
    text = f"it differs by up to {format_number(size)}"
    return Change("value", text, size, step, (one, other))


def element_gaps(a: Tensor, b: Tensor) -> Tensor:
    """Return the absolute differences; infinite where one is NaN, and 0 where both are."""
    if a.dtype == b.dtype == torch.uint8:
        # Converting large images to float64 is slow.
        return torch.maximum(a, b) - torch.minimum(a, b)
    a, b = _to_widest(a), _to_widest(b)
    gap = (a - b).abs()
    if gap.numel() and math.isfinite(gap.max()):
        return gap
    gap = gap.nan_to_num(nan=torch.inf)
    return gap.masked_fill((a == b) | (a.isnan() & b.isnan()), 0.0)


def largest_gap(a: Tensor, b: Tensor) -> float:
    """Return the largest absolute difference of two tensors of equal shapes.

    Example:
        >>> largest_gap(torch.tensor([1.0, torch.nan]), torch.tensor([1.5, torch.nan]))
        0.5
    """
    return float(element_gaps(a, b.to(a.device)).max()) if a.numel() else 0.0


def compare_entries(
    a: Mapping[str, object],
    b: Mapping[str, object],
    tolerance: Tolerance = EXACT,
    *,
    step_dim: int = 0,
) -> dict[str, Change | None]:
    """Compare the entries of both sides by key; ``None`` for those that agree.

    Entries that are not tensors are compared as plain data.
    """
    changes: dict[str, Change | None] = {}
    for key in dict.fromkeys((*a, *b)):
        one, other = a.get(key), b.get(key)
        if one is None or other is None:
            is_extra = one is None
            text = f"only the {'second' if is_extra else 'first'} side has it"
            sides = ("no value", "a value") if is_extra else ("a value", "no value")
            changes[key] = Change("extra" if is_extra else "missing", text, sides=sides)
        elif isinstance(one, Tensor) and isinstance(other, Tensor):
            changes[key] = compare_tensors(one, other, tolerance, step_dim=step_dim)
        else:
            # Non-tensor data of TensorDict, and arrays, are compared by what they hold.
            plain = [getattr(side, "tolist", lambda side=side: side)() for side in (one, other)]
            changes[key] = None if is_same(*plain) else Change("value", "it differs")
    return changes


@dataclass(frozen=True, slots=True)
class Values:
    """Values of one key, ``[T, R, ...]`` for T records and R rows.

    Args:
        numbers: The values, or a thumbnail of each.
        shape: Shape of one row.
        dtype: Such as ``float32``.
        digests: Hash of each record if ``numbers`` is a thumbnail.
        whole: The values themselves, as long as they are in memory. ``None``: they were read from a
            file, or are too large.
    """

    numbers: Tensor
    shape: tuple[int, ...]
    dtype: str
    digests: tuple[str, ...] = ()
    whole: Tensor | None = field(compare=False, repr=False, default=None)

    @classmethod
    def of(cls, records: Sequence[Tensor]) -> Values:
        """Create values from the records, ``[R, ...]`` each, of equal shapes."""
        whole = torch.stack(list(records))
        shape = tuple(whole.shape[2:])
        if torch.Size(shape).numel() <= MAX_NUMBERS:
            return cls(whole, shape, dtype_name(whole.dtype), whole=whole)
        digests = tuple(digest(record) for record in records)
        kept = whole if whole.numel() <= _MAX_WHOLE else None
        return cls(thumbnail(whole, 2), shape, dtype_name(whole.dtype), digests, kept)

    @property
    def is_float(self) -> bool:
        """True for floating-point numbers."""
        return self.dtype.startswith(("float", "bfloat"))


def digest(value: Tensor) -> str:
    """Return a hash of the bytes of a tensor."""
    data = value.detach().cpu().contiguous().reshape(-1)
    if data.dtype is torch.bool:
        data = data.to(torch.uint8)
    raw = data.view(torch.uint8).numpy().tobytes() if data.numel() else b""
    return hashlib.sha256(raw).hexdigest()[:16]


def thumbnail(value: Tensor, lead: int) -> Tensor:
    """Return a value with fewer elements along its large dims; the first ``lead`` dims stay."""
    for dim, step in enumerate(thumbnail_strides(value.shape[lead:]), lead):
        if step > 1:
            value = value[(slice(None),) * dim + (slice(None, None, step),)]
    return value.clone()


def thumbnail_strides(shape: Sequence[int]) -> list[int]:
    """Return which elements of each dim a thumbnail has: every n-th."""
    side = _MAX_SIDE if len(shape) > 1 else MAX_NUMBERS // 4
    return [-(-size // side) for size in shape]


def compare_values(
    a: Values, b: Values, tolerance: Tolerance, *, exact_dtype: bool = True
) -> Change | None:
    """Compare values; ``None`` if they agree.

    Without ``exact_dtype``, float32 and float64 count as the same dtype.
    """
    if a.shape != b.shape:
        return shape_change(a.shape, b.shape)
    change = _compare_records(a, b, tolerance)
    is_other = a.dtype != b.dtype and (exact_dtype or a.is_float != b.is_float)
    return dtype_change(a.dtype, b.dtype, change) if is_other else change


def _compare_records(a: Values, b: Values, tolerance: Tolerance) -> Change | None:
    records = min(len(a.numbers), len(b.numbers))
    rows = min(a.numbers.shape[1], b.numbers.shape[1])
    has_hashes = a.digests and b.digests and rows == a.numbers.shape[1] == b.numbers.shape[1]
    if has_hashes and a.digests[:records] == b.digests[:records]:
        return None
    one, other = (side.numbers[:records, :rows] for side in (a, b))
    if one.shape != other.shape:
        return Change("spec", "the values have other shapes")
    change = _compare_numbers(one, other, tolerance, 0)
    by_hash = bool(has_hashes) and tolerance.is_exact
    if change is None and not by_hash:
        return None
    differing = differing_elements(one, other, tolerance).reshape(records, rows, -1)
    unequal = differing.any(2)
    if by_hash:
        # A hash does not say in which rows the pixels differ that the thumbnail leaves out.
        hashes = zip(a.digests[:records], b.digests[:records], strict=True)
        unequal |= torch.tensor([mine != theirs for mine, theirs in hashes])[:, None]
    if change is None:
        change = Change("value", "pixels outside of the thumbnail differ")
    elif one.ndim == 3 and one.shape[2] > 1:
        worst = int(element_gaps(one, other).amax((0, 1)).argmax())
        share = int(differing.any(0).any(0).sum())
        text = f"{change.text}, most in feature {worst} ({share} of {one.shape[2]} differ)"
        change = replace(change, text=text)
    return _with_allowance(change, tolerance, unequal, element_gaps(one, other))


def _with_allowance(change: Change, tolerance: Tolerance, unequal: Tensor, gaps: Tensor) -> Change:
    """Add whether a tolerance allows that rows ``[T, R]`` differ."""
    parts: list[str] = []
    is_allowed = True
    if tolerance.rows is not None:
        count, total = int(unequal.sum()), unequal.numel()
        holds = count <= tolerance.rows * total
        relation = "within" if holds else "more than"
        parts.append(
            f"{count} of {count_text(total, 'row')} differ, {relation} the allowed "
            f"{100 * tolerance.rows:g}%"
        )
        is_allowed &= holds
    if tolerance.quantile is not None and tolerance.limit is not None:
        # The smallest difference that this share does not exceed; torch.quantile takes no large
        # tensors, and returns NaN beside infinite numbers.
        place = max(1, math.ceil(tolerance.quantile * gaps.numel()))
        value = float(gaps.reshape(-1).kthvalue(place).values)
        holds = value <= tolerance.limit
        relation = "within" if holds else "above"
        parts.append(
            f"the {tolerance.quantile:g} quantile of the difference is {format_number(value)}, "
            f"{relation} the allowed {format_number(tolerance.limit)}"
        )
        is_allowed &= holds
    if not parts:
        return change
    allowance = " and ".join(parts)
    return replace(change, allowance=allowance, is_allowed=is_allowed)


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
