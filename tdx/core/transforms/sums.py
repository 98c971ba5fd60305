"""Dtypes and specs of sums."""

from __future__ import annotations

import torch

from tdx.specs import (
    Binary,
    Bounded,
    Categorical,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    TensorSpec,
    Unbounded,
)

_NARROW_FLOATS = frozenset({torch.float16, torch.bfloat16})


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which values of a dtype are summed.

    Integers and bools are summed in int64, float16 and bfloat16 in float32. Other floating
    dtypes keep theirs.

    Example:
        >>> sum_dtype(torch.int8), sum_dtype(torch.float16), sum_dtype(torch.float64)
        (torch.int64, torch.float32, torch.float64)
    """
    if dtype in _NARROW_FLOATS:
        return torch.float32
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.int64


def sum_spec(spec: TensorSpec, most: int) -> TensorSpec:
    """Return the spec of a sum of 1 to ``most`` values of a spec.

    Args:
        spec: Spec of one value.
        most: Largest number of values, at least 1.
    """
    dtype = sum_dtype(spec.dtype or torch.get_default_dtype())
    bounds = _bounds(spec)
    if bounds is None:
        return Unbounded(shape=spec.shape, dtype=dtype, device=spec.device)
    first_low, first_high = (bound.to(dtype).expand(spec.shape) for bound in bounds)
    if dtype.is_floating_point:
        low, high = first_low, first_high
        for _ in range(most - 1):
            # In the order of the sum itself, so that rounding leaves sums within the bounds.
            low, high = low + first_low, high + first_high
    else:
        low, high = (_saturating_product(bound, most) for bound in (first_low, first_high))
    low, high = torch.minimum(low, first_low), torch.maximum(high, first_high)
    return Bounded(low, high, shape=spec.shape, dtype=dtype, device=spec.device)


def _bounds(spec: TensorSpec) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the smallest and the largest value of a spec, or ``None`` for an unbounded one."""
    if isinstance(spec, Bounded):
        return spec.low, spec.high
    zero = torch.zeros((), dtype=torch.int64, device=spec.device)
    if isinstance(spec, (Binary, OneHot, MultiOneHot)):
        return zero, zero + 1
    if isinstance(spec, MultiCategorical):
        return zero, spec.nvec.to(zero) - 1
    if isinstance(spec, Categorical):
        return zero, zero + spec.n - 1
    return None


def _saturating_product(value: torch.Tensor, factor: int) -> torch.Tensor:
    """Multiply int64 values by a positive factor, limited to the range of int64."""
    limits = torch.iinfo(torch.int64)
    product = value * factor
    product = torch.where(value > limits.max // factor, limits.max, product)
    return torch.where(value < -(limits.max // factor), limits.min, product)
