"""Spaces: what values a leaf spec lets through, apart from their shape, dtype and device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tdx.specs.printing import describe_tensor, indent


class Box:
    """What every space is."""

    def clone(self) -> Box:
        """A copy; spaces are never changed in place, so this is the space itself."""
        return self

    def to(self, dest: torch.device | torch.dtype | str) -> Box:
        """The space on a device or in a dtype."""
        return self


class ContinuousBox(Box):
    """An interval for every element, both ends included.

    Args:
        low: smallest values, of the spec's shape.
        high: largest values, of the spec's shape.

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
        """The interval on a device or in a dtype."""
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
        ends = f"low={describe_tensor(self.low)},\nhigh={describe_tensor(self.high)}"
        return f"ContinuousBox(\n{indent(ends)})"


@dataclass(frozen=True, slots=True)
class CategoricalBox(Box):
    """The integers from 0 to ``n - 1``.

    Args:
        n: how many; -1 where it is not known yet.
        register: values met so far and their numbers, for a spec made with ``use_register``.
    """

    n: int
    register: dict[Any, int] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class BoxList(Box):
    """One space for each of several variables.

    Args:
        boxes: the spaces, in order.

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
        """The space of categories counted by a (nested) list."""
        return cls([cls.from_nvec(n) if isinstance(n, list) else CategoricalBox(n) for n in nvec])
