"""Specs of numbers, with or without bounds, and the intervals of their elements."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from tdx.foundation.accelerators import move
from tdx.foundation.errors import SpecError
from tdx.foundation.torch_internals import broadcast_shapes
from tdx.specs.arguments import (
    WIDE_UNSIGNED,
    ArrayLike,
    Device,
    Shape,
    View,
    as_device,
    as_dtype,
    as_size,
    cast,
    extremes,
    is_continuous,
    ordered,
    replace_unknown_sizes,
    where,
)
from tdx.specs.categorical import Binary
from tdx.specs.spaces import Box, indent
from tdx.specs.spec import TensorSpec


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

    The spec takes the shape, dtype and device of its bounds once both have them.
    """

    __slots__ = ("_spec",)

    def __init__(self, spec: Bounded) -> None:
        self._spec = spec

    @property
    def low(self) -> Tensor:
        """Copy of the lower bounds, so that changes in place do not affect other specs."""
        return _copy(self._spec.low)

    @low.setter
    def low(self, bound: Tensor) -> None:
        self._spec.assign_bounds(bound, self._spec.high)

    @property
    def high(self) -> Tensor:
        """Copy of the upper bounds."""
        return _copy(self._spec.high)

    @high.setter
    def high(self, bound: Tensor) -> None:
        self._spec.assign_bounds(self._spec.low, bound)


def _copy(bound: Tensor) -> Tensor:
    return bound.clone(memory_format=torch.contiguous_format)


def _describe_tensor(tensor: Tensor) -> str:
    return (
        f"Tensor(shape={tensor.shape}, device={tensor.device}, dtype={tensor.dtype}, "
        f"contiguous={tensor.is_contiguous()})"
    )


