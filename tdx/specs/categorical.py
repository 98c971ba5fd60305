"""Specs of categories: as integers, and as one-hot vectors; one or several variables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from tdx.foundation.errors import SpecError, SpecIndexError
from tdx.specs.arguments import (
    Arguments,
    ArrayLike,
    Device,
    Shape,
    Value,
    View,
    as_device,
    as_dtype,
    as_size,
    ends_with,
    extremes,
    match_shape,
    parse_index,
    replace_unknown_sizes,
    to_array,
    to_tensor,
)
from tdx.specs.spaces import BoxList, CategoricalBox, NestedCounts
from tdx.specs.spec import TensorSpec


def _as_mask(
    mask: ArrayLike | None, lead: torch.Size, n: int, device: torch.device | None
) -> Tensor | None:
    """Convert a mask to a bool tensor of shape ``[*lead, n]``; ``None`` allows everything."""
    if mask is None:
        return None
    converted = torch.as_tensor(mask, dtype=torch.bool, device=device)
    try:
        converted = converted.expand(*lead, n)
    except RuntimeError as error:
        raise SpecError(
            f"a mask of shape {tuple(converted.shape)} does not broadcast to {(*lead, n)}",
            hint="give the mask the shape of the spec, with n as its last dim",
        ) from error
    return converted


def _view_mask(mask: Tensor, lead: torch.Size, view: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a view to the leading dimensions ``lead`` of a mask."""
    positions = view(torch.arange(lead.numel(), device=mask.device).reshape(lead))
    return mask.reshape(lead.numel(), mask.shape[-1])[positions]


