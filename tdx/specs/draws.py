"""Random numbers between two ends, drawn from torch's global generator."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from tdx.specs.bounds import clamp

_EXACT = {torch.float32: 2**24, torch.float64: 2**53}


class Draw(Protocol):
    """Draws values between two ends, both included."""

    def __call__(self, shape: torch.Size) -> Tensor:
        """Values of that shape, which ends in the ends' shape."""


def draw_between(low: Tensor, high: Tensor) -> Draw:
    """What draws between these ends, chosen by their dtype and width."""
    if low.dtype.is_floating_point:
        span = high - low if low.dtype.itemsize > 1 else high.float() - low.float()
        return UniformReals(low, high) if bool(span.isfinite().all()) else OpenReals(low, high)
    work = torch.float32 if low.dtype.itemsize <= 2 else torch.float64
    span = high.to(work) - low.to(work) + 1
    if span.numel() and float(span.max()) >= _EXACT[work]:
        return WideIntegers(low, high)
    return UniformIntegers(low.dtype, low.to(work), span)


class UniformReals:
    """Uniform numbers between finite ends."""

    def __init__(self, low: Tensor, high: Tensor) -> None:
        self.low, self.high = low, high
        self.work = torch.float32 if low.dtype.itemsize == 1 else low.dtype
        self.base = low.to(self.work)
        self.span = high.to(self.work) - self.base

    def __call__(self, shape: torch.Size) -> Tensor:
        unit = torch.rand(shape, dtype=self.work, device=self.low.device)
        drawn = unit.mul_(self.span).add_(self.base).to(self.low.dtype)
        return torch.minimum(drawn, self.high) if drawn.dtype.itemsize > 1 else drawn


class OpenReals:
    """Numbers where an end is infinite, or the interval wider than its dtype's range.

    Normal where both ends are open, exponential from the end that is not, else uniform; one
    uniform number is drawn for each.
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


class UniformIntegers:
    """Integers with equal chances, in an interval that a floating dtype counts exactly."""

    def __init__(self, dtype: torch.dtype, base: Tensor, span: Tensor) -> None:
        self.dtype, self.base, self.span = dtype, base, span

    def __call__(self, shape: torch.Size) -> Tensor:
        unit = torch.rand(shape, dtype=self.base.dtype, device=self.base.device)
        offset = torch.minimum(unit.mul_(self.span).floor_(), self.span - 1)
        return offset.add_(self.base).to(self.dtype)


class WideIntegers:
    """Integers with equal chances in an interval of any width."""

    def __init__(self, low: Tensor, high: Tensor) -> None:
        self.like = low
        self.kind: Any = np.uint64 if low.dtype is torch.uint64 else np.int64
        self.ends = [end.cpu().numpy().astype(self.kind) for end in (low, high)]

    def __call__(self, shape: torch.Size) -> Tensor:
        seed = int(torch.randint(torch.iinfo(torch.int64).max, ()))
        low, high = self.ends
        generator = np.random.default_rng(seed)
        drawn = generator.integers(low, high, tuple(shape), dtype=self.kind, endpoint=True)
        return torch.from_numpy(np.asarray(drawn)).to(self.like.dtype).to(self.like.device)
