"""The shape operations of specs: each gives the spec of the values that torch would give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from tdx.errors import SpecError, first_line
from tdx.specs.arguments import size_from
from tdx.specs.torch_functions import TorchFunctions

_UNKNOWN_SIZE = 1_000_003

View = Callable[[Tensor], Tensor]


class ShapeOperations(TorchFunctions):
    """Expanding, squeezing, reshaping and indexing.

    Each is written once, as a function of a tensor; ``_viewed`` applies it to the shape and to
    whatever tensors a spec is made of.
    """

    _shape: torch.Size

    def expand(self, *shape: Any) -> Any:
        """The spec of values expanded to a shape, as ``Tensor.expand``."""
        sizes = size_from(shape)
        return self._viewed(lambda tensor: tensor.expand(sizes))

    def squeeze(self, dim: int | None = None) -> Any:
        """The spec without a dimension of size 1, or without all of them."""
        if dim is None:
            return self._viewed(torch.squeeze)
        return self._viewed(lambda tensor: tensor.squeeze(dim))

    def unsqueeze(self, dim: int) -> Any:
        """The spec with a new dimension of size 1."""
        return self._viewed(lambda tensor: tensor.unsqueeze(dim))

    def reshape(self, *shape: Any) -> Any:
        """The spec of reshaped values."""
        sizes = size_from(shape)
        return self._viewed(lambda tensor: tensor.reshape(sizes))

    def view(self, *shape: Any) -> Any:
        """The spec of reshaped values: another name of ``reshape``."""
        return self.reshape(*shape)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Any:
        """The spec with the dimensions from one to another made one."""
        return self._viewed(lambda tensor: tensor.flatten(start_dim, end_dim))

    def unflatten(self, dim: int, sizes: Any) -> Any:
        """The spec with a dimension split into several."""
        return self._viewed(lambda tensor: tensor.unflatten(dim, tuple(sizes)))

    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        """The specs along a dimension."""
        where = self._dimension(dim)
        return tuple(self[(slice(None),) * where + (i,)] for i in range(self._shape[where]))

    def index_select(self, dim: int, index: Any) -> Any:
        """The spec of some entries of a dimension, as ``torch.index_select``."""
        return self[(slice(None),) * self._dimension(dim) + (index,)]

    def make_neg_dim(self, dim: int) -> Any:
        """The spec with a dimension of unknown size, -1."""
        sizes = list(self._shape)
        sizes[self._dimension(dim)] = -1
        return self._sized(torch.Size(sizes))

    def __getitem__(self, index: Any) -> Any:
        return self._viewed(lambda tensor: tensor[index])

    def __iter__(self) -> Iterator[Any]:
        return iter(self.unbind(0))

    def __len__(self) -> int:
        return self._shape[self._dimension(0)]

    def __bool__(self) -> bool:
        return True

    def _dimension(self, dim: int) -> int:
        ndim = len(self._shape)
        if not -ndim <= dim < ndim:
            raise SpecError(
                f"there is no dimension {dim} in the shape {tuple(self._shape)}",
                hint=f"use a dimension from {-len(self._shape)} to {len(self._shape) - 1}",
            )
        return dim % ndim

    def _viewed(self, view: View) -> Any:
        return self._sized(self._viewed_shape(view))

    def _sized(self, shape: torch.Size) -> Any:
        """The same spec of another shape."""
        raise NotImplementedError

    def _viewed_shape(self, view: View) -> torch.Size:
        shape = torch.Size([_UNKNOWN_SIZE if size < 0 else size for size in self._shape])
        try:
            viewed = view(torch.empty(shape, device="meta")).shape
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            raise SpecError(
                f"a {type(self).__name__} of shape {tuple(self._shape)} does not take that shape "
                f"or index: {first_line(error)}",
                hint="use sizes and indices that fit the shape",
            ) from error
        return torch.Size([-1 if size == _UNKNOWN_SIZE else size for size in viewed])


def without_ellipsis(index: Any, ndim: int) -> tuple[Any, ...]:
    """The index as a tuple, its ellipsis written out for ``ndim`` dimensions."""
    parts = index if isinstance(index, tuple) else (index,)
    if not any(part is Ellipsis for part in parts):
        return parts
    used = sum(
        part.ndim if isinstance(part, Tensor) and part.dtype is torch.bool else 1
        for part in parts
        if part is not None and part is not Ellipsis
    )
    at = next(i for i, part in enumerate(parts) if part is Ellipsis)
    return (*parts[:at], *(slice(None),) * (ndim - used), *parts[at + 1 :])
