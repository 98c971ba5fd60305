"""Specs of one category out of ``n``, as its number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tdx.errors import SpecError
from tdx.specs.arguments import Device, as_device, as_dtype, as_size
from tdx.specs.bounds import extremes, ordered
from tdx.specs.boxes import CategoricalBox
from tdx.specs.masks import as_mask, draw_masked, nearest_allowed, same_mask, view_mask
from tdx.specs.shaping import View
from tdx.specs.spec import TensorSpec

if TYPE_CHECKING:
    from tdx.specs.one_hot import OneHot


class Categorical(TensorSpec):
    """The integers from 0 to ``n - 1``.

    Args:
        n: how many categories; -1 where it is not known yet (see ``set_provisional_n``).
        shape: shape of the values.
        device: device of the values.
        dtype: dtype of the values.
        mask: which categories are allowed, bool, broadcast to ``[*shape, n]``.

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
        self._n = int(n)
        self._shape = as_size(() if shape is None else shape)
        self._device = as_device(device)
        self._dtype = as_dtype(dtype)
        if self._n - 1 > extremes(self._dtype)[1]:
            raise SpecError(
                f"{self._n} categories do not fit {self._dtype}",
                hint="use a wider dtype, such as torch.int64",
            )
        if mask is not None:
            self.update_mask(mask)

    @property
    def n(self) -> int:
        """How many categories there are.

        Raises:
            SpecError: it is not known, and ``set_provisional_n`` was not called.
        """
        if self._n >= 0:
            return self._n
        if self._provisional_n is None:
            raise SpecError(
                "the number of categories is not known", hint="call set_provisional_n(n) first"
            )
        return self._provisional_n

    def set_provisional_n(self, n: int) -> None:
        """Say how many categories there are for now, where the spec leaves it open."""
        self._provisional_n = int(n)

    @property
    def space(self) -> CategoricalBox:
        """The categories."""
        return CategoricalBox(self._n)

    @property
    def mask(self) -> Tensor | None:
        """Which categories are allowed, ``[*shape, n]``; ``None`` for all of them."""
        return self._mask

    def update_mask(self, mask: Any) -> None:
        """Change in place which categories are allowed; ``None`` allows all.

        Raises:
            SpecError: the mask does not broadcast to ``[*shape, n]``.
        """
        self._mask = as_mask(mask, self._shape, self.n, self._device)

    def rand(self, shape: Any = ()) -> Tensor:
        """Categories drawn with equal chances among those allowed."""
        sizes = self._sizes(shape)
        if self._mask is not None:
            return draw_masked(self._mask, sizes).to(self._dtype)
        if self.n == 0 and sizes.numel():
            raise SpecError(
                "there is no category to draw",
                hint="allow at least one category in each row of the mask",
            )
        return torch.randint(0, max(self.n, 1), sizes, device=self._device).to(self._dtype)

    def _contains(self, val: Tensor) -> bool:
        value = val if val.dtype is torch.int64 else ordered(val)
        if val.dtype.is_floating_point and not bool((value == value.floor()).all()):
            return False
        if val.dtype is torch.uint64:
            value = val.view(torch.int64)
        inside = (value >= 0) & (value < self.n)
        if not bool(inside.all()):
            return False
        if self._mask is None:
            return True
        mask = self._mask.expand(*val.shape, self.n)
        return bool(mask.gather(-1, value.long().unsqueeze(-1)).all())

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
        """How many categories there are; all elements of a shape count as one."""
        return self.n

    def enumerate(self, use_mask: bool = False) -> Tensor:
        """The categories along a new first dimension, the same one for all elements of a shape.

        Args:
            use_mask: leave out what the mask forbids; the spec must have no shape then.
        """
        index = torch.arange(self.n, device=self._device)
        if use_mask and self._mask is not None:
            if self._mask.ndim > 1:
                raise SpecError(
                    "a mask with leading dimensions differs between elements",
                    hint="index the spec first, so that one row is left",
                )
            index = index[self._mask]
        rows = index.view(-1, *(1 for _ in self._shape)).expand(-1, *self._shape)
        return rows.to(self._dtype)

    def index(self, index: Tensor, tensor_to_index: Tensor) -> Tensor:
        """The entries of a tensor at some categories.

        Args:
            index: categories, of any shape ``[*B]``.
            tensor_to_index: ``[*B, n]`` for one row each; with other leading dimensions ``[*A]``
                the result is ``[*A, *B]``.
        """
        index = index.long()
        lead = tensor_to_index.shape[:-1]
        if lead and index.shape == lead:
            return tensor_to_index.gather(-1, index.unsqueeze(-1)).squeeze(-1)
        return tensor_to_index[..., index]

    def to_one_hot(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Categories as one-hot rows, ``[*B]`` to ``[*B, n]``, bool."""
        if safe:
            self.assert_is_in(val)
        return torch.nn.functional.one_hot(val.long(), self.n).bool()

    def to_one_hot_spec(self) -> OneHot:
        """The spec of the same categories as one-hot rows."""
        from tdx.specs.one_hot import OneHot

        return OneHot(self.n, shape=(*self._shape, self.n), device=self._device, mask=self._mask)

    def to_categorical(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """The value itself."""
        if safe:
            self.assert_is_in(val)
        return val

    def to_categorical_spec(self) -> Categorical:
        """This spec itself."""
        return self

    def _viewed(self, view: View) -> TensorSpec:
        viewed = self.clone()
        viewed._shape = self._viewed_shape(view)
        if self._mask is not None:
            viewed._mask = view_mask(self._mask, self._shape, view)
        return viewed

    def replace(self, **changes: Any) -> Any:
        """A copy with some of ``n``, ``shape``, ``device``, ``dtype`` and ``mask`` changed."""
        copied = super().replace(**changes)
        if self._provisional_n is not None and isinstance(copied, Categorical):
            copied._provisional_n = self._provisional_n
        return copied

    def _arguments(self) -> dict[str, Any]:
        return {**super()._arguments(), "n": self._n, "mask": self._mask}

    def _equals(self, other: Any) -> bool:
        return self._n == other._n and same_mask(self._mask, other._mask)
