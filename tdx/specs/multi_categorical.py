"""Specs of several categories at once, as their numbers."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tdx.errors import SpecError
from tdx.specs.arguments import Device, as_device, as_dtype, as_size
from tdx.specs.bounds import ordered
from tdx.specs.boxes import BoxList
from tdx.specs.categorical import Categorical
from tdx.specs.masks import as_mask, draw_masked, nearest_allowed, same_mask
from tdx.specs.shaping import View
from tdx.specs.spec import TensorSpec

if TYPE_CHECKING:
    from tdx.specs.multi_one_hot import MultiOneHot


class MultiCategorical(Categorical):
    """Integers from 0 to ``nvec - 1``, element by element.

    Args:
        nvec: how many categories each variable has; nested for variables of several dimensions.
        shape: shape of the values, which ends in the shape of ``nvec``; that shape where it is
            left out.
        device: device of the values.
        dtype: dtype of the values.
        mask: which categories are allowed, bool, broadcast to ``[*shape[:-1], sum(nvec)]``: the
            categories of all variables side by side.
        remove_singleton: kept for the API.

    Raises:
        SpecError: the shape does not end in that of ``nvec``.

    Example:
        >>> spec = MultiCategorical([2, 3])
        >>> spec.is_in(torch.tensor([1, 2])), spec.is_in(torch.tensor([2, 1]))
        (True, False)
    """

    _nvec: Tensor
    _counts: Tensor

    def __init__(
        self,
        nvec: Any,
        shape: Any = None,
        device: Device | None = None,
        dtype: torch.dtype | str | None = torch.int64,
        mask: Any = None,
        remove_singleton: bool = True,
    ) -> None:
        self._device = as_device(device)
        self._dtype = as_dtype(torch.int64 if dtype is None else dtype)
        self.remove_singleton = remove_singleton
        counts = torch.as_tensor(nvec, dtype=torch.int64).cpu()
        counts = counts if counts.ndim else counts.unsqueeze(0)
        self._shape = counts.shape if shape is None else as_size(shape)
        ending = self._shape[len(self._shape) - counts.ndim :]
        if ending != counts.shape:
            raise SpecError(
                f"the shape {tuple(self._shape)} of a MultiCategorical must end in the shape "
                f"{tuple(counts.shape)} of nvec",
                hint="end the shape in the shape of nvec, or leave it out",
            )
        self._nvec = counts.expand(self._shape)
        self._counts = _reduced(counts)
        self._n = -1
        if mask is not None:
            self.update_mask(mask)

    @property
    def nvec(self) -> Tensor:
        """How many categories each element has, int64 of the spec's shape, on the CPU."""
        return self._nvec

    @property
    def space(self) -> BoxList:  # type: ignore[override]
        """The categories of each variable."""
        return BoxList.from_nvec(self._columns())

    def _columns(self) -> list[Any]:
        return self._counts.movedim(-1, 0).tolist()

    def update_mask(self, mask: Any) -> None:
        """Change in place which categories are allowed; ``None`` allows all.

        Raises:
            SpecError: the mask does not broadcast to ``[*shape[:-1], sum(nvec)]``.
        """
        if mask is None:
            self._mask = None
            return
        nvec = self._flat_nvec("a mask")
        self._mask = as_mask(mask, self._shape[:-1], sum(nvec), self._device)

    def _flat_nvec(self, purpose: str) -> list[int]:
        counts = self._counts
        if counts.ndim != 1:
            raise SpecError(
                f"{purpose} needs the same nvec along all leading dimensions",
                hint="index the spec first, so that one nvec is left",
            )
        return counts.tolist()

    def rand(self, shape: Any = ()) -> Tensor:
        """Categories drawn with equal chances among those allowed."""
        lead = torch.Size(() if shape is None else (shape,) if isinstance(shape, int) else shape)
        own = self._shape[:-1]
        if self._mask is not None:
            masks = self._mask.split(self._flat_nvec("a mask"), -1)
            columns = [draw_masked(mask, torch.Size((*lead, *own))) for mask in masks]
        else:
            columns = [
                self._draw_column(self._nvec.select(-1, i), lead) for i in range(self._shape[-1])
            ]
        if not columns:
            return self.zero(lead)
        return torch.stack(columns, -1).to(self._dtype)

    def _draw_column(self, counts: Tensor, lead: torch.Size) -> Tensor:
        """One variable for all leading elements, drawn with the innermost dimension outermost."""
        own = counts.ndim
        counts = counts.permute(tuple(reversed(range(own))))
        sizes = (*counts.shape, *lead)
        numbers = counts.flatten().tolist()
        if len(set(numbers)) <= 1:
            drawn = torch.randint(0, numbers[0] if numbers else 1, sizes, device=self._device)
        else:
            each = [torch.randint(0, n, lead, device=self._device) for n in numbers]
            drawn = torch.stack(each).reshape(sizes)
        return drawn.permute((*range(own, drawn.ndim), *reversed(range(own))))

    def _contains(self, val: Tensor) -> bool:
        value = val.view(torch.int64) if val.dtype is torch.uint64 else ordered(val)
        if val.dtype.is_floating_point and not bool((value == value.floor()).all()):
            return False
        inside = (value >= 0) & (value < self._nvec.to(val.device))
        if not bool(inside.all()):
            return False
        if self._mask is None:
            return True
        blocks = self._mask.split(self._flat_nvec("a mask"), -1)
        return all(
            bool(block.expand(*column.shape, -1).gather(-1, column.unsqueeze(-1)).all())
            for block, column in zip(blocks, value.long().unbind(-1), strict=True)
        )

    def _project(self, val: Tensor) -> Tensor:
        value = torch.nan_to_num(val.double(), 0.0) if val.dtype.is_floating_point else val
        index = torch.minimum(value.long().clamp(min=0), self._nvec.to(val.device) - 1)
        if self._mask is not None:
            blocks = self._mask.split(self._flat_nvec("a mask"), -1)
            index = torch.stack(
                [
                    nearest_allowed(block, column)
                    for block, column in zip(blocks, index.unbind(-1), strict=True)
                ],
                -1,
            )
        return index.to(self._dtype)

    def _describe_space(self) -> str:
        return f"the categories counted by nvec={self._columns()}"

    def cardinality(self) -> int:
        """How many combinations there are; leading dimensions beyond ``nvec`` count as one."""
        return math.prod(self._counts.flatten().tolist())

    def enumerate(self, use_mask: bool = False) -> Tensor:
        """Every combination along a new first dimension, the last variable changing fastest.

        Args:
            use_mask: leave out what the mask forbids; ``nvec`` must be flat then, without leading
                dimensions.
        """
        counts = self._counts
        choices: list[list[int]] = [list(range(n)) for n in counts.flatten().tolist()]
        if use_mask and self._mask is not None:
            if self._mask.ndim > 1:
                raise SpecError(
                    "a mask with leading dimensions differs between elements",
                    hint="index the spec first, so that one row is left",
                )
            blocks = self._mask.split(self._flat_nvec("a mask"), -1)
            choices = [block.nonzero().flatten().tolist() for block in blocks]
        rows = torch.tensor(list(itertools.product(*choices)), device=self._device)
        rows = rows.to(self._dtype).reshape(len(rows), *counts.shape)
        lead = self._shape[: len(self._shape) - counts.ndim]
        return rows.view(len(rows), *(1 for _ in lead), *counts.shape).expand(-1, *self._shape)

    def index(self, index: Tensor, tensor_to_index: Tensor) -> Tensor:
        """The entries of a tensor at each variable's category, ``[*A, n]`` to ``[*A, *B, k]``."""
        return tensor_to_index[..., index.long()]

    def to_one_hot(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Categories as one-hot rows side by side, ``[*B, k]`` to ``[*B, sum(nvec)]``, bool."""
        if safe:
            self.assert_is_in(val)
        return torch.cat(
            [
                torch.nn.functional.one_hot(column.long(), n)
                for column, n in zip(val.unbind(-1), self._flat_nvec("one-hot"), strict=True)
            ],
            -1,
        ).bool()

    def to_one_hot_spec(self) -> MultiOneHot:
        """The spec of the same categories as one-hot rows side by side."""
        from tdx.specs.multi_one_hot import MultiOneHot

        nvec = self._flat_nvec("one-hot")
        shape = (*self._shape[:-1], sum(nvec))
        return MultiOneHot(nvec, shape=shape, device=self._device, mask=self._mask)

    def to_categorical_spec(self) -> MultiCategorical:
        """This spec itself."""
        return self

    def _viewed(self, view: View) -> TensorSpec:
        shape, nvec = self._viewed_shape(view), view(self._nvec)
        mask = None if self._mask is None else self._viewed_mask(view, shape)
        if not shape:
            return Categorical(int(nvec), shape, self._device, self._dtype)
        viewed = self.clone()
        viewed._shape, viewed._nvec, viewed._mask = shape, nvec, mask
        if nvec.numel():
            viewed._counts = _reduced(nvec)
        elif shape[-1] != self._counts.shape[-1]:
            viewed._counts = nvec.new_ones(shape[-1:])
        return viewed

    def _viewed_mask(self, view: View, shape: torch.Size) -> Tensor:
        """The mask after a view, which must leave the last dimension as it is."""
        assert self._mask is not None
        columns = torch.arange(self._shape[-1])
        places = view(columns.expand(self._shape))
        if shape[-1:] != self._shape[-1:] or not torch.equal(places, columns.expand(shape)):
            raise SpecError(
                "the last dimension of a masked MultiCategorical must stay",
                hint="reshape the leading dims only, or drop the mask",
            )
        lead = self._shape[:-1]
        rows = torch.arange(lead.numel(), device=self._device).reshape(*lead, 1)
        viewed = view(rows.expand(self._shape))[..., 0]
        return self._mask.reshape(lead.numel(), self._mask.shape[-1])[viewed]

    def _arguments(self) -> dict[str, Any]:
        return {
            "nvec": self._counts,
            "shape": self._shape,
            "device": self._device,
            "dtype": self._dtype,
            "mask": self._mask,
            "remove_singleton": self.remove_singleton,
        }

    def _equals(self, other: Any) -> bool:
        return torch.equal(self._nvec, other._nvec) and same_mask(self._mask, other._mask)


def _reduced(counts: Tensor) -> Tensor:
    """``nvec`` without the leading dimensions that it is the same along."""
    while counts.ndim > 1 and counts.shape[0] > 0 and bool((counts == counts[0]).all()):
        counts = counts[0]
    return counts