def _sample_categories(
    n: int, mask: Tensor | None, shape: torch.Size, device: torch.device
) -> Tensor:
    """Sample categories uniformly among those that a mask ``[*B, n]`` allows.

    The sample is int64 of ``shape``, ``[*A, *B]``. Without a mask all categories are allowed.
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


def _categories_at(unit: Tensor, n: int, mask: Tensor | None) -> Tensor:
    """Return the allowed category for each uniform number from ``[0, 1)``, ``[*B]``."""
    if mask is None:
        return (unit * n).long().clamp(max=n - 1)
    # On an accelerator, the host would wait for the answer.
    if mask.device.type == "cpu" and not bool(mask.any(-1).all()):
        raise SpecError("the mask allows no category", hint="allow at least one in every row")
    # The first category up to which more than `rank` categories are allowed.
    allowed = mask.cumsum(-1)
    rank = (unit.unsqueeze(-1) * allowed[..., -1:]).long().clamp(max=allowed[..., -1:] - 1)
    return (allowed <= rank).sum(-1)


def _in_range(value: Tensor, n: int | Tensor) -> tuple[Tensor, Tensor]:
    """Return which values are integers from 0 to ``n - 1``, and these as valid indices."""
    index = value.view(torch.int64) if value.dtype is torch.uint64 else value.long()
    inside = (index >= 0) & (index < n)
    if value.dtype.is_floating_point:
        inside &= value == index
    return inside, torch.where(inside, index, 0)


def _is_allowed(mask: Tensor, index: Tensor) -> Tensor:
    """Return which categories ``[*A, *B]`` a mask ``[*B, n]`` allows."""
    return mask.expand(*index.shape, -1).gather(-1, index.unsqueeze(-1)).squeeze(-1)


def _nearest_allowed(mask: Tensor, index: Tensor) -> Tensor:
    """Return the category that a mask ``[*B, n]`` allows nearest to each index ``[*A, *B]``.

    In a tie it is the smaller one.
    """
    categories = torch.arange(mask.shape[-1], device=index.device)
    distance = (categories - index.unsqueeze(-1)).abs()
    return distance.masked_fill(~mask, mask.shape[-1]).argmin(-1)


def _single_mask(mask: Tensor) -> Tensor:
    """Return a mask, which must not have leading dimensions: elements could differ."""
    if mask.ndim > 1:
        raise SpecError(
            f"cannot enumerate with a mask of shape {tuple(mask.shape)}: it can differ between "
            "elements",
            hint="index the spec first, so that a single mask is left",
        )
    return mask


def _is_same_mask(one: Tensor | None, other: Tensor | None) -> bool:
    """Return True if two masks are equal; ``None`` equals only ``None``."""
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)


def _drop_repeated_dims(counts: Tensor) -> Tensor:
    """Drop the leading dimensions along which all entries of ``nvec`` are the same."""
    while counts.ndim > 1 and counts.shape[0] > 0 and bool((counts == counts[0]).all()):
        counts = counts[0]
    return counts


class Categorical(TensorSpec):
    """Integers from 0 to ``n - 1``.

    Args:
        n: Number of categories; -1 if it is unknown (see ``set_provisional_n``).
        shape: Shape of the values.
        device: Device of the values.
        dtype: Dtype of the values.
        mask: Allowed categories, bool, broadcast to ``[*shape, n]``.

    Example:
        >>> spec = Categorical(3)
        >>> spec.is_in(torch.tensor(2)), spec.is_in(torch.tensor(3))
        (True, False)
        >>> spec.to_one_hot(torch.tensor(1))
        tensor([False,  True, False])
    """

    domain = "discrete"
    _n: int
    _dtype: torch.dtype
    _device: torch.device
    _mask: Tensor | None = None
    _provisional_n: int | None = None

    def __init__(
        self,
        n: int,
        shape: Shape | None = (),
        device: Device | None = None,
        dtype: torch.dtype | str = torch.int64,
        mask: ArrayLike | None = None,
    ) -> None:
        super().__init__(as_size(() if shape is None else shape), device, as_dtype(dtype))
        self._n = int(n)
        if self._n - 1 > extremes(self._dtype)[1]:
            raise SpecError(
                f"{self._n} categories do not fit {self._dtype}",
                hint="use a wider dtype, such as torch.int64",
            )
        if mask is not None:
            self.update_mask(mask)

    @property
    def n(self) -> int:
        """Number of categories.

        Raises:
            SpecError: It is unknown, and ``set_provisional_n`` was not called.
        """
        if self._n >= 0:
            return self._n
        if self._provisional_n is None:
            raise SpecError(
                "the number of categories is unknown", hint="call set_provisional_n(n) first"
            )
        return self._provisional_n

    def set_provisional_n(self, n: int) -> None:
        """Set the number of categories of a spec with unknown ``n``; it may be set again."""
        self._provisional_n = int(n)

    @property
    def space(self) -> CategoricalBox:
        """Space of the categories."""
        return CategoricalBox(self._n)

    @property
    def mask(self) -> Tensor | None:
        """Allowed categories, ``[*shape, n]``; ``None`` if all are."""
        return self._mask

    def update_mask(self, mask: ArrayLike | None) -> None:
        """Change the allowed categories in place; ``None`` allows all."""
        self._mask = _as_mask(mask, self._shape, self.n, self._device)

    def rand(self, shape: Shape | None = ()) -> Tensor:
        """Sample uniformly among the allowed categories."""
        full = self._full_shape(shape)
        return _sample_categories(self.n, self._mask, full, self._device).to(self._dtype)

    def rand_at(self, unit: Tensor) -> Tensor | None:
        return _categories_at(unit, self.n, self._mask).to(self._dtype) if self.n else None

    def elements_in(self, val: Tensor) -> Tensor:
        inside, index = _in_range(val, self.n)
        if self._mask is None or not self.n:
            return inside
        return inside & _is_allowed(self._mask, index)

    def _project(self, val: Tensor) -> Tensor:
        value = torch.nan_to_num(val.double(), 0.0) if val.dtype.is_floating_point else val
        index = value.long().clamp(0, max(self.n - 1, 0))
        if self._mask is not None:
            index = _nearest_allowed(self._mask, index)
        return index.to(self._dtype)

    def _describe_space(self) -> str:
        masked = "" if self._mask is None else " that the mask allows"
        return f"the categories 0 to {self.n - 1}{masked}"

    def cardinality(self) -> int:
        """Return the number of categories, whatever the shape."""
        return self.n

    def enumerate(self, use_mask: bool = False) -> Tensor:
        """Return the categories along a new first dimension, the same for all elements.

        Args:
            use_mask: True to leave out forbidden categories; the spec must have no shape then.
        """
        index = torch.arange(self.n, device=self._device)
        if use_mask and self._mask is not None:
            index = index[_single_mask(self._mask)]
        index = index.view(-1, *(1 for _ in self._shape)).expand(-1, *self._shape)
        return index.to(self._dtype)

    def index(self, index: Tensor, tensor_to_index: Tensor) -> Tensor:
        """Take entries of a tensor by category.

        Args:
            index: Categories, of any shape ``[*B]``.
            tensor_to_index: ``[*B, n]`` takes an entry of each vector; with other leading
                dimensions ``[*A, n]`` the result is ``[*A, *B]``.
        """
        index = index.long()
        lead = tensor_to_index.shape[:-1]
        if lead and index.shape == lead:
            return tensor_to_index.gather(-1, index.unsqueeze(-1)).squeeze(-1)
        return tensor_to_index[..., index]

    def to_one_hot(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Convert categories to one-hot vectors, ``[*B]`` to ``[*B, n]``, bool."""
        if safe:
            self.assert_is_in(val)
        return torch.nn.functional.one_hot(val.long(), self.n).bool()

    def to_one_hot_spec(self) -> OneHot:
        """Return the spec of the same categories as one-hot vectors."""
        return OneHot(self.n, shape=(*self._shape, self.n), device=self._device, mask=self._mask)

    def to_categorical(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Return the value unchanged."""
        if safe:
            self.assert_is_in(val)
        return val

    def to_categorical_spec(self) -> Categorical:
        """Return the spec itself."""
        return self

    def apply_view(self, view: View) -> Self:
        shape = self._view_shape(view)
        mask = None if self._mask is None else _view_mask(self._mask, self._shape, view)
        return self._with(_shape=shape, _mask=mask)

    def replace(self, **changes: Any) -> Any:
        """Return a copy with ``n``, ``shape``, ``device``, ``dtype`` or ``mask`` changed."""
        copied = super().replace(**changes)
        if self._provisional_n is not None and isinstance(copied, Categorical):
            copied._provisional_n = self._provisional_n
        return copied

    def _arguments(self) -> Arguments:
        return {**super()._arguments(), "n": self._n, "mask": self._mask}

    def _has_same_space(self, other: Self) -> bool:
        return self._n == other._n and _is_same_mask(self._mask, other._mask)


class OneHot(TensorSpec):
    """One-hot vectors of ``n`` elements, along the last dimension.

    Args:
        n: Number of categories.
        shape: Shape of the values, which ends with ``n``; ``(n,)`` if not given.
        device: Device of the values.
        dtype: Dtype of the values.
        use_register: True to number the values passed to ``encode`` in order of appearance, so
            that any hashable value can be encoded.
        mask: Allowed categories, bool, broadcast to ``shape``.

    Raises:
        SpecError: The shape does not end with ``n``.

    Example:
        >>> OneHot(3).encode(1)
        tensor([False,  True, False])
    """

    domain = "discrete"
    _dtype: torch.dtype
    _device: torch.device
    _mask: Tensor | None = None

    def __init__(
        self,
        n: int,
        shape: Shape | None = None,
        device: Device | None = None,
        dtype: torch.dtype | str | None = torch.bool,
        use_register: bool = False,
        mask: ArrayLike | None = None,
    ) -> None:
        size = as_size(int(n) if shape is None else shape)
        super().__init__(size, device, as_dtype(torch.bool if dtype is None else dtype))
        self._space = CategoricalBox(int(n))
        self.use_register = use_register
        if not self._shape or self._shape[-1] != n:
            raise SpecError(
                f"the shape {tuple(self._shape)} of a {type(self).__name__} must end in {n}",
                hint=f"end the shape in {n}, or leave it out",
            )
        if mask is not None:
            self.update_mask(mask)

    @property
    def n(self) -> int:
        """Number of categories."""
        return self._space.n

    @property
    def space(self) -> CategoricalBox:
        """Space of the categories."""
        return self._space

    @property
    def mask(self) -> Tensor | None:
        """Allowed categories, of the spec's shape; ``None`` if all are."""
        return self._mask

    def update_mask(self, mask: ArrayLike | None) -> None:
        """Change the allowed categories in place; ``None`` allows all."""
        self._mask = _as_mask(mask, self._shape[:-1], self.n, self._device)

    def rand(self, shape: Shape | None = ()) -> Tensor:
        """Sample uniformly among the allowed categories."""
        full = self._full_shape(shape)
        return self._one_hot(_sample_categories(self.n, self._mask, full[:-1], self._device))

    def rand_at(self, unit: Tensor) -> Tensor | None:
        return self._one_hot_at(unit) if self.n else None

    def _one_hot_at(self, unit: Tensor) -> Tensor:
        return self._one_hot(_categories_at(unit[..., 0], self.n, self._mask))

    def _one_hot(self, index: Tensor) -> Tensor:
        categories = torch.arange(self.n, device=index.device)
        return (categories == index.unsqueeze(-1)).to(self._dtype)

    def elements_in(self, val: Tensor) -> Tensor:
        ones = val == 1
        allowed = ones | (val == 0)
        if self._mask is not None:
            allowed = allowed & (self._mask | ~ones)
        vectors = (ones.sum(-1, keepdim=True) == 1) & allowed.all(-1, keepdim=True)
        return vectors.expand(val.shape)

    def _project(self, val: Tensor) -> Tensor:
        weight = torch.nan_to_num(val.double(), nan=0.0)
        if self._mask is not None:
            weight = weight.masked_fill(~self._mask, -torch.inf)
        return self._one_hot(weight.argmax(-1))

    def _cast(self, val: object) -> Tensor:
        if (
            isinstance(val, Tensor)
            and val.is_floating_point()
            and ends_with(val.shape, self._shape)
        ):
            return val.to(self._device)
        return super()._cast(val)

    def project(self, val: Value) -> Value:
        """Return a value in the spec unchanged, else the one-hot vector of the largest element."""
        return val if self.is_in(val) else self._project(self._cast(val))

    def _describe_space(self) -> str:
        masked = "" if self._mask is None else " that the mask allows"
        return f"the one-hot vectors of {self.n} elements{masked}"

    def encode(self, val: object, *, ignore_device: bool = False) -> Tensor:
        """Convert category numbers to one-hot vectors; vectors of bools or floats are kept.

        Args:
            val: Categories ``[*B]``, or any hashable value for a spec with ``use_register``.
            ignore_device: True to leave a tensor on its device.

        Raises:
            SpecError: A category is out of range.
        """
        if self.use_register:
            val = self._space.assign(val.item() if hasattr(val, "item") else val)
        value = to_tensor(val)
        if not ignore_device:
            value = value.to(self._device)
        are_vectors = value.dtype is torch.bool or value.is_floating_point()
        if are_vectors and value.shape[-1:] == self._shape[-1:]:
            return match_shape(value.to(self._dtype), self._shape)
        # Not every integer dtype can be compared.
        return self._encode_index(value if value.is_floating_point() else value.long())

    def _encode_index(self, index: Tensor) -> Tensor:
        is_valid = (index >= 0) & (index < self.n)
        if not bool(is_valid.all()):
            invalid = index[~is_valid].flatten()[0].item()
            raise SpecError(
                f"category {invalid} is not in the range 0 to {self.n - 1}",
                hint="count categories from 0",
            )
        lead = self._shape[:-1]
        if index.shape != lead and index.numel() == lead.numel():
            index = index.reshape(lead)
        return self._one_hot(index)

    def to_numpy(self, val: Value, safe: bool | None = None) -> Any:
        """Convert one-hot vectors to category numbers, or to the value registered for them."""
        if safe:
            self.assert_is_in(val)
        index = to_array(val.long().argmax(-1))
        if self.use_register:
            return {number: key for key, number in self._space.register.items()}[int(index)]
        return index

    def cardinality(self) -> int:
        """Return the number of categories, whatever the leading dimensions."""
        return self.n

    def enumerate(self, use_mask: bool = False) -> Tensor:
        """Return the one-hot vectors along a new first dimension, as ``Categorical.enumerate``."""
        vectors = torch.eye(self.n, dtype=self._dtype, device=self._device)
        if use_mask and self._mask is not None:
            vectors = vectors[_single_mask(self._mask)]
        lead = self._shape[:-1]
        return vectors.view(-1, *(1 for _ in lead), self.n).expand(-1, *lead, -1)

    def index(self, index: Tensor, tensor_to_index: Tensor) -> Tensor:
        """Take entries of a tensor by category, as ``Categorical.index``.

        Args:
            index: One-hot vectors, ``[*B, n]``. A single vector takes entries of shape ``[1]``.
            tensor_to_index: Tensor of shape ``[*B, n]`` or ``[*A, n]``.
        """
        category = index.long().argmax(-1)
        if category.ndim == 0:
            category = category.unsqueeze(0)
        return Categorical(self.n).index(category, tensor_to_index)

    def to_categorical(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Convert one-hot vectors to category numbers, ``[*B, n]`` to ``[*B]``."""
        if safe:
            self.assert_is_in(val)
        return val.long().argmax(-1)

    def to_categorical_spec(self) -> Categorical:
        """Return the spec of the same categories as integers."""
        return Categorical(self.n, self._shape[:-1], self._device, mask=self._mask)

    def to_one_hot(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Return the value unchanged."""
        if safe:
            self.assert_is_in(val)
        return val

    def to_one_hot_spec(self) -> OneHot:
        """Return the spec itself."""
        return self

    def squeeze(self, dim: int | None = None) -> Self:
        """Return the spec without a leading dimension of size 1, or without all of them."""
        if dim is None:
            lead = [size for size in self._shape[:-1] if size != 1]
            return self.reshape(*lead, self._shape[-1])
        return super().squeeze(dim)

    def __getitem__(self, index: object) -> Any:
        parts = parse_index(index, self._shape, type(self).__name__)
        shape = self._view_shape(lambda tensor: tensor[parts])
        numbers = torch.arange(self._shape[-1]).expand(replace_unknown_sizes(self._shape))
        if shape[-1:] != self._shape[-1:] or bool((numbers[parts].diff(dim=-1) != 1).any()):
            raise SpecIndexError(
                f"a {type(self).__name__} of shape {tuple(self._shape)} cannot be indexed along "
                "its last dimension",
                hint="index the leading dims only",
            )
        return self.apply_view(lambda tensor: tensor[parts])

    def apply_view(self, view: View) -> Self:
        shape = self._view_shape(view)
        if shape[-1:] != self._shape[-1:]:
            raise SpecError(
                f"cannot change the last dimension of a {type(self).__name__}, from shape "
                f"{tuple(self._shape)} to {tuple(shape)}",
                hint="reshape the leading dims only",
            )
        return self._with(_shape=shape, _mask=None if self._mask is None else view(self._mask))

    def _arguments(self) -> Arguments:
        own = {"n": self.n, "use_register": self.use_register, "mask": self._mask}
        return {**super()._arguments(), **own}

    def replace(self, **changes: Any) -> Any:
        """Return a copy with ``n``, ``shape``, ``device``, ``dtype`` or ``mask`` changed."""
        copied = super().replace(**changes)
        if isinstance(copied, OneHot) and copied._space == self._space:
            copied._space = self._space
        return copied

    def _has_same_space(self, other: Self) -> bool:
        return (
            bool(self.space == other.space)
            and self.use_register == other.use_register
            and _is_same_mask(self._mask, other._mask)
        )


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
        nvec: ArrayLike,
        shape: Shape | None = None,
        device: Device | None = None,
        dtype: torch.dtype | str | None = torch.int64,
        mask: ArrayLike | None = None,
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
        self._counts = _drop_repeated_dims(counts)
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

    def _nvec_list(self) -> list[NestedCounts]:
        return self._counts.movedim(-1, 0).tolist()

    def update_mask(self, mask: ArrayLike | None) -> None:
        """Change the allowed categories in place; ``None`` allows all."""
        if mask is None:
            self._mask = None
            return
        nvec = self._flat_nvec("a mask")
        self._mask = _as_mask(mask, self._shape[:-1], sum(nvec), self._device)

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

    def rand(self, shape: Shape | None = ()) -> Tensor:
        """Sample uniformly among the allowed categories."""
        lead = torch.Size(() if shape is None else (shape,) if isinstance(shape, int) else shape)
        own = self._shape[:-1]
        if self._mask is not None:
            full, masks = torch.Size((*lead, *own)), self._split_mask(self._mask)
            columns = [_sample_categories(m.shape[-1], m, full, self._device) for m in masks]
        else:
            columns = [
                self._sample_column(self._nvec.select(-1, i), lead) for i in range(self._shape[-1])
            ]
        if not columns:
            return self.zero(lead)
        return torch.stack(columns, -1).to(self._dtype)

    def rand_at(self, unit: Tensor) -> Tensor | None:
        if self._mask is not None:
            pairs = zip(self._split_mask(self._mask), unit.unbind(-1), strict=True)
            columns = [_categories_at(column, m.shape[-1], m) for m, column in pairs]
            return torch.stack(columns, -1).to(self._dtype)
        counts = self._nvec.to(unit.device, non_blocking=True)
        return torch.minimum((unit * counts).long(), counts - 1).to(self._dtype)

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
        inside, index = _in_range(val, self._nvec.to(val.device))
        if self._mask is None:
            return inside
        pairs = zip(self._split_mask(self._mask), index.unbind(-1), strict=True)
        return inside & torch.stack([_is_allowed(mask, column) for mask, column in pairs], -1)

    def _project(self, val: Tensor) -> Tensor:
        value = torch.nan_to_num(val.double(), 0.0) if val.dtype.is_floating_point else val
        index = torch.minimum(value.long().clamp(min=0), self._nvec.to(val.device) - 1)
        if self._mask is not None:
            pairs = zip(self._split_mask(self._mask), index.unbind(-1), strict=True)
            index = torch.stack([_nearest_allowed(mask, column) for mask, column in pairs], -1)
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
            masks = self._split_mask(_single_mask(self._mask))
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

    def apply_view(self, view: View) -> Self:
        shape, nvec = self._view_shape(view), view(self._nvec)
        mask = None if self._mask is None else self._view_mask(self._mask, view, shape)
        if not shape:
            # A single variable.
            return Categorical(int(nvec), shape, self._device, self._dtype)  # type: ignore[return-value]
        counts = self._counts
        if nvec.numel():
            counts = _drop_repeated_dims(nvec)
        elif shape[-1] != counts.shape[-1]:
            counts = nvec.new_ones(shape[-1:])
        return self._with(_shape=shape, _nvec=nvec, _mask=mask, _counts=counts)

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
        return _view_mask(
            mask,
            self._shape[:-1],
            lambda positions: view(positions.unsqueeze(-1).expand(self._shape))[..., 0],
        )

    def _arguments(self) -> Arguments:
        return {
            "nvec": self._counts,
            "shape": self._shape,
            "device": self._device,
            "dtype": self._dtype,
            "mask": self._mask,
            "remove_singleton": self.remove_singleton,
        }

    def _has_same_space(self, other: Self) -> bool:
        return torch.equal(self._nvec, other._nvec) and _is_same_mask(self._mask, other._mask)


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
        shape: Shape | None = None,
        device: Device | None = None,
        dtype: torch.dtype | str | None = torch.bool,
        use_register: bool = False,
        mask: ArrayLike | None = None,
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

    def rand(self, shape: Shape | None = ()) -> Tensor:
        """Sample uniformly among the allowed categories."""
        return torch.cat([spec.rand(shape) for spec in self._variable_specs()], -1)

    def rand_at(self, unit: Tensor) -> Tensor | None:
        pairs = zip(self._variable_specs(), self._split(unit), strict=True)
        return torch.cat([spec._one_hot_at(part) for spec, part in pairs], -1)

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

    def to_numpy(self, val: Value, safe: bool | None = None) -> Any:
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

    def _arguments(self) -> Arguments:
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
        shape: Shape | None = None,
        device: Device | None = None,
        dtype: torch.dtype | str = torch.int8,
    ) -> None:
        size = n if shape is None else shape
        if size is None:
            raise SpecError("a Binary needs a size", hint="give n or shape")
        size = as_size(size)
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

    def _arguments(self) -> Arguments:
        return {"shape": self._shape, "device": self._device, "dtype": self._dtype}