def bound_tensor(value: ArrayLike | None, dtype: torch.dtype, *, upper: bool) -> Tensor:
    """Convert a bound to a tensor where it is, rounded into the interval to a value of the dtype.

    ``None`` is unbounded: infinity for floating-point dtypes, the extreme of an integer dtype.

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
        return torch.tensor(value, dtype=dtype)
    try:
        bound = value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
    except TypeError as error:
        raise SpecError(
            f"{'high' if upper else 'low'} must contain numbers, got {value!r}",
            hint="give a number, or a tensor of numbers",
        ) from error
    return cast(bound.detach(), dtype, torch.floor if upper else torch.ceil)


def _round_inwards(value: float, dtype: torch.dtype, upper: bool) -> int:
    low, high = (int(bound) for bound in extremes(dtype))
    if math.isnan(value):
        raise SpecError(f"{'high' if upper else 'low'} is NaN", hint="use None for no bound")
    if math.isinf(value):
        return high if value > 0 else low
    return min(max(math.floor(value) if upper else math.ceil(value), low), high)


def broadcast_bounds(low: ArrayLike | None, high: ArrayLike | None) -> torch.Size:
    """Return the shape that two bounds, of which one is no number, broadcast to."""
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
        return broadcast_shapes(*sizes)
    except ValueError as error:
        raise SpecError(
            f"low of shape {tuple(sizes[0])} and high of shape {tuple(sizes[-1])} do not broadcast",
            hint="give both bounds the shape of the spec, or single numbers",
        ) from error


def broadcast_bound(bound: Tensor, shape: torch.Size) -> Tensor:
    """Broadcast a bound to the shape of a spec."""
    if bound.shape == shape:
        return bound
    try:
        return bound.expand(replace_unknown_sizes(shape))
    except RuntimeError as error:
        raise SpecError(
            f"bounds of shape {tuple(bound.shape)} do not broadcast to {tuple(shape)}",
            hint="give low and high of that shape too",
        ) from error


def adapt_bound(bound: ArrayLike | None, current: Tensor, shape: torch.Size) -> ArrayLike | None:
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


def _in_order(low: Tensor, high: Tensor) -> bool:
    return bool((ordered(low) <= ordered(high)).all())


def _order_error() -> SpecError:
    return SpecError(
        "low must not be above high, and neither of them NaN",
        hint="swap the two, or use None for no bound",
    )


def clamp(low: Tensor, high: Tensor, value: Tensor) -> Tensor:
    """Clamp values to their intervals. NaN is treated as 0."""
    if value.is_floating_point():
        value = torch.where(value.isnan(), torch.zeros_like(value), value)
    value = where(ordered(value) < ordered(low), low, value)
    return where(ordered(value) > ordered(high), high, value)


# Number of consecutive integers that a dtype represents exactly.
_EXACT_INTEGERS = {torch.float32: 2**24, torch.float64: 2**53}


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
        return self.at(torch.rand(shape, dtype=self.work, device=self.low.device))

    def at(self, unit: Tensor) -> Tensor:
        drawn = unit.to(self.work).mul_(self.span).add_(self.base).to(self.low.dtype)
        return torch.minimum(drawn, self.high) if drawn.dtype.itemsize > 1 else drawn


def _normal_at(unit: Tensor) -> Tensor:
    return torch.special.ndtri(unit.clamp(min=torch.finfo(torch.float32).tiny))


class UnboundedSampler:
    """Real numbers where a bound is infinite, or the width exceeds the range of the dtype.

    Elements without bounds are normal, with one bound exponential, with two uniform. Each element
    takes one uniform number from the generator.
    """

    def __init__(self, low: Tensor, high: Tensor) -> None:
        self.low, self.high = low, high
        self.start, self.end = low.double(), high.double()

    def __call__(self, shape: torch.Size) -> Tensor:
        return self.at(torch.rand(shape, dtype=torch.float64, device=self.low.device))

    def at(self, unit: Tensor) -> Tensor:
        dtype = self.low.dtype
        open_below, open_above = self.start.isinf(), self.end.isinf()
        tail = -torch.log1p(-unit)
        start, end = (torch.nan_to_num(x, 0.0, 0.0, 0.0) for x in (self.start, self.end))
        normal = _normal_at(unit)
        from_below = torch.where(open_above, start + tail, start * (1 - unit) + end * unit)
        from_above = torch.where(open_above, normal, end - tail)
        drawn = torch.where(open_below, from_above, from_below).to(dtype)
        return clamp(self.low, self.high, drawn)


class IntegerSampler:
    """Uniform integers in an interval whose width a floating-point dtype represents exactly."""

    def __init__(self, dtype: torch.dtype, base: Tensor, span: Tensor) -> None:
        self.dtype, self.base, self.span = dtype, base, span

    def __call__(self, shape: torch.Size) -> Tensor:
        return self.at(torch.rand(shape, dtype=self.base.dtype, device=self.base.device))

    def at(self, unit: Tensor) -> Tensor:
        unit = unit.to(self.base.dtype)
        offset = torch.minimum(unit.mul_(self.span).floor_(), self.span - 1)
        return offset.add_(self.base).to(self.dtype)


class WideIntegerSampler:
    """Uniform integers in an interval of any width."""

    def __init__(self, low: Tensor, high: Tensor) -> None:
        self.dtype, self.device = low.dtype, low.device
        self.base, last = (
            bound.view(torch.int64) if bound.dtype is torch.uint64 else bound.long()
            for bound in (low, high)
        )
        # Modulo 2**64, so that 0 stands for all words.
        self.span = last - self.base + 1
        self.work: type[np.uint64 | np.int64] = np.uint64 if low.dtype is torch.uint64 else np.int64
        self.bounds = [bound.cpu().numpy().astype(self.work) for bound in (low, high)]

    def __call__(self, shape: torch.Size) -> Tensor:
        seed = int(torch.randint(torch.iinfo(torch.int64).max, ()))
        low, high = self.bounds
        generator = np.random.default_rng(seed)
        drawn = generator.integers(low, high, tuple(shape), dtype=self.work, endpoint=True)
        return torch.from_numpy(np.asarray(drawn)).to(self.dtype).to(self.device)

    def at(self, unit: Tensor) -> Tensor:
        words = _words_at(unit)
        offset = torch.where(self.span == 0, words, _multiply_high(words, self.span))
        drawn = offset + self.base
        return drawn.view(torch.uint64) if self.dtype is torch.uint64 else drawn.to(self.dtype)


_LOW_WORD = 2**32 - 1
# 2**64 divided by the golden ratio: multiples of it are spread evenly modulo 2**64.
_SPREAD = 0x9E3779B97F4A7C15 - 2**64


def _words_at(unit: Tensor) -> Tensor:
    """Return 64 bits, as int64, for uniform numbers from ``[0, 1)`` that are multiples of 2**-53.

    Neither the first nor the last bits follow a pattern.
    """
    return (unit * 2**53).long() * _SPREAD


def _multiply_high(one: Tensor, other: Tensor) -> Tensor:
    """Return the first 64 bits of the product of unsigned integers, which int64 holds."""
    (one_high, one_low), (other_high, other_low) = map(_split_word, (one, other))
    carry, _ = _split_word(one_low * other_low)
    middle, rest = _split_word(one_high * other_low + carry)
    carry, _ = _split_word(one_low * other_high + rest)
    return one_high * other_high + middle + carry


def _split_word(word: Tensor) -> tuple[Tensor, Tensor]:
    # `>>` repeats the sign.
    return (word >> 32) & _LOW_WORD, word & _LOW_WORD


IntervalSampler = UniformSampler | UnboundedSampler | IntegerSampler | WideIntegerSampler
"""Samples values within bounds, both included; the shape ends with that of the bounds.

