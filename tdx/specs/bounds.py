"""Arithmetic on the ends of intervals that is right for every dtype and for open ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdx.errors import SpecError

WIDE_UNSIGNED = {torch.uint16, torch.uint32, torch.uint64}
_INT64 = torch.iinfo(torch.int64)


def is_continuous(dtype: torch.dtype) -> bool:
    """Whether numbers of that dtype have fractions."""
    return dtype.is_floating_point or dtype.is_complex


def extremes(dtype: torch.dtype) -> tuple[float, float]:
    """The smallest and the largest finite number of a real dtype."""
    if dtype is torch.bool:
        return False, True
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return info.min, info.max


_SIGNED = {
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
}


def ordered(value: Tensor) -> Tensor:
    """The values in a dtype that torch can compare, in the same order."""
    dtype = value.dtype
    if dtype is torch.uint64:
        return value.view(torch.int64) ^ _INT64.min
    if dtype in WIDE_UNSIGNED:
        return value.to(torch.int64)
    if dtype.is_floating_point and dtype.itemsize == 1:
        return value.to(torch.float32)
    return value


def cast(
    value: Tensor, dtype: torch.dtype, rounding: Callable[[Tensor], Tensor] = torch.round
) -> Tensor:
    """The values in a dtype: rounded and saturated where it cannot hold them, NaN as 0.

    Args:
        value: any shape, any dtype.
        dtype: what to make of it.
        rounding: from fractions to integers.
    """
    if value.dtype == dtype or dtype.is_complex:
        return value.to(dtype)
    if value.is_complex():
        value = value.real
    if dtype.is_floating_point:
        return value.to(dtype)
    low, high = (int(end) for end in extremes(dtype))
    if not value.is_floating_point():
        if value.dtype is torch.uint64:
            signed = value.view(torch.int64)
            value = torch.where(signed < 0, _INT64.max, signed)
        return value.to(torch.int64).clamp(low, min(high, _INT64.max)).to(dtype)
    value = rounding(torch.nan_to_num(value.double(), 0.0, math.inf, -math.inf))
    below, above = value <= low, value >= high
    inside = value.masked_fill(below | above, 0.0).to(dtype)
    ends = [torch.tensor(end, dtype=dtype, device=value.device) for end in (low, high)]
    return _selected(above, ends[1], _selected(below, ends[0], inside))


def end_tensor(value: Any, dtype: torch.dtype, device: torch.device, *, upper: bool) -> Tensor:
    """One end of an interval as a tensor, moved inwards to what the dtype can hold.

    Args:
        value: a number, an array, nested lists; ``None`` for an open end.
        dtype: the spec's dtype; an open end is infinite, or its extreme for integers.
        device: where the tensor goes.
        upper: whether it is the upper end.
    """
    if value is None:
        value = math.inf if upper else -math.inf
    if isinstance(value, (bool, int, float)):
        if not dtype.is_floating_point:
            value = _inwards(value, dtype, upper)
        elif not abs(value) <= torch.finfo(dtype).max:
            value = math.nan if value != value else math.copysign(math.inf, value)
        return torch.tensor(value, dtype=dtype, device=device)
    try:
        found = value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
    except TypeError as error:
        raise SpecError(
            f"{'high' if upper else 'low'} must hold numbers, got {value!r}",
            hint="give a number, or a tensor of numbers",
        ) from error
    found = cast(found.detach(), dtype, torch.floor if upper else torch.ceil)
    return found.to(device)


def _inwards(value: float, dtype: torch.dtype, upper: bool) -> int:
    low, high = (int(end) for end in extremes(dtype))
    if math.isnan(value):
        raise SpecError(
            f"{'high' if upper else 'low'} is not a number", hint="use None for an open end"
        )
    if math.isinf(value):
        return high if value > 0 else low
    return min(max(math.floor(value) if upper else math.ceil(value), low), high)


def contains(low: Tensor, high: Tensor, value: Tensor) -> bool:
    """Whether every value lies in its interval; NaN lies in none."""
    value = ordered(value)
    return bool(((ordered(low) <= value) & (value <= ordered(high))).all())


def clamp(low: Tensor, high: Tensor, value: Tensor) -> Tensor:
    """The nearest values inside the intervals; NaN goes where 0 goes."""
    if value.is_floating_point():
        value = torch.where(value.isnan(), torch.zeros_like(value), value)
    value = _selected(ordered(value) < ordered(low), low, value)
    return _selected(ordered(value) > ordered(high), high, value)


def _selected(mask: Tensor, value: Tensor, other: Tensor) -> Tensor:
    """``torch.where``, also for the wide unsigned dtypes, which older torch refuses."""
    signed = _SIGNED.get(value.dtype)
    if signed is None:
        return torch.where(mask, value, other)
    return torch.where(mask, value.view(signed), other.view(signed)).view(value.dtype)
