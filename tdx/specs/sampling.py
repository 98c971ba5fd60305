"""Sampling of categories, and of numbers within bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdx.errors import SpecError
from tdx.specs.spaces import clamp


def sample_categories(
    n: int, mask: Tensor | None, shape: torch.Size, device: torch.device
) -> Tensor:
    """Sample categories uniformly among those allowed, as int64 of ``shape``.

    Args:
        n: Number of categories.
        mask: Allowed categories, ``[*B, n]``. ``None``: all.
        shape: Shape of the sample, ``[*A, *B]``.
        device: Device of the sample.

    Raises:
        SpecError: ``n`` is 0, or the mask forbids all categories for some element.
    """
    if mask is None and n == 0 and shape.numel():
        raise SpecError("cannot sample from 0 categories", hint="use a spec with n of 1 or more")
    if mask is None:
        return torch.randint(0, max(n, 1), shape, device=device)
    weights = mask.expand(*shape, n).reshape(-1, n)
    if not bool(weights.any(-1).all()):
        raise SpecError("the mask allows no category", hint="allow at least one in every row")
    if not weights.shape[0]:
        return torch.zeros(shape, dtype=torch.int64, device=device)
    return torch.multinomial(weights.float(), 1).reshape(shape)


# Number of consecutive integers that a dtype represents exactly.
_EXACT_INTEGERS = {torch.float32: 2**24, torch.float64: 2**53}


IntervalSampler = Callable[[torch.Size], Tensor]
"""Samples values within bounds, both included; the shape ends with that of the bounds."""


def make_sampler(low: Tensor, high: Tensor) -> IntervalSampler:
    """Choose the sampler for the dtype and the width of an interval."""
    if low.dtype.is_floating_point:
        span = high - low if low.dtype.itemsize > 1 else high.float() - low.float()
        is_finite = bool(span.isfinite().all())
        return UniformSampler(low, high) if is_finite else UnboundedSampler(low, high)
    work = torch.float32 if low.dtype.itemsize <= 2 else torch.float64
    span = high.to(work) - low.to(work) + 1
    if span.numel() and float(span.max()) >= _EXACT_INTEGERS[work]:
        return WideIntegerSampler(low, high)
    return IntegerSampler(low.dtype, low.to(work), span)


class UniformSampler:
    """Uniform real numbers within finite bounds."""

    def __init__(self, low: Tensor, high: Tensor) -> None:
        self.low, self.high = low, high
        self.work = torch.float32 if low.dtype.itemsize == 1 else low.dtype
        self.base = low.to(self.work)
        self.span = high.to(self.work) - self.base

    def __call__(self, shape: torch.Size) -> Tensor:
        unit = torch.rand(shape, dtype=self.work, device=self.low.device)
        drawn = unit.mul_(self.span).add_(self.base).to(self.low.dtype)
        return torch.minimum(drawn, self.high) if drawn.dtype.itemsize > 1 else drawn


class UnboundedSampler:
    """Real numbers where a bound is infinite, or the width exceeds the range of the dtype.

    Elements without bounds are normal, with one bound exponential, with two uniform. Each element
    takes one uniform number from the generator.
    """

    def __init__(self, low: Tensor, high: Tensor) -> None:
        self.low, self.high = low, high
        self.start, self.end = low.double(), high.double()

    def __call__(self, shape: torch.Size) -> Tensor:
        dtype = self.low.dtype
        unit = torch.rand(shape, dtype=torch.float64, device=self.low.device)
        open_below, open_above = self.start.isinf(), self.end.isinf()
        tail = -torch.log1p(-unit)
        start, end = (torch.nan_to_num(x, 0.0, 0.0, 0.0) for x in (self.start, self.end))
        normal = torch.special.ndtri(unit.clamp(min=torch.finfo(torch.float32).tiny))
        from_below = torch.where(open_above, start + tail, start * (1 - unit) + end * unit)
        from_above = torch.where(open_above, normal, end - tail)
        drawn = torch.where(open_below, from_above, from_below).to(dtype)
        return clamp(self.low, self.high, drawn)


class IntegerSampler:
    """Uniform integers in an interval whose width a floating-point dtype represents exactly."""

    def __init__(self, dtype: torch.dtype, base: Tensor, span: Tensor) -> None:
        self.dtype, self.base, self.span = dtype, base, span

    def __call__(self, shape: torch.Size) -> Tensor:
        unit = torch.rand(shape, dtype=self.base.dtype, device=self.base.device)
        offset = torch.minimum(unit.mul_(self.span).floor_(), self.span - 1)
        return offset.add_(self.base).to(self.dtype)


class WideIntegerSampler:
    """Uniform integers in an interval of any width."""

    def __init__(self, low: Tensor, high: Tensor) -> None:
        self.dtype, self.device = low.dtype, low.device
        self.work: Any = np.uint64 if low.dtype is torch.uint64 else np.int64
        self.bounds = [bound.cpu().numpy().astype(self.work) for bound in (low, high)]

    def __call__(self, shape: torch.Size) -> Tensor:
        seed = int(torch.randint(torch.iinfo(torch.int64).max, ()))
        low, high = self.bounds
        generator = np.random.default_rng(seed)
        drawn = generator.integers(low, high, tuple(shape), dtype=self.work, endpoint=True)
        return torch.from_numpy(np.asarray(drawn)).to(self.dtype).to(self.device)
