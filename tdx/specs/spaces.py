"""Spaces of leaf specs, and masks over categories."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tdx.errors import SpecError


class Box:
    """Base class of spaces."""

    def clone(self) -> Box:
        """Return the space itself, since spaces are immutable."""
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


@dataclass(frozen=True, slots=True)
class CategoricalBox(Box):
    """The integers from 0 to ``n - 1``.

    Args:
        n: Number of categories; -1 if it is unknown.
        register: Category of each value encoded so far, for a spec with ``use_register``.
    """

    n: int
    register: dict[Any, int] = field(default_factory=dict, compare=False, repr=False)


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
    if mask is not None:
        return sample_allowed(mask, shape)
    if n == 0 and shape.numel():
        raise SpecError("cannot sample from 0 categories", hint="use a spec with n of 1 or more")
    return torch.randint(0, max(n, 1), shape, device=device)


def sample_allowed(mask: Tensor, shape: torch.Size) -> Tensor:
    """Sample uniformly among the categories that a mask allows, as int64 of ``shape``.

    Args:
        mask: Allowed categories, ``[*B, n]``.
        shape: Shape of the sample, ``[*A, *B]``.

    Raises:
        SpecError: The mask forbids all categories for some element.
    """
    weights = mask.expand(*shape, mask.shape[-1]).reshape(-1, mask.shape[-1])
    if not bool(weights.any(-1).all()):
        raise SpecError("the mask allows no category", hint="allow at least one in every row")
    if not weights.shape[0]:
        return torch.zeros(shape, dtype=torch.int64, device=mask.device)
    return torch.multinomial(weights.float(), 1).reshape(shape)


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
