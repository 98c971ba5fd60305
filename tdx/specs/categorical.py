"""Specs of one category out of ``n``: as an integer, and as a one-hot vector."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tdx.foundation.errors import SpecError, SpecIndexError
from tdx.specs.arguments import (
    Device,
    View,
    as_dtype,
    as_size,
    ends_with,
    match_shape,
    parse_index,
    replace_unknown_sizes,
    to_array,
    to_tensor,
)
from tdx.specs.intervals import extremes
from tdx.specs.spaces import (
    CategoricalBox,
    as_mask,
    in_range,
    is_allowed,
    is_same_mask,
    nearest_allowed,
    sample_categories,
    single_mask,
    view_mask,
)
from tdx.specs.spec import TensorSpec


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
        shape: Any = (),
        device: Device | None = None,
        dtype: torch.dtype | str = torch.int64,
        mask: Any = None,
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

    def update_mask(self, mask: Any) -> None:
        """Change the allowed categories in place; ``None`` allows all."""
        self._mask = as_mask(mask, self._shape, self.n, self._device)

    def rand(self, shape: Any = ()) -> Tensor:
        """Sample uniformly among the allowed categories."""
        full = self._full_shape(shape)
        return sample_categories(self.n, self._mask, full, self._device).to(self._dtype)

    def elements_in(self, val: Tensor) -> Tensor:
        inside, index = in_range(val, self.n)
        if self._mask is None or not self.n:
            return inside
        return inside & is_allowed(self._mask, index)

    def _project(self, val: Tensor) -> Tensor:
        value = torch.nan_to_num(val.double(), 0.0) if val.dtype.is_floating_point else val
        index = value.long().clamp(0, max(self.n - 1, 0))
        if self._mask is not None:
            index = nearest_allowed(self._mask, index)
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
            index = index[single_mask(self._mask)]
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

    def apply_view(self, view: View) -> TensorSpec:
        viewed = self.clone()
        viewed._shape = self._view_shape(view)
        if self._mask is not None:
            viewed._mask = view_mask(self._mask, self._shape, view)
        return viewed

    def replace(self, **changes: Any) -> Any:
        """Return a copy with ``n``, ``shape``, ``device``, ``dtype`` or ``mask`` changed."""
        copied = super().replace(**changes)
        if self._provisional_n is not None and isinstance(copied, Categorical):
            copied._provisional_n = self._provisional_n
        return copied

    def _arguments(self) -> dict[str, Any]:
        return {**super()._arguments(), "n": self._n, "mask": self._mask}

    def _has_same_space(self, other: Any) -> bool:
        return self._n == other._n and is_same_mask(self._mask, other._mask)


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
        shape: Any = None,
        device: Device | None = None,
        dtype: torch.dtype | str | None = torch.bool,
        use_register: bool = False,
        mask: Any = None,
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

    def update_mask(self, mask: Any) -> None:
        """Change the allowed categories in place; ``None`` allows all."""
        self._mask = as_mask(mask, self._shape[:-1], self.n, self._device)

    def rand(self, shape: Any = ()) -> Tensor:
        """Sample uniformly among the allowed categories."""
        full = self._full_shape(shape)
        return self._one_hot(sample_categories(self.n, self._mask, full[:-1], self._device))

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

    def _cast(self, val: Any) -> Tensor:
        is_float = isinstance(val, Tensor) and val.is_floating_point()
        fits = is_float and ends_with(val.shape, self._shape)
        return val.to(self._device) if fits else super()._cast(val)

    def project(self, val: Any) -> Any:
        """Return a value in the spec unchanged, else the one-hot vector of the largest element."""
        return val if self.is_in(val) else self._project(self._cast(val))

    def _describe_space(self) -> str:
        masked = "" if self._mask is None else " that the mask allows"
        return f"the one-hot vectors of {self.n} elements{masked}"

    def encode(self, val: Any, *, ignore_device: bool = False) -> Tensor:
        """Convert category numbers to one-hot vectors; vectors of bools or floats are kept.

        Args:
            val: Categories ``[*B]``, or any hashable value for a spec with ``use_register``.
            ignore_device: True to leave a tensor on its device.

        Raises:
            SpecError: A category is out of range.
        """
        if self.use_register:
            val = self._space.assign(val.item() if hasattr(val, "item") else val)
        found = to_tensor(val)
        if not ignore_device:
            found = found.to(self._device)
        are_vectors = found.dtype is torch.bool or found.is_floating_point()
        if are_vectors and found.shape[-1:] == self._shape[-1:]:
            return match_shape(found.to(self._dtype), self._shape)
        # Not every integer dtype can be compared.
        return self._encode_index(found if found.is_floating_point() else found.long())

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

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
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
            vectors = vectors[single_mask(self._mask)]
        lead = self._shape[:-1]
        return vectors.view(-1, *(1 for _ in lead), self.n).expand(-1, *lead, -1)

    def index(self, index: Tensor, tensor_to_index: Tensor) -> Tensor:
        """Take entries of a tensor by category, as ``Categorical.index``.

        Args:
            index: One-hot vectors, ``[*B, n]``. A single vector takes entries of shape ``[1]``.
            tensor_to_index: Tensor of shape ``[*B, n]`` or ``[*A, n]``.
        """
        found = index.long().argmax(-1)
        if found.ndim == 0:
            found = found.unsqueeze(0)
        return Categorical(self.n).index(found, tensor_to_index)

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

    def squeeze(self, dim: int | None = None) -> TensorSpec:
        """Return the spec without a leading dimension of size 1, or without all of them."""
        if dim is None:
            lead = [size for size in self._shape[:-1] if size != 1]
            return self.reshape(*lead, self._shape[-1])
        return super().squeeze(dim)

    def __getitem__(self, index: Any) -> Any:
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

    def apply_view(self, view: View) -> TensorSpec:
        viewed = self.clone()
        shape = self._view_shape(view)
        if shape[-1:] != self._shape[-1:]:
            raise SpecError(
                f"cannot change the last dimension of a {type(self).__name__}, from shape "
                f"{tuple(self._shape)} to {tuple(shape)}",
                hint="reshape the leading dims only",
            )
        viewed._shape = shape
        if self._mask is not None:
            viewed._mask = view(self._mask)
        return viewed

    def _arguments(self) -> dict[str, Any]:
        own = {"n": self.n, "use_register": self.use_register, "mask": self._mask}
        return {**super()._arguments(), **own}

    def replace(self, **changes: Any) -> Any:
        """Return a copy with ``n``, ``shape``, ``device``, ``dtype`` or ``mask`` changed."""
        copied = super().replace(**changes)
        if isinstance(copied, OneHot) and copied._space == self._space:
            copied._space = self._space
        return copied

    def _has_same_space(self, other: Any) -> bool:
        return (
            bool(self.space == other.space)
            and self.use_register == other.use_register
            and is_same_mask(self._mask, other._mask)
        )
