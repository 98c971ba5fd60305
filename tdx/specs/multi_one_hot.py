"""Specs of several categories at once, as one-hot rows side by side."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tdx.errors import SpecError
from tdx.specs.arguments import Device, as_size
from tdx.specs.boxes import BoxList, CategoricalBox
from tdx.specs.encoding import to_array, to_tensor
from tdx.specs.multi_categorical import MultiCategorical
from tdx.specs.one_hot import OneHot


class MultiOneHot(OneHot):
    """One-hot rows of several variables side by side.

    Args:
        nvec: how many categories each variable has.
        shape: shape of the values, which ends in ``sum(nvec)``; that alone where it is left out.
        device: device of the values.
        dtype: dtype of the values.
        use_register: kept for the API; values are not registered.
        mask: which categories are allowed, bool, broadcast to ``shape``.

    Raises:
        SpecError: the shape does not end in ``sum(nvec)``.

    Example:
        >>> MultiOneHot([2, 3]).encode([1, 2])
        tensor([False,  True, False, False,  True])
    """

    def __init__(
        self,
        nvec: Sequence[int],
        shape: Any = None,
        device: Device | None = None,
        dtype: torch.dtype | str | None = torch.bool,
        use_register: bool = False,
        mask: Any = None,
    ) -> None:
        self.nvec = [int(n) for n in nvec]
        total = sum(self.nvec)
        super().__init__(
            total, as_size(total if shape is None else shape), device, dtype, False, mask
        )

    @property
    def space(self) -> BoxList:  # type: ignore[override]
        """The categories of each variable."""
        return BoxList([CategoricalBox(n) for n in self.nvec])

    def _blocks(self, val: Tensor) -> tuple[Tensor, ...]:
        return val.split(self.nvec, -1)

    def _specs(self) -> list[OneHot]:
        lead = self._shape[:-1]
        masks: Sequence[Tensor | None] = (
            [None] * len(self.nvec) if self._mask is None else self._blocks(self._mask)
        )
        return [
            OneHot(n, (*lead, n), self._device, self._dtype, mask=mask)
            for n, mask in zip(self.nvec, masks, strict=True)
        ]

    def rand(self, shape: Any = ()) -> Tensor:
        """Rows drawn with equal chances among those allowed."""
        return torch.cat([spec.rand(shape) for spec in self._specs()], -1)

    def _contains(self, val: Tensor) -> bool:
        return all(
            spec._contains(block)
            for spec, block in zip(self._specs(), self._blocks(val), strict=True)
        )

    def _project(self, val: Tensor) -> Tensor:
        rows = [
            spec._project(block)
            for spec, block in zip(self._specs(), self._blocks(val), strict=True)
        ]
        return torch.cat(rows, -1)

    def _describe_space(self) -> str:
        return f"the rows with a single one in each block of {self.nvec}"

    def _encode_index(self, index: Tensor) -> Tensor:
        lead = self._shape[:-1]
        if index.ndim == 0 or index.shape[-1] != len(self.nvec):
            raise SpecError(
                f"expected {len(self.nvec)} categories in the last dimension, got shape "
                f"{tuple(index.shape)}",
                hint="end the shape in one category number per variable",
            )
        if index.shape[:-1] != lead and index.numel() == lead.numel() * len(self.nvec):
            index = index.reshape(*lead, len(self.nvec))
        columns = index.unbind(-1)
        return torch.cat(
            [
                OneHot(n, (*column.shape, n), self._device, self._dtype)._encode_index(column)
                for n, column in zip(self.nvec, columns, strict=True)
            ],
            -1,
        )

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """Rows as an array of category numbers, one for each variable."""
        return to_array(self.to_categorical(to_tensor(val), safe))

    def cardinality(self) -> int:
        """How many combinations there are; leading dimensions count as one."""
        return math.prod(self.nvec)

    def enumerate(self, use_mask: bool = False) -> Tensor:
        """Every combination along a new first dimension, the last variable changing fastest."""
        blocks = [
            spec[(0,) * (self.ndim - 1)] if self.ndim > 1 and self._mask is None else spec
            for spec in self._specs()
        ]
        rows = [block.enumerate(use_mask) for block in blocks]
        picked = [torch.cat(choice, -1) for choice in itertools.product(*rows)]
        lead = self._shape[:-1]
        stacked = torch.stack(picked)
        if stacked.ndim == 1 + self.ndim:
            return stacked
        return stacked.view(len(stacked), *(1 for _ in lead), -1).expand(-1, *self._shape)

    def index(self, index: Tensor, tensor_to_index: Tensor) -> Tensor:
        """The entries of a tensor at each variable's one, ``[*B, sum(nvec)]`` to ``[*B, k]``."""
        picked = [
            OneHot(n).index(row, block)
            for n, row, block in zip(
                self.nvec, self._blocks(index), self._blocks(tensor_to_index), strict=True
            )
        ]
        if index.ndim == 1:
            return torch.cat(picked, -1)
        return torch.stack(picked, -1)

    def to_categorical(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Rows as category numbers, ``[*B, sum(nvec)]`` to ``[*B, k]``."""
        if safe:
            self.assert_is_in(val)
        return torch.stack([block.long().argmax(-1) for block in self._blocks(val)], -1)

    def to_categorical_spec(self) -> MultiCategorical:
        """The spec of the same categories as numbers."""
        shape = (*self._shape[:-1], len(self.nvec))
        return MultiCategorical(self.nvec, shape, self._device, mask=self._mask)

    def to_one_hot_spec(self) -> MultiOneHot:
        """This spec itself."""
        return self

    def _arguments(self) -> dict[str, Any]:
        return {
            "nvec": self.nvec,
            "shape": self._shape,
            "device": self._device,
            "dtype": self._dtype,
            "mask": self._mask,
        }
