"""Specs of numbers between two ends."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tdx.errors import SpecError
from tdx.specs.arguments import Device, as_device, as_dtype, as_size, safe_size
from tdx.specs.bounds import (
    WIDE_UNSIGNED,
    clamp,
    contains,
    end_tensor,
    is_continuous,
    ordered,
)
from tdx.specs.boxes import ContinuousBox
from tdx.specs.draws import Draw, draw_between
from tdx.specs.shaping import View
from tdx.specs.spec import TensorSpec

_MOST_ENUMERATED = 2**24

Domain = Literal["continuous", "discrete"]


class Bounded(TensorSpec):
    """Numbers from ``low`` to ``high``, both included.

    Making one gives a ``BoundedContinuous`` for floating dtypes and a ``BoundedDiscrete`` for
    integers and bools.

    Args:
        low: smallest values; a number, or anything that broadcasts to the shape; ``None`` or an
            infinity for an open end.
        high: largest values, in the same way.
        shape: shape of the values; the ends' own where it is left out.
        device: device of the values.
        dtype: dtype of the values, torch's default one where it is left out. Ends that it cannot
            hold move inwards to the nearest that it can.
        domain: "continuous" or "discrete", to override what follows from the dtype.

    Raises:
        SpecError: ``low`` is above ``high`` or one is NaN, or they do not broadcast to the shape.

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
    _draw: Draw | None = None

    def __new__(
        cls,
        low: Any = None,
        high: Any = None,
        shape: Any = None,
        device: Device | None = None,
        dtype: torch.dtype | str | None = None,
        domain: str | None = None,
    ) -> Bounded:
        """An instance of the class for the dtype."""
        return object.__new__(_kind(domain, as_dtype(dtype)) if cls is Bounded else cls)

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
        size = _shape_of(low, high, shape)
        low, high = (end.clone() if isinstance(end, Tensor) else end for end in (low, high))
        self._settle(low, high, size)

    def _settle(self, low: Any, high: Any, shape: torch.Size) -> None:
        if self._dtype.is_complex:
            raise SpecError("complex numbers have no order, so no bounds", hint="use Unbounded")
        self._shape = shape
        self._low = _broadcast(end_tensor(low, self._dtype, self._device, upper=False), shape)
        self._high = _broadcast(end_tensor(high, self._dtype, self._device, upper=True), shape)
        numbers = isinstance(low, (int, float)) and isinstance(high, (int, float))
        if numbers and self._dtype.is_floating_point:
            in_order = low <= high
        elif self._low.is_meta:
            in_order = True
        else:
            in_order = bool((ordered(self._low) <= ordered(self._high)).all())
        if not in_order:
            raise SpecError(
                "low must not be above high, and neither of them NaN",
                hint="swap the two, or use None for an open end",
            )

    @property
    def low(self) -> Tensor:
        """Smallest values, of the spec's shape."""
        return self._low

    @property
    def high(self) -> Tensor:
        """Largest values, of the spec's shape."""
        return self._high

    @property
    def space(self) -> ContinuousBox:
        """The interval of every element."""
        return ContinuousBox(self._low.contiguous(), self._high.contiguous())

    def rand(self, shape: Any = ()) -> Tensor:
        """Values drawn with equal chances between the ends, both included.

        Where one end is open the distance to the other is exponential; where both are, the values
        are standard normal.
        """
        if self._draw is None:
            self._draw = draw_between(self._low, self._high)
        return self._draw(self._sizes(shape))

    def _contains(self, val: Tensor) -> bool:
        return contains(self._low, self._high, val)

    def _project(self, val: Tensor) -> Tensor:
        return clamp(self._low, self._high, val)

    def _describe_space(self) -> str:
        ends = (float(self._low.double().min()), float(self._high.double().max()))
        return f"the bounds, which span [{ends[0]:g}, {ends[1]:g}]"

    def _pairs(self) -> list[tuple[int, int]]:
        lows, highs = self._low.flatten().tolist(), self._high.flatten().tolist()
        return [(int(low), int(high)) for low, high in zip(lows, highs, strict=True)]

    def cardinality(self) -> float:
        """How many different values there are; infinite for fractions."""
        if is_continuous(self._dtype):
            return math.inf
        return math.prod(high - low + 1 for low, high in self._pairs())

    def enumerate(self, use_mask: bool = False) -> Tensor:
        """Every value along a new first dimension, the last element changing fastest.

        Raises:
            SpecError: they are fractions, or too many.
        """
        count = self.cardinality()
        if count > _MOST_ENUMERATED:
            return super().enumerate(use_mask)
        if not self._shape.numel():
            return self.zero((1,))
        ranges = [torch.arange(low, high + 1, device=self._device) for low, high in self._pairs()]
        grid = torch.cartesian_prod(*ranges).reshape(int(count), *self._shape)
        return grid.to(self._dtype)

    def _viewed(self, view: View) -> TensorSpec:
        shape = self._viewed_shape(view)
        if -1 in self._shape:
            return self.replace(shape=shape)
        viewed = self.clone()
        viewed._shape = shape
        viewed._low, viewed._high, viewed._draw = view(self._low), view(self._high), None
        return viewed

    def replace(self, **changes: Any) -> Any:
        """A copy with some of ``low``, ``high``, ``shape``, ``device`` and ``dtype`` changed.

        With both ends set to ``None`` it becomes an ``Unbounded``. A new shape takes ends that are
        the same for all elements along, others must broadcast to it.
        """
        low, high = changes.pop("low", self._low), changes.pop("high", self._high)
        if low is None and high is None:
            from tdx.specs.unbounded import Unbounded

            return Unbounded(**{**self._arguments(), **changes})
        shape = as_size(changes.get("shape", self._shape))
        dtype = as_dtype(changes.get("dtype", self._dtype))
        kind = type(self) if dtype == self._dtype else _kind(changes.get("domain"), dtype)
        made = object.__new__(kind)
        made._dtype = dtype
        made._device = as_device(changes.get("device", self._device))
        ends = (_fitted(low, self._low, shape), _fitted(high, self._high, shape))
        made._settle(*ends, shape)
        return made

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name != "_draw"}
        if self._dtype in WIDE_UNSIGNED:  # torch cannot unpickle tensors of these
            state["_low"], state["_high"] = _signed(self._low), _signed(self._high)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._dtype in WIDE_UNSIGNED:
            self._low, self._high = self._low.view(self._dtype), self._high.view(self._dtype)

    def _equals(self, other: Any) -> bool:
        return torch.equal(self._low, other._low) and torch.equal(self._high, other._high)


