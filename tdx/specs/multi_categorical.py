"""Specs of several categorical variables in one tensor."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tdx.foundation.errors import SpecError
from tdx.specs.arguments import (
    Device,
    View,
    as_device,
    as_dtype,
    as_size,
    drop_repeated_dims,
    replace_unknown_sizes,
    to_array,
    to_tensor,
)
from tdx.specs.categorical import Categorical, OneHot
from tdx.specs.spaces import (
    BoxList,
    CategoricalBox,
    as_mask,
    in_range,
    is_allowed,
    is_same_mask,
    nearest_allowed,
    sample_categories,
    single_mask,
)
from tdx.specs.spec import TensorSpec


class MultiCategorical(Categorical):
    """Integers from 0 to ``nvec - 1``, element by element.

    Args:
        nvec: Number of categories of each variable; nested for several dimensions.
        shape: Shape of the values, which ends with the shape of ``nvec``; that shape if not given.
        device: Device of the values.
        dtype: Dtype of the values.
        mask: Allowed categories of all variables, concatenated; bool, broadcast to
            ``[*shape[:-1], sum(nvec)]``.
        remove_singleton: Has no effect; part of the API.

    Raises:
        SpecError: The shape does not end with that of ``nvec``.

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
        counts = torch.atleast_1d(torch.as_tensor(nvec, dtype=torch.int64).cpu())
        self._shape = counts.shape if shape is None else as_size(shape)
        ending = self._shape[len(self._shape) - counts.ndim :]
        if ending != counts.shape:
            raise SpecError(
                f"the shape {tuple(self._shape)} of a MultiCategorical must end in the shape "
                f"{tuple(counts.shape)} of nvec",
                hint="end the shape in the shape of nvec, or leave it out",
            )
        self._nvec = counts.expand(replace_unknown_sizes(self._shape))
        self._counts = drop_repeated_dims(counts)
        self._n = -1
        self.update_mask(mask)

    @property
    def nvec(self) -> Tensor:
        """Number of categories of each element, int64 of the spec's shape, on the CPU."""
        return self._nvec

    @property
    def space(self) -> BoxList:  # type: ignore[override]
        """Space of each variable."""
        return BoxList.from_nvec(self._nvec_list())

    def _nvec_list(self) -> list[Any]:
        return self._counts.movedim(-1, 0).tolist()

    def update_mask(self, mask: Any) -> None:
        """Change the allowed categories in place; ``None`` allows all."""
        if mask is None:
            self._mask = None
            return
        nvec = self._flat_nvec("a mask")
        self._mask = as_mask(mask, self._shape[:-1], sum(nvec), self._device)

    def _split_mask(self, mask: Tensor) -> tuple[Tensor, ...]:
        """Split a mask into one for each variable."""
        return mask.split(self._flat_nvec("a mask"), -1)

    def _flat_nvec(self, purpose: str) -> list[int]:
        if self._counts.ndim != 1:
            raise SpecError(
                f"{purpose} needs the same nvec along all leading dimensions",
                hint="index the spec first, so that one nvec is left",
            )
        return self._counts.tolist()

    def rand(self, shape: Any = ()) -> Tensor:
        """Sample uniformly among the allowed categories."""
        lead = torch.Size(() if shape is None else (shape,) if isinstance(shape, int) else shape)
        own = self._shape[:-1]
        if self._mask is not None:
            full, masks = torch.Size((*lead, *own)), self._split_mask(self._mask)
            columns = [sample_categories(m.shape[-1], m, full, self._device) for m in masks]
        else:
            columns = [
                self._sample_column(self._nvec.select(-1, i), lead) for i in range(self._shape[-1])
            ]
        if not columns:
            return self.zero(lead)
        return torch.stack(columns, -1).to(self._dtype)

    def _sample_column(self, counts: Tensor, lead: torch.Size) -> Tensor:
        """Sample a variable for all leading elements, with the innermost dimension outermost."""
        own = counts.ndim
        counts = counts.permute(tuple(reversed(range(own))))
        sizes = (*counts.shape, *lead)
        numbers = counts.flatten().tolist()
        if len(set(numbers)) <= 1:
            sample = torch.randint(0, numbers[0] if numbers else 1, sizes, device=self._device)
        else:
            samples = [torch.randint(0, n, lead, device=self._device) for n in numbers]
            sample = torch.stack(samples).reshape(sizes)
        return sample.permute((*range(own, sample.ndim), *reversed(range(own))))

    def elements_in(self, val: Tensor) -> Tensor:
        inside, index = in_range(val, self._nvec.to(val.device))
        if self._mask is None:
            return inside
        pairs = zip(self._split_mask(self._mask), index.unbind(-1), strict=True)
        return inside & torch.stack([is_allowed(mask, column) for mask, column in pairs], -1)

    def _project(self, val: Tensor) -> Tensor:
        value = torch.nan_to_num(val.double(), 0.0) if val.dtype.is_floating_point else val
        index = torch.minimum(value.long().clamp(min=0), self._nvec.to(val.device) - 1)
        if self._mask is not None:
            pairs = zip(self._split_mask(self._mask), index.unbind(-1), strict=True)
            index = torch.stack([nearest_allowed(mask, column) for mask, column in pairs], -1)
        return index.to(self._dtype)

    def _describe_space(self) -> str:
        return f"the categories of nvec={self._nvec_list()}"

    def cardinality(self) -> int:
        """Return the number of combinations, whatever the leading dimensions."""
        return math.prod(self._counts.flatten().tolist())

    def enumerate(self, use_mask: bool = False) -> Tensor:
        """Return every combination along a new first dimension, the last variable fastest.

        Args:
            use_mask: True to leave out forbidden categories; the spec must be one-dimensional then.
        """
        counts = self._counts
        choices: list[list[int]] = [list(range(n)) for n in counts.flatten().tolist()]
        if use_mask and self._mask is not None:
            masks = self._split_mask(single_mask(self._mask))
            choices = [mask.nonzero().flatten().tolist() for mask in masks]
        values = torch.tensor(list(itertools.product(*choices)), device=self._device)
        values = values.to(self._dtype).reshape(len(values), *counts.shape)
        lead = self._shape[: len(self._shape) - counts.ndim]
        values = values.view(len(values), *(1 for _ in lead), *counts.shape)
        return values.expand(-1, *self._shape)

    def index(self, index: Tensor, tensor_to_index: Tensor) -> Tensor:
        """Take entries by the category of each variable, ``[*A, n]`` to ``[*A, *B, k]``."""
        return tensor_to_index[..., index.long()]

    def to_one_hot(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Convert to concatenated one-hot vectors, ``[*B, k]`` to ``[*B, sum(nvec)]``, bool."""
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
        """Return the spec of the same categories as concatenated one-hot vectors."""
        nvec = self._flat_nvec("one-hot")
        shape = (*self._shape[:-1], sum(nvec))
        return MultiOneHot(nvec, shape=shape, device=self._device, mask=self._mask)

    def to_categorical_spec(self) -> MultiCategorical:
        """Return the spec itself."""
        return self

    def apply_view(self, view: View) -> TensorSpec:
        shape, nvec = self._view_shape(view), view(self._nvec)
        mask = None if self._mask is None else self._view_mask(self._mask, view, shape)
        if not shape:
            return Categorical(int(nvec), shape, self._device, self._dtype)
        viewed = self.clone()
        viewed._shape, viewed._nvec, viewed._mask = shape, nvec, mask
        if nvec.numel():
            viewed._counts = drop_repeated_dims(nvec)
        elif shape[-1] != self._counts.shape[-1]:
            viewed._counts = nvec.new_ones(shape[-1:])
        return viewed

    def _view_mask(self, mask: Tensor, view: View, shape: torch.Size) -> Tensor:
        """Apply a view, which must preserve the last dimension, to a mask."""
        variables = torch.arange(self._shape[-1])
        viewed = view(variables.expand(self._shape))
        if shape[-1:] != self._shape[-1:] or not torch.equal(viewed, variables.expand(shape)):
            raise SpecError(
                "cannot change the last dimension of a MultiCategorical with a mask, from shape "
                f"{tuple(self._shape)} to {tuple(shape)}",
                hint="reshape the leading dims only, or drop the mask",
            )
        lead = self._shape[:-1]
        positions = torch.arange(lead.numel(), device=self._device).reshape(*lead, 1)
        positions = view(positions.expand(self._shape))[..., 0]
        return mask.reshape(lead.numel(), mask.shape[-1])[positions]

    def _arguments(self) -> dict[str, Any]:
        return {
            "nvec": self._counts,
            "shape": self._shape,
            "device": self._device,
            "dtype": self._dtype,
            "mask": self._mask,
            "remove_singleton": self.remove_singleton,
        }

    def _has_same_space(self, other: Any) -> bool:
        return torch.equal(self._nvec, other._nvec) and is_same_mask(self._mask, other._mask)


class MultiOneHot(OneHot):
    """Concatenated one-hot vectors of several variables, along the last dimension.

    Args:
        nvec: Number of categories of each variable.
        shape: Shape of the values, which ends with ``sum(nvec)``; only that if not given.
        device: Device of the values.
        dtype: Dtype of the values.
        use_register: Has no effect; part of the API.
        mask: Allowed categories, bool, broadcast to ``shape``.

    Raises:
        SpecError: The shape does not end with ``sum(nvec)``.

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
        size = as_size(total if shape is None else shape)
        super().__init__(total, size, device, dtype, False, mask)

    @property
    def space(self) -> BoxList:  # type: ignore[override]
        """Space of each variable."""
        return BoxList([CategoricalBox(n) for n in self.nvec])

    def _split(self, val: Tensor) -> tuple[Tensor, ...]:
        return val.split(self.nvec, -1)

    def _variable_specs(self) -> list[OneHot]:
        lead = self._shape[:-1]
        masks: Sequence[Tensor | None] = (
            [None] * len(self.nvec) if self._mask is None else self._split(self._mask)
        )
        return [
            OneHot(n, (*lead, n), self._device, self._dtype, mask=mask)
            for n, mask in zip(self.nvec, masks, strict=True)
        ]

    def rand(self, shape: Any = ()) -> Tensor:
        """Sample uniformly among the allowed categories."""
        return torch.cat([spec.rand(shape) for spec in self._variable_specs()], -1)

    def elements_in(self, val: Tensor) -> Tensor:
        pairs = zip(self._variable_specs(), self._split(val), strict=True)
        return torch.cat([spec.elements_in(vector) for spec, vector in pairs], -1)

    def _project(self, val: Tensor) -> Tensor:
        pairs = zip(self._variable_specs(), self._split(val), strict=True)
        return torch.cat([spec._project(vector) for spec, vector in pairs], -1)

    def _describe_space(self) -> str:
        return f"the concatenated one-hot vectors of nvec={self.nvec}"

    def _encode_index(self, index: Tensor) -> Tensor:
        lead = self._shape[:-1]
        if index.ndim == 0 or index.shape[-1] != len(self.nvec):
            raise SpecError(
                f"expected {len(self.nvec)} categories in the last dimension, got shape "
                f"{tuple(index.shape)}",
                hint="end the shape in one category per variable",
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
        """Convert to an array of category numbers, one for each variable."""
        return to_array(self.to_categorical(to_tensor(val), safe))

    def cardinality(self) -> int:
        """Return the number of combinations, whatever the leading dimensions."""
        return math.prod(self.nvec)

    def enumerate(self, use_mask: bool = False) -> Tensor:
        """Return every combination along a new first dimension, the last variable fastest."""
        specs = [
            spec[(0,) * (self.ndim - 1)] if self.ndim > 1 and self._mask is None else spec
            for spec in self._variable_specs()
        ]
        vectors = [spec.enumerate(use_mask) for spec in specs]
        lead = self._shape[:-1]
        stacked = torch.stack([torch.cat(choice, -1) for choice in itertools.product(*vectors)])
        if stacked.ndim == 1 + self.ndim:
            return stacked
        return stacked.view(len(stacked), *(1 for _ in lead), -1).expand(-1, *self._shape)

    def index(self, index: Tensor, tensor_to_index: Tensor) -> Tensor:
        """Take an entry of a tensor for each variable, ``[*B, sum(nvec)]`` to ``[*B, k]``."""
        picked = [
            OneHot(n).index(vector, entries)
            for n, vector, entries in zip(
                self.nvec, self._split(index), self._split(tensor_to_index), strict=True
            )
        ]
        if index.ndim == 1:
            return torch.cat(picked, -1)
        return torch.stack(picked, -1)

    def to_categorical(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Convert to category numbers, ``[*B, sum(nvec)]`` to ``[*B, k]``."""
        if safe:
            self.assert_is_in(val)
        return torch.stack([vector.long().argmax(-1) for vector in self._split(val)], -1)

    def to_categorical_spec(self) -> MultiCategorical:
        """Return the spec of the same categories as integers."""
        shape = (*self._shape[:-1], len(self.nvec))
        return MultiCategorical(self.nvec, shape, self._device, mask=self._mask)

    def to_one_hot_spec(self) -> MultiOneHot:
        """Return the spec itself."""
        return self

    def _arguments(self) -> dict[str, Any]:
        return {
            "nvec": self.nvec,
            "shape": self._shape,
            "device": self._device,
            "dtype": self._dtype,
            "mask": self._mask,
        }


class Binary(Categorical):
    """Zeros and ones.

    Args:
        n: Size of the last dimension; derived from ``shape`` if not given.
        shape: Shape of the values; ``(n,)`` if not given.
        device: Device of the values.
        dtype: Dtype of the values.

    Raises:
        SpecError: Neither ``n`` nor ``shape`` is given, or ``shape`` does not end with ``n``.

    Example:
        >>> Binary(3).zero()
        tensor([0, 0, 0], dtype=torch.int8)
    """

    def __init__(
        self,
        n: int | None = None,
        shape: Any = None,
        device: Device | None = None,
        dtype: torch.dtype | str = torch.int8,
    ) -> None:
        if n is None and shape is None:
            raise SpecError("a Binary needs a size", hint="give n or shape")
        size = as_size(n if shape is None else shape)
        if n is not None and (not size or size[-1] != n):
            raise SpecError(
                f"the shape {tuple(size)} of a Binary must end in n={n}",
                hint="leave n out, or end the shape in it",
            )
        super().__init__(2, size, device, dtype)

    def replace(self, **changes: Any) -> Any:
        """Return a copy with ``shape``, ``device`` or ``dtype`` changed."""
        mask = changes.pop("mask", self._mask)
        copied = Binary(**{**self._arguments(), **changes})
        copied.update_mask(mask)
        return copied

    def _arguments(self) -> dict[str, Any]:
        return {"shape": self._shape, "device": self._device, "dtype": self._dtype}
