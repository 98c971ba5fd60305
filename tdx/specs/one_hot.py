"""Specs of one category out of ``n``, as a row with a single one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tdx.errors import SpecError
from tdx.specs.arguments import Device, as_device, as_dtype, as_size
from tdx.specs.boxes import CategoricalBox
from tdx.specs.categorical import Categorical
from tdx.specs.encoding import to_array, to_tensor
from tdx.specs.masks import as_mask, draw_masked, same_mask
from tdx.specs.shaping import View
from tdx.specs.spec import TensorSpec


class OneHot(TensorSpec):
    """Rows of ``n`` with a single one.

    Args:
        n: how many categories.
        shape: shape of the values, which ends in ``n``; ``(n,)`` where it is left out.
        device: device of the values.
        dtype: dtype of the values.
        use_register: number the values that ``encode`` meets in the order they come, so that
            anything hashable can be encoded.
        mask: which categories are allowed, bool, broadcast to ``shape``.

    Raises:
        SpecError: the shape does not end in ``n``.

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
        self._space = CategoricalBox(int(n))
        self.use_register = use_register
        self._shape = as_size(int(n) if shape is None else shape)
        self._device = as_device(device)
        self._dtype = as_dtype(torch.bool if dtype is None else dtype)
        if not self._shape or self._shape[-1] != n:
            raise SpecError(
                f"the shape {tuple(self._shape)} of a {type(self).__name__} must end in {n}",
                hint=f"end the shape in {n}, or leave it out",
            )
        if mask is not None:
            self.update_mask(mask)

    @property
    def n(self) -> int:
        """How many categories there are."""
        return self._space.n

    @property
    def space(self) -> CategoricalBox:
        """The categories."""
        return self._space

    @property
    def mask(self) -> Tensor | None:
        """Which categories are allowed, of the spec's shape; ``None`` for all of them."""
        return self._mask

    def update_mask(self, mask: Any) -> None:
        """Change in place which categories are allowed; ``None`` allows all.

        Raises:
            SpecError: the mask does not broadcast to the spec's shape.
        """
        self._mask = as_mask(mask, self._shape[:-1], self.n, self._device)

    def rand(self, shape: Any = ()) -> Tensor:
        """Rows drawn with equal chances among those allowed."""
        sizes = self._sizes(shape)[:-1]
        if self._mask is not None:
            index = draw_masked(self._mask, sizes)
        elif self.n == 0 and sizes.numel():
            raise SpecError(
                "there is no category to draw",
                hint="allow at least one category in each row of the mask",
            )
        else:
            index = torch.randint(0, max(self.n, 1), sizes, device=self._device)
        return self._rows(index)

    def _rows(self, index: Tensor) -> Tensor:
        categories = torch.arange(self.n, device=index.device)
        return (categories == index.unsqueeze(-1)).to(self._dtype)

    def _contains(self, val: Tensor) -> bool:
        ones = val == 1
        alone = bool((ones.sum(-1) == 1).all()) and bool((ones | (val == 0)).all())
        if not alone or self._mask is None:
            return alone
        return bool((self._mask | ~ones).all())

    def _project(self, val: Tensor) -> Tensor:
        weight = torch.nan_to_num(val.double(), nan=0.0)
        if self._mask is not None:
            weight = weight.masked_fill(~self._mask, -torch.inf)
        return self._rows(weight.argmax(-1))

    def _moved(self, val: Any) -> Tensor:
        if isinstance(val, Tensor) and val.is_floating_point() and self._ends_in_shape(val.shape):
            return val.to(self._device)
        return super()._moved(val)

    def project(self, val: Any) -> Any:
        """The value where it is in the spec, else the row with the one where it is largest."""
        return val if self.is_in(val) else self._project(self._moved(val))

    def _describe_space(self) -> str:
        masked = "" if self._mask is None else " that the mask allows"
        return f"the rows with a single one among {self.n}{masked}"

    def encode(self, val: Any, *, ignore_device: bool = False) -> Tensor:
        """Category numbers as one-hot rows; rows of bools or fractions as they are.

        Args:
            val: numbers ``[*B]``, or anything hashable for a spec made with ``use_register``.
            ignore_device: leave a tensor where it is.

        Raises:
            SpecError: a number is not below ``n``.
        """
        found = to_tensor(self._registered(val) if self.use_register else val)
        if not ignore_device:
            found = found.to(self._device)
        rows = found.dtype is torch.bool or found.is_floating_point()
        if rows and found.shape[-1:] == self._shape[-1:]:
            return self._shaped(found.to(self._dtype))
        # Not every integer dtype can be compared.
        return self._encode_index(found if found.is_floating_point() else found.long())

    def _encode_index(self, index: Tensor) -> Tensor:
        if not bool(((index >= 0) & (index < self.n)).all()):
            raise SpecError(
                f"a category is not among 0 to {self.n - 1}", hint="count categories from 0"
            )
        lead = self._shape[:-1]
        if index.shape != lead and index.numel() == lead.numel():
            index = index.reshape(lead)
        return self._rows(index)

    def _registered(self, val: Any) -> int:
        key = val.item() if isinstance(val, Tensor) or hasattr(val, "item") else val
        register = self._space.register
        if key not in register and len(register) >= self.n:
            raise SpecError(
                f"{key!r} is one value more than the {self.n} categories",
                hint="make the spec with more categories",
            )
        return register.setdefault(key, len(register))

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """Rows as an array of category numbers, or the value registered for the category."""
        if safe:
            self.assert_is_in(val)
        index = to_array(val.long().argmax(-1))
        if self.use_register:
            return {number: key for key, number in self._space.register.items()}[int(index)]
        return index

    def cardinality(self) -> int:
        """How many categories there are; all rows of a shape count as one."""
        return self.n

    def enumerate(self, use_mask: bool = False) -> Tensor:
        """The rows along a new first dimension, the same one for all leading elements.

        Args:
            use_mask: leave out what the mask forbids; the spec must be a single row then.
        """
        rows = torch.eye(self.n, dtype=self._dtype, device=self._device)
        if use_mask and self._mask is not None:
            if self._mask.ndim > 1:
                raise SpecError(
                    "a mask with leading dimensions differs between elements",
                    hint="index the spec first, so that one row is left",
                )
            rows = rows[self._mask]
        lead = self._shape[:-1]
        return rows.view(-1, *(1 for _ in lead), self.n).expand(-1, *lead, -1)

    def index(self, index: Tensor, tensor_to_index: Tensor) -> Tensor:
        """The entries of a tensor at the ones.

        Args:
            index: rows, ``[*B, n]``.
            tensor_to_index: ``[*B, n]`` for one row each; with other leading dimensions ``[*A]``
                the result is ``[*A, *B]``. A single row gives one entry, of shape ``[*A, 1]``.
        """
        found = index.long().argmax(-1)
        if found.ndim == 0:
            found = found.unsqueeze(0)
        return Categorical(self.n).index(found, tensor_to_index)

    def to_categorical(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Rows as category numbers, ``[*B, n]`` to ``[*B]``."""
        if safe:
            self.assert_is_in(val)
        return val.long().argmax(-1)

    def to_categorical_spec(self) -> Categorical:
        """The spec of the same categories as numbers."""
        return Categorical(self.n, self._shape[:-1], self._device, mask=self._mask)

    def to_one_hot(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """The value itself."""
        if safe:
            self.assert_is_in(val)
        return val

    def to_one_hot_spec(self) -> OneHot:
        """This spec itself."""
        return self

    def expand(self, *shape: Any) -> TensorSpec:
        """The spec of values expanded to a shape, which still ends in ``n``."""
        return super().expand(*shape)

    def squeeze(self, dim: int | None = None) -> TensorSpec:
        """The spec without a leading dimension of size 1, or without all of them."""
        if dim is None:
            lead = [size for size in self._shape[:-1] if size != 1]
            return self.reshape(*lead, self._shape[-1])
        return super().squeeze(dim)

    def __getitem__(self, index: Any) -> Any:
        lead = self._shape[:-1]
        entries = torch.arange(self._shape[-1]).expand(*lead, -1)
        shape = self._viewed_shape(lambda tensor: tensor[index])
        if shape[-1:] != self._shape[-1:] or not torch.equal(
            entries[index], entries.flatten()[: shape[-1]].expand(shape)
        ):
            raise SpecError(
                f"a {type(self).__name__} of shape {tuple(self._shape)} cannot be indexed along "
                "its last dimension",
                hint="index the leading dims only",
            )
        return self._viewed(lambda tensor: tensor[index])

    def _viewed(self, view: View) -> TensorSpec:
        viewed = self.clone()
        shape = self._viewed_shape(view)
        if shape[-1:] != self._shape[-1:]:
            raise SpecError(
                f"the last dimension of a {type(self).__name__} must stay, but "
                f"{tuple(self._shape)} became {tuple(shape)}",
                hint="reshape the leading dims only",
            )
        viewed._shape = shape
        if self._mask is not None:
            viewed._mask = view(self._mask)
        return viewed

    def _arguments(self) -> dict[str, Any]:
        return {
            **super()._arguments(),
            "n": self.n,
            "use_register": self.use_register,
            "mask": self._mask,
        }

    def replace(self, **changes: Any) -> Any:
        """A copy with some of ``n``, ``shape``, ``device``, ``dtype`` and ``mask`` changed."""
        copied = super().replace(**changes)
        if isinstance(copied, OneHot) and copied._space == self._space:
            copied._space = self._space
        return copied

    def _equals(self, other: Any) -> bool:
        return (
            bool(self.space == other.space)
            and self.use_register == other.use_register
            and same_mask(self._mask, other._mask)
        )