``at`` returns the values for uniform numbers from ``[0, 1)``, one for each element, and may
overwrite these.
"""

_MAX_ENUMERATED = 2**24


class Unbounded(TensorSpec):
    """Any numbers of the dtype, including infinities and NaN.

    The constructor returns an ``UnboundedContinuous`` for floating-point and complex dtypes and an
    ``UnboundedDiscrete`` for integers and bools.

    Args:
        shape: Shape of the values.
        device: Device of the values.
        dtype: Dtype of the values; torch's default dtype if not given.
        domain: "continuous" or "discrete", to override the domain of the dtype.

    Example:
        >>> Unbounded(3).is_in(torch.full((3,), 1e30))
        True
    """

    _dtype: torch.dtype
    _device: torch.device

    def __new__(
        cls,
        shape: Shape = 1,
        device: Device | None = None,
        dtype: torch.dtype | str | None = None,
        domain: str | None = None,
    ) -> Unbounded:
        """Create an instance of the class for the dtype."""
        if cls is not Unbounded:
            return object.__new__(cls)
        continuous = _is_continuous(domain, as_dtype(dtype))
        return object.__new__(UnboundedContinuous if continuous else UnboundedDiscrete)

    def __init__(
        self,
        shape: Shape = 1,
        device: Device | None = None,
        dtype: torch.dtype | str | None = None,
        domain: str | None = None,
    ) -> None:
        if dtype is None and self.domain == "discrete" and domain is None:
            dtype = torch.int64
        self._shape = as_size(shape)
        self._device = as_device(device)
        self._dtype = as_dtype(dtype)

    @property
    def space(self) -> ContinuousBox | None:
        """Range of the dtype; ``None`` for complex numbers."""
        if self._dtype.is_complex:
            return None
        shape = replace_unknown_sizes(self._shape)
        low, high = (
            torch.full(shape, bound, dtype=self._dtype, device=self._device)
            for bound in extremes(self._dtype)
        )
        return ContinuousBox(low, high)

    @space.setter
    def space(self, space: ContinuousBox | None) -> None:
        if space is not None and space != self.space:
            low, high = _read_bounds(space)
            self._become(self.replace(low=low, high=high))

    def rand(self, shape: Shape | None = ()) -> Tensor:
        """Sample standard normal values; integers are uniform from 0 to the dtype's maximum."""
        full = self._full_shape(shape)
        if is_continuous(self._dtype):
            work = torch.float32 if self._dtype.itemsize == 1 else self._dtype
            return torch.randn(full, dtype=work, device=self._device).to(self._dtype)
        if self._dtype in WIDE_UNSIGNED:
            # Torch does not sample unsigned integers wider than 8 bits: sample their bits.
            signed = torch.empty(full, dtype=torch.int64, device=self._device)
            bits = signed.random_(torch.iinfo(torch.int64).min, None)
            return bits.view(torch.uint64) if self._dtype is torch.uint64 else bits.to(self._dtype)
        return torch.empty(full, dtype=self._dtype, device=self._device).random_()

    def rand_at(self, unit: Tensor) -> Tensor | None:
        if self._dtype.is_floating_point:
            return _normal_at(unit).to(self._dtype)
        if self._dtype.is_complex:
            return None
        if self._dtype is torch.bool:
            return unit >= 0.5
        words = _words_at(unit)
        if self._dtype is torch.uint64:
            return words.view(torch.uint64)
        return (words & torch.iinfo(self._dtype).max).to(self._dtype)

    def _contains(self, val: Tensor) -> bool:
        return True

    def elements_in(self, val: Tensor) -> Tensor:
        return torch.ones_like(val, dtype=torch.bool)

    def _project(self, val: Tensor) -> Tensor:
        return val

    def _has_same_space(self, other: Self) -> bool:
        return True

    def replace(self, **changes: Any) -> Any:
        """Return a copy with ``shape``, ``device`` or ``dtype`` changed.

        With ``low`` or ``high`` the copy is a ``Bounded``.
        """
        arguments = {**self._arguments(), **changes}
        if "dtype" not in changes:
            arguments["domain"] = self.domain
        if arguments.get("low") is None and arguments.get("high") is None:
            arguments.pop("low", None)
            arguments.pop("high", None)
            return Unbounded(**arguments)
        return Bounded(**arguments)


