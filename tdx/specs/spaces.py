"""Spaces of categories, their masks, and sampling."""

from __future__ import annotations

import textwrap
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from tdx.foundation.errors import SpecError

NestedCounts: TypeAlias = "int | list[NestedCounts]"
"""Number of categories of each variable, nested for several dimensions."""


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
    register: dict[Hashable, int] = field(default_factory=dict, compare=False, repr=False)

    def assign(self, value: Hashable) -> int:
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
    def from_nvec(cls, nvec: list[NestedCounts]) -> BoxList:
        """Create the space of variables with (nested) numbers of categories."""
        return cls([cls.from_nvec(n) if isinstance(n, list) else CategoricalBox(n) for n in nvec])


def indent(text: str) -> str:
    """Indent text by one level of a spec's repr."""
    return textwrap.indent(text, "    ")
