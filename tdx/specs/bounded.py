"""Specs of numbers, with or without bounds."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tdx.foundation.errors import SpecError
from tdx.specs.arguments import Device, View, as_device, as_dtype, as_size, replace_unknown_sizes
from tdx.specs.intervals import (
    WIDE_UNSIGNED,
    BoundsBox,
    ContinuousBox,
    IntervalSampler,
    adapt_bound,
    bound_tensor,
    broadcast_bound,
    broadcast_bounds,
    cast,
    clamp,
    clip,
    extremes,
    is_continuous,
    make_sampler,
    ordered,
    within,
)
from tdx.specs.multi_categorical import Binary
from tdx.specs.spec import TensorSpec

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
        shape: Any = 1,
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
        shape: Any = 1,
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

    def rand(self, shape: Any = ()) -> Tensor:
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

    def _contains(self, val: Tensor) -> bool:
        return True

    def elements_in(self, val: Tensor) -> Tensor:
        return torch.ones_like(val, dtype=torch.bool)

    def _project(self, val: Tensor) -> Tensor:
        return val

    def _has_same_space(self, other: Any) -> bool:
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
            the shape.

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
        low: Any = None,
        high: Any = None,
        shape: Any = None,
        device: Device | None = None,
        dtype: torch.dtype | str | None = None,
        domain: str | None = None,
    ) -> Bounded:
        """Create an instance of the class for the dtype."""
        return object.__new__(_bounded_class(domain, as_dtype(dtype)) if cls is Bounded else cls)

    def __init__(
        self,
        low: Any = None,
        high: Any = None,
        shape: Any = None,
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

    def _set_bounds(self, low: Any, high: Any, shape: torch.Size) -> None:
        if self._dtype.is_complex:
            raise SpecError(
                f"{self._dtype} has no order, so it cannot have bounds", hint="use Unbounded"
            )
        self._shape = shape
        self._low = broadcast_bound(
            bound_tensor(low, self._dtype, self._device, upper=False), shape
        )
        self._high = broadcast_bound(
            bound_tensor(high, self._dtype, self._device, upper=True), shape
        )
        are_numbers = isinstance(low, (int, float)) and isinstance(high, (int, float))
        if are_numbers and self._dtype.is_floating_point:
            in_order = low <= high
        elif self._low.is_meta:
            in_order = True
        else:
            in_order = bool((ordered(self._low) <= ordered(self._high)).all())
        if not in_order:
            raise SpecError(
                "low must not be above high, and neither of them NaN",
                hint="swap the two, or use None for no bound",
            )

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

    def _assign_bounds(self, low: Tensor, high: Tensor) -> None:
        """Set the bounds, one after the other, with the shape and dtype that they agree on."""
        self._low, self._high, self._sampler = low, high, None
        if low.shape != high.shape or low.dtype != high.dtype:
            return
        if low.shape != replace_unknown_sizes(self._shape):
            self._shape = low.shape
        if low.dtype != self._dtype:
            self.__class__ = _bounded_class(None, low.dtype)
        self._dtype, self._device = low.dtype, low.device

    def rand(self, shape: Any = ()) -> Tensor:
        """Sample uniformly between the bounds, both included.

        Elements with one infinite bound are exponential, with two standard normal.
        """
        if self._sampler is None:
            self._sampler = make_sampler(self._low, self._high)
        return self._sampler(self._full_shape(shape))

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

    def apply_view(self, view: View) -> TensorSpec:
        shape = self._view_shape(view)
        if -1 in self._shape:
            return self.replace(shape=shape)
        viewed = self.clone()
        viewed._shape = shape
        viewed._low, viewed._high, viewed._sampler = view(self._low), view(self._high), None
        return viewed

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

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name != "_sampler"}
        if self._dtype in WIDE_UNSIGNED:  # torch cannot unpickle tensors of these
            state["_low"], state["_high"] = _as_signed(self._low), _as_signed(self._high)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._dtype in WIDE_UNSIGNED:
            self._low, self._high = self._low.view(self._dtype), self._high.view(self._dtype)

    def _has_same_space(self, other: Any) -> bool:
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