class UnboundedContinuous(Unbounded):
    """An ``Unbounded`` of real or complex numbers."""

    domain = "continuous"


class UnboundedDiscrete(Unbounded):
    """An ``Unbounded`` of integers or bools."""

    domain = "discrete"


class Bounded(TensorSpec):
    """Numbers from ``low`` to ``high``, both included.

    The constructor returns a ``BoundedContinuous`` for floating-point dtypes and a
    ``BoundedDiscrete`` for integers and bools.

    Args:
        low: Lower bounds; a number, or anything that broadcasts to the shape. ``None`` or
            infinity: unbounded below.
        high: Upper bounds, likewise.
        shape: Shape of the values; the shape of the bounds if not given.
        device: Device of the values.
        dtype: Dtype of the values; torch's default dtype if not given. Bounds that it cannot
            represent are rounded into the interval.
        domain: "continuous" or "discrete", to override the domain of the dtype.

    Raises:
        SpecError: ``low`` is above ``high``, a bound is NaN, or the bounds do not broadcast to
            the shape. Tensors on an accelerator are compared when the spec is first sampled.

    Example:
        >>> spec = Bounded(0, 255, shape=(2,), dtype=torch.uint8)
        >>> spec.is_in(torch.tensor([0, 255], dtype=torch.uint8))
        True
        >>> Bounded(-1, 1, shape=(2,)).project(torch.tensor([3.0, 0.5]))
        tensor([1.0000, 0.5000])
    """

    _low: Tensor
    _high: Tensor
    _dtype: torch.dtype
    _device: torch.device
    _sampler: IntervalSampler | None = None

    def __new__(
        cls,
        low: ArrayLike | None = None,
        high: ArrayLike | None = None,
        shape: Shape | None = None,
        device: Device | None = None,
        dtype: torch.dtype | str | None = None,
        domain: str | None = None,
    ) -> Bounded:
        """Create an instance of the class for the dtype."""
        return object.__new__(_bounded_class(domain, as_dtype(dtype)) if cls is Bounded else cls)

    def __init__(
        self,
        low: ArrayLike | None = None,
        high: ArrayLike | None = None,
        shape: Shape | None = None,
        device: Device | None = None,
        dtype: torch.dtype | str | None = None,
        domain: str | None = None,
    ) -> None:
        if device is None:
            device = next((end.device for end in (low, high) if isinstance(end, Tensor)), None)
        self._device = as_device(device)
        self._dtype = as_dtype(dtype)
        size = broadcast_bounds(low, high) if shape is None else as_size(shape)
        low, high = (end.clone() if isinstance(end, Tensor) else end for end in (low, high))
        self._set_bounds(low, high, size)

    def _set_bounds(self, low: ArrayLike | None, high: ArrayLike | None, shape: torch.Size) -> None:
        if self._dtype.is_complex:
            raise SpecError(
                f"{self._dtype} has no order, so it cannot have bounds", hint="use Unbounded"
            )
        ends = (
            bound_tensor(low, self._dtype, upper=False),
            bound_tensor(high, self._dtype, upper=True),
        )
        wide = [broadcast_bound(end, shape) for end in ends]
        # Checked before they are moved to an accelerator.
        if (
            isinstance(low, (int, float))
            and isinstance(high, (int, float))
            and self._dtype.is_floating_point
        ):
            in_order = low <= high
        else:
            # Bounds on an accelerator wait until they are sampled: here, the host would wait.
            is_host = all(end.device.type == "cpu" for end in ends)
            in_order = not is_host or _in_order(*wide)
        if not in_order:
            raise _order_error()
        self._shape = shape
        self._low, self._high = (broadcast_bound(move(end, self._device), shape) for end in ends)

    @property
    def low(self) -> Tensor:
        """Lower bounds, of the spec's shape."""
        return self._low

    @property
    def high(self) -> Tensor:
        """Upper bounds, of the spec's shape."""
        return self._high

    @property
    def space(self) -> ContinuousBox:
        """Interval of every element. Setting its ``low`` or ``high`` changes the spec."""
        return BoundsBox(self)

    @space.setter
    def space(self, space: ContinuousBox | None) -> None:
        low, high = _read_bounds(space)
        self._become(self.replace(low=low, high=high))

    def assign_bounds(self, low: Tensor, high: Tensor) -> None:
        """Set the bounds in place; ``BoundsBox`` calls it for one bound after the other.

        The spec takes their shape and dtype once they agree on them.
        """
        for bound in (low, high):
            if _bounded_class(None, bound.dtype) is not type(self):
                raise SpecError(
                    f"the bounds of a {type(self).__name__} cannot be {bound.dtype}",
                    hint="set the entry of its composite to spec.replace(low=..., dtype=...)",
                )
        self._low, self._high, self._sampler = low, high, None
        if low.shape != high.shape or low.dtype != high.dtype:
            return
        if low.shape != replace_unknown_sizes(self._shape):
            self._shape = low.shape
        self._dtype, self._device = low.dtype, low.device

    def rand(self, shape: Shape | None = ()) -> Tensor:
        """Sample uniformly between the bounds, both included.

        Elements with one infinite bound are exponential, with two standard normal.
        """
        return self._make_sampler()(self._full_shape(shape))

    def rand_at(self, unit: Tensor) -> Tensor | None:
        return self._make_sampler().at(unit)

    def _make_sampler(self) -> IntervalSampler:
        if self._sampler is None:
            if self._device.type not in ("cpu", "meta") and not _in_order(self._low, self._high):
                raise _order_error()
            self._sampler = make_sampler(self._low, self._high)
        return self._sampler

    def elements_in(self, val: Tensor) -> Tensor:
        return within(self._low, self._high, val)

    def _project(self, val: Tensor) -> Tensor:
        return clamp(self._low, self._high, val)

    def _describe_space(self) -> str:
        low, high = float(self._low.double().min()), float(self._high.double().max())
        return f"the bounds, which range from {low:g} to {high:g}"

    def _integer_bounds(self) -> list[tuple[int, int]]:
        lows, highs = self._low.flatten().tolist(), self._high.flatten().tolist()
        return [(int(low), int(high)) for low, high in zip(lows, highs, strict=True)]

    def cardinality(self) -> float:
        """Return the number of values; infinity for a floating-point dtype."""
        if is_continuous(self._dtype):
            return math.inf
        return math.prod(high - low + 1 for low, high in self._integer_bounds())

    def enumerate(self, use_mask: bool = False) -> Tensor:
        """Return every value, stacked along a new first dimension, the last element fastest.

        Raises:
            SpecError: The dtype is floating-point, or there are too many values.
        """
        count = self.cardinality()
        if count > _MAX_ENUMERATED:
            return super().enumerate(use_mask)
        if not self._shape.numel():
            return self.zero((1,))
        ranges = [
            torch.arange(low, high + 1, device=self._device) for low, high in self._integer_bounds()
        ]
        grid = torch.cartesian_prod(*ranges).reshape(int(count), *self._shape)
        return grid.to(self._dtype)

    def apply_view(self, view: View) -> Self:
        shape = self._view_shape(view)
        if -1 in self._shape:
            return self.replace(shape=shape)
        return self._with(_shape=shape, _low=view(self._low), _high=view(self._high), _sampler=None)

    def replace(self, **changes: Any) -> Any:
        """Return a copy with ``low``, ``high``, ``shape``, ``device`` or ``dtype`` changed.

        With both bounds ``None`` the copy is an ``Unbounded``. Bounds that are the same for all
        elements adapt to a new shape; others must broadcast to it.
        """
        low, high = changes.pop("low", self._low), changes.pop("high", self._high)
        if low is None and high is None:
            return Unbounded(**{**self._arguments(), **changes})
        shape = as_size(changes.get("shape", self._shape))
        dtype = as_dtype(changes.get("dtype", self._dtype))
        is_same_dtype = dtype == self._dtype
        cls = type(self) if is_same_dtype else _bounded_class(changes.get("domain"), dtype)
        copied = object.__new__(cls)
        copied._dtype = dtype
        copied._device = as_device(changes.get("device", self._device))
        low, high = (
            adapt_bound(new, old, shape) for new, old in ((low, self._low), (high, self._high))
        )
        copied._set_bounds(low, high, shape)
        return copied

    def __getstate__(self) -> dict[str, object]:
        state = {name: value for name, value in self.__dict__.items() if name != "_sampler"}
        if self._dtype in WIDE_UNSIGNED:  # torch cannot unpickle tensors of these
            state["_low"], state["_high"] = _as_signed(self._low), _as_signed(self._high)
        return state

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        if self._dtype in WIDE_UNSIGNED:
            self._low, self._high = self._low.view(self._dtype), self._high.view(self._dtype)

    def _has_same_space(self, other: Self) -> bool:
        return torch.equal(self._low, other._low) and torch.equal(self._high, other._high)