class BoundedContinuous(Bounded):
    """A ``Bounded`` of numbers with fractions."""

    domain = "continuous"


class BoundedDiscrete(Bounded):
    """A ``Bounded`` of integers or bools."""

    domain = "discrete"


def _kind(domain: str | None, dtype: torch.dtype) -> type[Bounded]:
    if domain not in (None, "continuous", "discrete"):
        raise SpecError(
            f"domain must be 'continuous' or 'discrete', got {domain!r}",
            hint="leave it out to have it follow from the dtype",
        )
    continuous = is_continuous(dtype) if domain is None else domain == "continuous"
    return BoundedContinuous if continuous else BoundedDiscrete


def _signed(end: Tensor) -> Tensor:
    return end.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[end.dtype.itemsize])


def _shape_of(low: Any, high: Any, shape: Any) -> torch.Size:
    if shape is not None:
        return as_size(shape)
    sizes = [
        end.shape if isinstance(end, Tensor) else torch.Size(np.shape(end))
        for end in (low, high)
        if end is not None and not isinstance(end, (bool, int, float))
    ]
    if not sizes:
        raise SpecError(
            "the shape of a Bounded does not follow from two numbers",
            hint="give shape=..., () for a single number",
        )
    if all(size == sizes[0] for size in sizes):
        return sizes[0]
    try:
        return torch.broadcast_shapes(*sizes)
    except RuntimeError as error:
        raise SpecError(
            f"low of shape {tuple(sizes[0])} and high of shape {tuple(sizes[-1])} do not broadcast",
            hint="give both ends the shape of the spec, or single numbers",
        ) from error


def _broadcast(end: Tensor, shape: torch.Size) -> Tensor:
    if end.shape == shape:
        return end
    try:
        return end.expand(safe_size(shape))
    except RuntimeError as error:
        raise SpecError(
            f"bounds of shape {tuple(end.shape)} do not broadcast to {tuple(shape)}",
            hint="give low and high of that shape too",
        ) from error


def _fitted(end: Any, kept: Tensor, shape: torch.Size) -> Any:
    """An end for a new shape: one that is kept and the same everywhere needs a single number."""
    if end is not kept or kept.shape == shape or not kept.numel():
        return end
    first = kept.flatten()[0]
    return first if bool((ordered(kept) == ordered(first)).all()) else kept
