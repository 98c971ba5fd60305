"""Spaces of categories, their masks, and sampling."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tdx.foundation.errors import SpecError


class Box:
    """Base class of spaces."""

    def clone(self) -> Box:
        """Return an independent copy; the space itself if it is immutable."""
        return self

    def to(self, dest: torch.device | torch.dtype | str) -> Box:
        """Return the space on a device or in a dtype."""
        return self


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


def in_range(value: Tensor, n: int | Tensor) -> tuple[Tensor, Tensor]:
    """Return which values are integers from 0 to ``n - 1``, and these as valid indices."""
    index = value.view(torch.int64) if value.dtype is torch.uint64 else value.long()
    inside = (index >= 0) & (index < n)
    if value.dtype.is_floating_point:
        inside &= value == index
    return inside, torch.where(inside, index, 0)


def is_allowed(mask: Tensor, index: Tensor) -> Tensor:
    """Return which categories ``[*A, *B]`` a mask ``[*B, n]`` allows."""
    return mask.expand(*index.shape, -1).gather(-1, index.unsqueeze(-1)).squeeze(-1)


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