class BoundedContinuous(Bounded):
    """A ``Bounded`` of real numbers."""

    domain = "continuous"


class BoundedDiscrete(Bounded):
    """A ``Bounded`` of integers or bools."""

    domain = "discrete"


def _bounded_class(domain: str | None, dtype: torch.dtype) -> type[Bounded]:
    return BoundedContinuous if _is_continuous(domain, dtype) else BoundedDiscrete


def _is_continuous(domain: str | None, dtype: torch.dtype) -> bool:
    if domain not in (None, "continuous", "discrete"):
        raise SpecError(
            f"domain must be 'continuous' or 'discrete', got {domain!r}",
            hint="leave it out to derive it from the dtype",
        )
    return is_continuous(dtype) if domain is None else domain == "continuous"


def _read_bounds(space: ContinuousBox | None) -> tuple[Tensor | None, Tensor | None]:
    if space is None:
        return None, None
    if not isinstance(space, ContinuousBox):
        raise SpecError(
            f"the space of numbers is a ContinuousBox, got {space!r}",
            hint="create a spec of the class for that space, such as Categorical",
        )
    return space.low, space.high


def _as_signed(bound: Tensor) -> Tensor:
    return bound.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[bound.dtype.itemsize])


def clamp_spec(spec: TensorSpec, low: float | None, high: float | None) -> TensorSpec:
    """Return the spec of ``value.clamp(low, high)`` for values of a numeric spec.

    Args:
        spec: Spec of the values, such as ``Bounded`` or ``Unbounded``.
        low: Lower bound. ``None``: unbounded below.
        high: Upper bound. ``None``: unbounded above.

    Raises:
        SpecError: No number of the dtype is within the bounds.

    Example:
        >>> clamp_spec(Bounded(-5.0, 1.0, shape=(2,)), 0.0, 9.0).high
        tensor([1., 1.])
    """
    if low is None and high is None:
        return spec
    dtype = clip(torch.zeros((), dtype=spec.dtype), low, high).dtype
    # Integers are clamped as int64, which holds the bounds, and then cast.
    work = dtype if dtype.is_floating_point else torch.int64
    smallest, largest = (
        cast(bound.to(work).clamp(low, high), dtype).expand(spec.shape)
        for bound in _value_range(spec)
    )
    return Bounded(smallest, largest, spec.shape, spec.device, dtype)


def _value_range(spec: TensorSpec) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest value of a numeric spec."""
    if isinstance(spec, Bounded):
        return spec.low, spec.high
    dtype = spec.dtype or torch.get_default_dtype()
    low, high = (-math.inf, math.inf) if dtype.is_floating_point else extremes(dtype)
    if isinstance(spec, Binary):
        low, high = 0, 1
    work = dtype if dtype.is_floating_point else torch.int64
    bounds = [
        torch.full(spec.shape, bound, dtype=work, device=spec.device) for bound in (low, high)
    ]
    return bounds[0], bounds[1]
