"""Intervals of numbers: the space of numeric specs, and arithmetic and sampling on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdx.foundation.errors import SpecError
from tdx.specs.arguments import replace_unknown_sizes
from tdx.specs.spaces import Box, indent


class ContinuousBox(Box):
    """A closed interval for every element.

    Args:
        low: Lower bounds, of the spec's shape.
        high: Upper bounds, of the spec's shape.

    Example:
        >>> box = ContinuousBox(torch.zeros(2), torch.ones(2))
        >>> box.low, box.high
        (tensor([0., 0.]), tensor([1., 1.]))
    """

    __slots__ = ("high", "low")

    def __init__(self, low: Tensor, high: Tensor) -> None:
        self.low = low
        self.high = high

    def __iter__(self) -> Iterator[Tensor]:
        yield self.low
        yield self.high

    def clone(self) -> ContinuousBox:
        """Return an independent copy."""
        return ContinuousBox(_copy(self.low), _copy(self.high))

    def to(self, dest: torch.device | torch.dtype | str) -> ContinuousBox:
        return ContinuousBox(self.low.to(dest), self.high.to(dest))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ContinuousBox)
            and self.low.dtype == other.low.dtype
            and self.low.device == other.low.device
            and torch.equal(self.low, other.low)
            and torch.equal(self.high, other.high)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        bounds = f"low={_describe_tensor(self.low)},\nhigh={_describe_tensor(self.high)}"
        return f"ContinuousBox(\n{indent(bounds)})"


class BoundsBox(ContinuousBox):
    """Interval of a ``Bounded`` spec. Setting a bound changes the spec.

    Args:
        spec: The spec. It takes the shape, dtype and device of its bounds once both have them.
    """

    __slots__ = ("_spec",)

    def __init__(self, spec: Any) -> None:
        self._spec = spec

    @property
    def low(self) -> Tensor:
        """Copy of the lower bounds, so that changes in place do not affect other specs."""
        return _copy(self._spec._low)

    @low.setter
    def low(self, bound: Tensor) -> None:
        self._spec._assign_bounds(bound, self._spec._high)

    @property
    def high(self) -> Tensor:
        """Copy of the upper bounds."""
        return _copy(self._spec._high)

    @high.setter
    def high(self, bound: Tensor) -> None:
        self._spec._assign_bounds(self._spec._low, bound)


def _copy(bound: Tensor) -> Tensor:
    return bound.clone(memory_format=torch.contiguous_format)


def _describe_tensor(tensor: Tensor) -> str:
    return (
        f"Tensor(shape={tensor.shape}, device={tensor.device}, dtype={tensor.dtype}, "
        f"contiguous={tensor.is_contiguous()})"
    )


WIDE_UNSIGNED = {torch.uint16, torch.uint32, torch.uint64}
_INT64 = torch.iinfo(torch.int64)


def is_continuous(dtype: torch.dtype) -> bool:
    """Return True for floating-point and complex dtypes."""
    return dtype.is_floating_point or dtype.is_complex


def extremes(dtype: torch.dtype) -> tuple[float, float]:
    """Return the smallest and the largest finite number of a real dtype."""
    if dtype is torch.bool:
        return False, True
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return info.min, info.max


_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def ordered(value: Tensor) -> Tensor:
    """Convert values to a dtype that torch can compare, preserving their order."""
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
    """Cast values, rounding and saturating those out of range. NaN becomes 0 in integers.

    Args:
        value: Tensor of any shape and dtype.
        dtype: Target dtype.
        rounding: Rounds fractions when the target is an integer dtype.
    """
    if value.dtype == dtype or dtype.is_complex:
        return value.to(dtype)
    if value.is_complex():
        value = value.real
    if dtype.is_floating_point:
        return value.to(dtype)
    low, high = (int(bound) for bound in extremes(dtype))
    if not value.is_floating_point():
        if value.dtype is torch.uint64:
            signed = value.view(torch.int64)
            value = torch.where(signed < 0, _INT64.max, signed)
        return value.to(torch.int64).clamp(low, min(high, _INT64.max)).to(dtype)
    value = rounding(torch.nan_to_num(value.double(), 0.0, math.inf, -math.inf))
    below, above = value <= low, value >= high
    inside = value.masked_fill(below | above, 0.0).to(dtype)
    bounds = [torch.tensor(bound, dtype=dtype, device=value.device) for bound in (low, high)]
    return _where(above, bounds[1], _where(below, bounds[0], inside))


def bound_tensor(value: Any, dtype: torch.dtype, device: torch.device, *, upper: bool) -> Tensor:
    """Convert a bound to a tensor, rounded into the interval to a value of the dtype.

    Args:
        value: A number, an array or nested lists. ``None``: unbounded, which is infinity for
            floating-point dtypes and the extreme of an integer dtype.
        dtype: Dtype of the spec.
        device: Device of the spec.
        upper: True for the upper bound.

    Raises:
        SpecError: The bound is not numeric.
    """
    if value is None:
        value = math.inf if upper else -math.inf
    if isinstance(value, (bool, int, float)):
        if not dtype.is_floating_point:
            value = _round_inwards(value, dtype, upper)
        elif not abs(value) <= torch.finfo(dtype).max:
            value = math.nan if value != value else math.copysign(math.inf, value)
        return torch.tensor(value, dtype=dtype, device=device)
    try:
        found = value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
    except TypeError as error:
        raise SpecError(
            f"{'high' if upper else 'low'} must contain numbers, got {value!r}",
            hint="give a number, or a tensor of numbers",
        ) from error
    found = cast(found.detach(), dtype, torch.floor if upper else torch.ceil)
    return found.to(device)


def _round_inwards(value: float, dtype: torch.dtype, upper: bool) -> int:
    low, high = (int(bound) for bound in extremes(dtype))
    if math.isnan(value):
        raise SpecError(f"{'high' if upper else 'low'} is NaN", hint="use None for no bound")
    if math.isinf(value):
        return high if value > 0 else low
    return min(max(math.floor(value) if upper else math.ceil(value), low), high)


def broadcast_bounds(low: Any, high: Any) -> torch.Size:
    """Return the shape that two bounds broadcast to.

    Raises:
        SpecError: Both are numbers, or they do not broadcast.
    """
    sizes = [
        bound.shape if isinstance(bound, Tensor) else torch.Size(np.shape(bound))
        for bound in (low, high)
        if bound is not None and not isinstance(bound, (bool, int, float))
    ]
    if not sizes:
        raise SpecError(
            f"cannot infer the shape of a Bounded from low={low} and high={high}",
            hint="give shape=..., () for a single number",
        )
    if all(size == sizes[0] for size in sizes):
        return sizes[0]
    try:
        return torch.broadcast_shapes(*sizes)
    except RuntimeError as error:
        raise SpecError(
            f"low of shape {tuple(sizes[0])} and high of shape {tuple(sizes[-1])} do not broadcast",
            hint="give both bounds the shape of the spec, or single numbers",
        ) from error


def broadcast_bound(bound: Tensor, shape: torch.Size) -> Tensor:
    """Broadcast a bound to the shape of a spec.

    Raises:
        SpecError: It does not broadcast.
    """
    if bound.shape == shape:
        return bound
    try:
        return bound.expand(replace_unknown_sizes(shape))
    except RuntimeError as error:
        raise SpecError(
            f"bounds of shape {tuple(bound.shape)} do not broadcast to {tuple(shape)}",
            hint="give low and high of that shape too",
        ) from error


def adapt_bound(bound: Any, current: Tensor, shape: torch.Size) -> Any:
    """Reduce an unchanged bound that is the same for all elements to a number."""
    if bound is not current or current.shape == shape or not current.numel():
        return bound
    first = current.flatten()[0]
    return first if bool((ordered(current) == ordered(first)).all()) else current


def within(low: Tensor, high: Tensor, value: Tensor) -> Tensor:
    """Return which values are within their interval. NaN is in none."""
    value = ordered(value)
    return (ordered(low) <= value) & (value <= ordered(high))


def clip(value: Tensor, low: float | None, high: float | None) -> Tensor:
    """Return ``value.clamp(low, high)``, also if an integer dtype ends before a bound.

    torch before 2.15 refuses such bounds.

    Args:
        value: Tensor of any shape and real dtype.
        low: Lower bound. ``None``: unbounded below.
        high: Upper bound. ``None``: unbounded above.

    Raises:
        SpecError: No number of the dtype is within the bounds.
    """
    dtype = value.dtype
    if dtype.is_floating_point or isinstance(low, float) or isinstance(high, float):
        return value.clamp(low, high)
    least, most = extremes(dtype)
    if (low is not None and low > most) or (high is not None and high < least):
        raise SpecError(
            f"the bounds [{low}, {high}] do not fit {dtype}",
            hint="choose bounds that the dtype can represent",
        )
    if dtype is torch.bool:
        return value.clamp(low, high)
    return value.clamp(
        None if low is None else max(low, least), None if high is None else min(high, most)
    )


def clamp(low: Tensor, high: Tensor, value: Tensor) -> Tensor:
    """Clamp values to their intervals. NaN is treated as 0."""
    if value.is_floating_point():
        value = torch.where(value.isnan(), torch.zeros_like(value), value)
    value = _where(ordered(value) < ordered(low), low, value)
    return _where(ordered(value) > ordered(high), high, value)


def _where(mask: Tensor, value: Tensor, other: Tensor) -> Tensor:
    """Like ``torch.where``, including the wide unsigned dtypes that older torch rejects."""
    signed = _SIGNED.get(value.dtype)
    if signed is None:
        return torch.where(mask, value, other)
    return torch.where(mask, value.view(signed), other.view(signed)).view(value.dtype)


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
