"""Specs of numbers between two ends."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from tdx.errors import SpecError
from tdx.specs.arguments import Device, as_device, as_dtype, as_size, safe_size
from tdx.specs.bounds import clamp, contains, end_tensor, is_continuous
from tdx.specs.boxes import ContinuousBox
from tdx.specs.draws import Draw, draw_between
from tdx.specs.spec import TensorSpec, View

_MOST_ENUMERATED = 2**24


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
        SpecError: ``low`` is above ``high``, or the ends do not broadcast to the shape.

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
        domain: Literal["continuous", "discrete"] | None = None,
    ) -> Bounded:
        if cls is not Bounded:
            return object.__new__(cls)
        if domain is None:
            domain = "continuous" if is_continuous(as_dtype(dtype)) else "discrete"
        return object.__new__(BoundedContinuous if domain == "continuous" else BoundedDiscrete)

    def __init__(
        self,
        low: Any = None,
        high: Any = None,
        shape: Any = None,
        device: Device | None = None,
        dtype: torch.dtype | str | None = None,
        domain: Literal["continuous", "discrete"] | None = None,
    ) -> None:
        self._dtype = as_dtype(dtype)
        self._device = as_device(device)
        if self._dtype.is_complex:
            raise SpecError("complex numbers have no order, so no bounds", hint="use Unbounded")
        ends = (
            end_tensor(low, self._dtype, self._device, upper=False),
            end_tensor(high, self._dtype, self._device, upper=True),
        )
        self._shape = _shape_of(low, high, shape)
        self._low, self._high = (_broadcast(end, self._shape) for end in ends)
        if not contains(ends[0], ends[1], ends[0]) or (ends[1] != ends[1]).any():
            raise SpecError(f"low must not be above high, got low={low!r} and high={high!r}")

    @property
    def low(self) -> Tensor:
        """Smallest values."""
        return self._low

    @property
    def high(self) -> Tensor:
        """Largest values."""
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
        if not self._low.numel():
            return "the bounds"
        ends = [float(x) for x in (self._low.double().min(), self._high.double().max())]
        return f"the bounds, which span [{ends[0]:g}, {ends[1]:g}]"

    def cardinality(self) -> float:
        """How many different values there are; infinite for fractions."""
        if is_continuous(self._dtype):
            return math.inf
        return math.prod(
            int(high) - int(low) + 1
            for low, high in zip(
                self._low.flatten().tolist(), self._high.flatten().tolist(), strict=True
            )
        )

    def enumerate(self, use_mask: bool = False) -> Tensor:
        """Every value along a new first dimension, the last element changing fastest."""
        count = self.cardinality()
        if count > _MOST_ENUMERATED:
            return super().enumerate(use_mask)  # type: ignore[no-any-return]
        ranges = [
            torch.arange(int(low), int(high) + 1, device=self._device)
            for low, high in zip(
                self._low.flatten().tolist(), self._high.flatten().tolist(), strict=True
            )
        ]
        if not ranges:
            return self.zero((1,))  # type: ignore[no-any-return]
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

    def replace(self, **changes: Any) -> TensorSpec:
        """A copy with some of ``low``, ``high``, ``shape``, ``device`` and ``dtype`` changed.

        With both ends set to ``None`` it becomes an ``Unbounded``. A new shape takes ends that are
        the same for all elements along, others must broadcast to it.
        """
        if changes.get("low", 0) is None and changes.get("high", 0) is None:
            from tdx.specs.unbounded import Unbounded

            del changes["low"], changes["high"]
            return Unbounded(**{**super()._arguments(), **changes})
        kept = self._arguments()
        if "shape" in changes:
            shape = as_size(changes["shape"])
            kept["low"], kept["high"] = (_fitted(kept[end], shape) for end in ("low", "high"))
        if "dtype" not in changes:
            kept["domain"] = self.domain
        return Bounded(**{**kept, **changes})

    def _arguments(self) -> dict[str, Any]:
        return {**super()._arguments(), "low": self._low, "high": self._high}

    def _equals(self, other: Any) -> bool:
        return torch.equal(self._low, other._low) and torch.equal(self._high, other._high)


class BoundedContinuous(Bounded):
    """A ``Bounded`` of numbers with fractions."""

    domain = "continuous"


class BoundedDiscrete(Bounded):
    """A ``Bounded`` of integers or bools."""

    domain = "discrete"


def _shape_of(low: Any, high: Any, shape: Any) -> torch.Size:
    if shape is not None:
        return as_size(shape)
    sizes = [
        end.shape if isinstance(end, Tensor) else torch.as_tensor(end).shape
        for end in (low, high)
        if end is not None and not isinstance(end, (bool, int, float))
    ]
    if not sizes:
        raise SpecError(
            "the shape of a Bounded does not follow from two numbers",
            hint="give shape=..., () for a single number",
        )
    try:
        return torch.broadcast_shapes(*sizes)
    except RuntimeError as error:
        raise SpecError(
            f"low of shape {tuple(sizes[0])} and high of shape {tuple(sizes[-1])} do not broadcast"
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


def _fitted(end: Tensor, shape: torch.Size) -> Tensor:
    if end.shape != shape and end.numel():
        first = end.flatten()[0]
        if all(
            stride == 0 or size == 1 for stride, size in zip(end.stride(), end.shape, strict=True)
        ):
            return first
        if torch.equal(end, first.expand(end.shape)):
            return first
    return end
