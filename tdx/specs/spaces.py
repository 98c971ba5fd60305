"""Spaces of leaf specs: intervals and categories, and arithmetic and sampling on them."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdx.errors import SpecError
from tdx.specs.arguments import replace_unknown_sizes


class Box:
    """Base class of spaces."""

    def clone(self) -> Box:
        """Return an independent copy; the space itself if it is immutable."""
        return self

    def to(self, dest: torch.device | torch.dtype | str) -> Box:
        """Return the space on a device or in a dtype."""
        return self


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


@dataclass(frozen=True, slots=True)
class CategoricalBox(Box):
    """The integers from 0 to ``n - 1``.

    Args:
        n: Number of categories; -1 if it is unknown.
        register: Category of each value encoded so far, for a spec with ``use_register``.
    """

    n: int
    register: dict[Any, int] = field(default_factory=dict, compare=False, repr=False)

    def assign(self, value: Any) -> int:
        """Return the category of a value, assigning the next free one to a new value.

        Raises:
            SpecError: All categories are assigned to other values.
        """
        if value not in self.register and len(self.register) >= self.n:
            raise SpecError(
                f"cannot encode {value!r}: all {self.n} categories are assigned to other values",
                hint="create the spec with more categories",
            )
        return self.register.setdefault(value, len(self.register))


@dataclass(frozen=True, slots=True)
class BoxList(Box):
    """One space for each of several variables.

    Args:
        boxes: Spaces, in order.

    Example:
        >>> BoxList.from_nvec([2, 3])
        BoxList(boxes=[CategoricalBox(n=2), CategoricalBox(n=3)])
    """

    boxes: list[Box]

    def __len__(self) -> int:
        return len(self.boxes)

    def __iter__(self) -> Iterator[Box]:
        return iter(self.boxes)

    def __getitem__(self, index: int) -> Box:
        return self.boxes[index]

    @classmethod
    def from_nvec(cls, nvec: list[Any]) -> BoxList:
        """Create the space of variables with (nested) numbers of categories."""
        return cls([cls.from_nvec(n) if isinstance(n, list) else CategoricalBox(n) for n in nvec])


def indent(text: str) -> str:
    """Indent text by one level of a spec's repr."""
    return textwrap.indent(text, "    ")


def _describe_tensor(tensor: Tensor) -> str:
    return (
        f"Tensor(shape={tensor.shape}, device={tensor.device}, dtype={tensor.dtype}, "
        f"contiguous={tensor.is_contiguous()})"
    )


def as_mask(mask: Any, lead: torch.Size, n: int, device: torch.device | None) -> Tensor | None:
    """Convert a mask to a bool tensor of shape ``[*lead, n]``; ``None`` allows everything.

    Raises:
        SpecError: The mask does not broadcast to that shape.
    """
    if mask is None:
        return None
    found = torch.as_tensor(mask, dtype=torch.bool, device=device)
    try:
        found = found.expand(*lead, n)
    except RuntimeError as error:
        raise SpecError(
            f"a mask of shape {tuple(found.shape)} does not broadcast to {(*lead, n)}",
            hint="give the mask the shape of the spec, with n as its last dim",
        ) from error
    return found


def view_mask(mask: Tensor, lead: torch.Size, view: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a view to the leading dimensions ``lead`` of a mask."""
    positions = view(torch.arange(lead.numel(), device=mask.device).reshape(lead))
    return mask.reshape(lead.numel(), mask.shape[-1])[positions]


def nearest_allowed(mask: Tensor, index: Tensor) -> Tensor:
    """Return the allowed category nearest to each index; the smaller one in a tie.

    Args:
        mask: Allowed categories, ``[*B, n]``.
        index: Categories, ``[*A, *B]``.
    """
    categories = torch.arange(mask.shape[-1], device=index.device)
    distance = (categories - index.unsqueeze(-1)).abs()
    return distance.masked_fill(~mask, mask.shape[-1]).argmin(-1)


def single_mask(mask: Tensor) -> Tensor:
    """Return a mask that must not have leading dimensions.

    Raises:
        SpecError: It has, so that elements may allow different categories.
    """
    if mask.ndim > 1:
        raise SpecError(
            f"cannot enumerate with a mask of shape {tuple(mask.shape)}: it can differ between "
            "elements",
            hint="index the spec first, so that a single mask is left",
        )
    return mask


def is_same_mask(one: Tensor | None, other: Tensor | None) -> bool:
    """Return True if two masks are equal; ``None`` equals only ``None``."""
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)


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


def contains(low: Tensor, high: Tensor, value: Tensor) -> bool:
    """Return True if every value is within its interval. NaN is in none."""
    value = ordered(value)
    return bool(((ordered(low) <= value) & (value <= ordered(high))).all())


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
