"""Base class of stacked specs: shape operations, and splitting of values into parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdx.foundation.errors import SpecError, SpecIndexError
from tdx.specs.arguments import (
    Device,
    check_dimension,
    expand_ellipsis,
    parse_index,
    size_from_args,
)
from tdx.specs.spec import TensorSpec


class SpecStack(TensorSpec):
    """Base class of stacks: specs of the same number of dimensions along a stack dimension.

    Values are split along that dimension, and each part belongs to its spec.

    Args:
        *specs: Specs to stack.
        dim: Stack dimension, which is new.

    Raises:
        SpecError: The list is empty, the numbers of dimensions differ, or ``dim`` is out of range.
    """

    _specs: list[Any]
    _dim: int

    def __init__(self, *specs: Any, dim: int = 0) -> None:
        if not specs:
            raise SpecError("a stack needs at least one spec", hint="pass a list of specs")
        ndim = specs[0].ndim
        if any(spec.ndim != ndim for spec in specs):
            shapes = [tuple(spec.shape) for spec in specs]
            raise SpecError(
                f"specs to stack must have the same number of dimensions, got shapes {shapes}",
                hint="unsqueeze or expand the specs first",
            )
        if dim < 0:
            dim += ndim + 1
        if not 0 <= dim <= ndim:
            raise SpecError(
                f"stack dimension {dim} is out of range for specs with {ndim} dimensions",
                hint=f"use a dimension from {-ndim - 1} to {ndim}",
            )
        self._specs = list(specs)
        self._dim = dim

    @property
    def stack_dim(self) -> int:
        """Dimension along which the specs are stacked."""
        return self._dim

    @property
    def dim(self) -> int:
        """Dimension along which the specs are stacked: alias of ``stack_dim``."""
        return self._dim

    @property
    def specs(self) -> list[Any]:
        """Specs, in order."""
        return list(self._specs)

    @property
    def _shape(self) -> torch.Size:  # type: ignore[override]
        """Shape of the stack; -1 for sizes in which the specs differ."""
        return stack_shape(self._specs, self._dim)

    @property
    def _device(self) -> torch.device | None:  # type: ignore[override]
        """Device of the specs; ``None`` where they differ."""
        devices = {spec.device for spec in self._specs}
        return devices.pop() if len(devices) == 1 else None

    def _rebuild(self, members: list[Any], dim: int) -> Any:
        return type(self)(*members, dim=dim)

    def clone(self) -> Any:
        return self._rebuild([spec.clone() for spec in self._specs], self._dim)

    def to(self, dest: torch.dtype | Device) -> Any:
        return self._rebuild([spec.to(dest) for spec in self._specs], self._dim)

    def expand(self, *shape: Any) -> Any:
        sizes = list(size_from_args(shape))
        new = len(sizes) - self.ndim
        if new < 0 or sizes[new + self._dim] not in (-1, len(self._specs)):
            raise SpecError(
                f"a stack of shape {tuple(self.shape)} cannot expand to {tuple(sizes)}",
                hint="expand the leading dims only",
            )
        dim = new + self._dim
        rest = sizes[:dim] + sizes[dim + 1 :]
        members = []
        for spec in self._specs:
            own = [spec.shape[i - new] if size == -1 else size for i, size in enumerate(rest)]
            members.append(spec.expand(*own))
        return self._rebuild(members, dim)

    def unsqueeze(self, dim: int) -> Any:
        if dim < 0:
            dim += self.ndim + 1
        inner, stack_dim = (dim, self._dim + 1) if dim <= self._dim else (dim - 1, self._dim)
        return self._rebuild([spec.unsqueeze(inner) for spec in self._specs], stack_dim)

    def squeeze(self, dim: int | None = None) -> Any:
        if dim is None:
            squeezed: Any = self
            for i in reversed(range(self.ndim)):
                if squeezed.shape[i] == 1:
                    squeezed = squeezed.squeeze(i)
            return squeezed
        dim = check_dimension(dim, self.shape)
        if self.shape[dim] != 1:
            return self
        if dim == self._dim:
            return self._specs[0]
        inner, stack_dim = (dim, self._dim - 1) if dim < self._dim else (dim - 1, self._dim)
        return self._rebuild([spec.squeeze(inner) for spec in self._specs], stack_dim)

    def __getitem__(self, index: Any) -> Any:
        parsed = parse_index(index, self.shape, type(self).__name__)
        parts = list(expand_ellipsis(parsed, self.ndim))
        before: list[Any] = []
        taken = 0
        while parts and taken < self._dim:
            part = parts.pop(0)
            before.append(part)
            taken += part is not None
        while parts and parts[0] is None:
            before.append(parts.pop(0))
        selection, after = (parts[0], parts[1:]) if parts else (slice(None), [])
        full = (*before, *(slice(None),) * (self._dim - taken), *after)
        found = self._select_members(selection)
        if isinstance(found, TensorSpec):
            return found[full] if full else found
        members = [spec[full] if full else spec for spec in found]
        dropped = sum(isinstance(part, int) for part in before)
        added = sum(part is None for part in before)
        return torch.stack(members, self._dim - dropped + added)

    def _select_members(self, index: Any) -> Any:
        """Return a member for an integer index, a list of them for a slice or a list."""
        try:
            positions = torch.arange(len(self._specs))[index]
        except IndexError as error:
            raise SpecIndexError(
                f"index {index!r} is out of range for a stack of {len(self._specs)} specs",
                hint=f"use an index below {len(self._specs)}",
            ) from error
        if positions.ndim == 0:
            return self._specs[int(positions)]
        if positions.ndim > 1:
            raise SpecIndexError(
                f"the index along the stack dimension has {positions.ndim} dimensions",
                hint="use an integer, a slice or a list of integers",
            )
        return [self._specs[i] for i in positions.tolist()]

    def unbind(self, dim: int = 0) -> Any:
        if check_dimension(dim, self.shape) == self._dim:
            return tuple(self._specs)
        return super().unbind(dim)

    def make_neg_dim(self, dim: int) -> Any:
        dim = check_dimension(dim, self.shape)
        if dim == self._dim:
            raise SpecError(
                f"the size of the stack dimension {dim} cannot be unknown",
                hint="use another dimension",
            )
        inner = dim if dim < self._dim else dim - 1
        return self._rebuild([spec.make_neg_dim(inner) for spec in self._specs], self._dim)

    def _unsupported(self, *args: Any, **kwargs: Any) -> Any:
        raise SpecError(
            "a stack of different specs cannot be reshaped",
            hint="use indexing, expand, squeeze or unsqueeze",
        )

    reshape = _unsupported
    flatten = _unsupported
    unflatten = _unsupported
    apply_view = _unsupported

    def _split(self, val: Any) -> list[Any]:
        """Split a value, which may have leading dimensions, into one part for each spec.

        Raises:
            SpecError: The number of parts differs from the number of specs.
        """
        if isinstance(val, (list, tuple)):
            parts = list(val)
        elif not hasattr(val, "unbind"):
            raise SpecError(
                f"expected a tensor, got a {type(val).__name__}",
                hint="encode the value first: spec.encode(value)",
            )
        elif isinstance(val, Tensor) and val.is_nested:
            parts = list(val.unbind(0))
        else:
            extra = len(val.shape) - self.ndim
            parts = list(val.unbind(extra + self._dim)) if extra >= 0 else []
        if len(parts) != len(self._specs):
            raise SpecError(
                f"expected {len(self._specs)} parts along dimension {self._dim}, got {len(parts)}",
                hint="give one part for each spec of the stack",
            )
        return parts

    def is_in(self, val: Any) -> bool:
        return self.why_not_in(val) is None

    def why_not_in(self, val: Any) -> str | None:
        """Explain why a value is not in the stack, with the index of the part."""
        try:
            parts = self._split(val)
        except SpecError as error:
            return error.message
        for i, (spec, part) in enumerate(zip(self._specs, parts, strict=True)):
            reason = spec.why_not_in(part)
            if reason is not None:
                return f"part {i}: {reason}"
        return None

    def project(self, val: Any) -> Any:
        parts = [
            spec.project(part) for spec, part in zip(self._specs, self._split(val), strict=True)
        ]
        return self._join(parts)

    def rand(self, shape: Any = ()) -> Any:
        return self._join([spec.rand(shape) for spec in self._specs])

    def zero(self, shape: Any = ()) -> Any:
        return self._join([spec.zero(shape) for spec in self._specs])

    def one(self, shape: Any = ()) -> Any:
        return self._join([spec.one(shape) for spec in self._specs])

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        parts = self._split(torch.as_tensor(val) if isinstance(val, np.ndarray) else val)
        return self._join(
            [
                spec.encode(part, ignore_device=ignore_device)
                for spec, part in zip(self._specs, parts, strict=True)
            ]
        )

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        if safe:
            self.assert_is_in(val)
        return [
            spec.to_numpy(part) for spec, part in zip(self._specs, self._split(val), strict=True)
        ]

    def _join(self, parts: list[Any]) -> Any:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SpecStack) or type(other) is not type(self):
            return False
        return self._dim == other._dim and self._specs == other._specs

    __hash__ = None


def stack_shape(members: list[Any], dim: int) -> torch.Size:
    """Return the shape of stacked specs; -1 for sizes in which they differ."""
    shapes = [spec.shape for spec in members]
    merged = [
        sizes[0] if all(size == sizes[0] for size in sizes) else -1
        for sizes in zip(*shapes, strict=True)
    ]
    return torch.Size([*merged[:dim], len(shapes), *merged[dim:]])
