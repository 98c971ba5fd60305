"""What stacks of leaves and of composites have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdx.errors import SpecError
from tdx.specs.arguments import Device, size_from
from tdx.specs.shaping import without_ellipsis
from tdx.specs.spec import TensorSpec


class SpecStack(TensorSpec):
    """What stacks of leaves and of composites have in common."""

    _members: list[Any]
    _dim: int

    def __init__(self, *specs: Any, dim: int = 0) -> None:
        if not specs:
            raise SpecError("a stack needs at least one spec", hint="give it a list of specs")
        ndim = specs[0].ndim
        if any(spec.ndim != ndim for spec in specs):
            shapes = [tuple(spec.shape) for spec in specs]
            raise SpecError(
                f"specs to stack must have as many dimensions, got shapes {shapes}",
                hint="unsqueeze or expand the specs first",
            )
        if dim < 0:
            dim += ndim + 1
        if not 0 <= dim <= ndim:
            raise SpecError(
                f"there is no dimension {dim} to stack along, shapes have {ndim}",
                hint=f"use a dimension from {-ndim - 1} to {ndim}",
            )
        self._members = list(specs)
        self._dim = dim

    @property
    def stack_dim(self) -> int:
        """The dimension that the specs are stacked along."""
        return self._dim

    @property
    def specs(self) -> list[Any]:
        """The specs, in order."""
        return list(self._members)

    @property
    def _shape(self) -> torch.Size:  # type: ignore[override]
        """Shape of the stack; -1 where the specs differ in a size."""
        shapes = [spec.shape for spec in self._members]
        merged = [
            sizes[0] if all(size == sizes[0] for size in sizes) else -1
            for sizes in zip(*shapes, strict=True)
        ]
        return torch.Size([*merged[: self._dim], len(shapes), *merged[self._dim :]])

    @property
    def _device(self) -> torch.device | None:  # type: ignore[override]
        """Device of the specs; ``None`` where they differ."""
        devices = {spec.device for spec in self._members}
        return devices.pop() if len(devices) == 1 else None

    def _rebuilt(self, members: list[Any], dim: int) -> Any:
        return type(self)(*members, dim=dim)

    def clone(self) -> Any:
        """A copy with copies of the specs."""
        return self._rebuilt([spec.clone() for spec in self._members], self._dim)

    def to(self, dest: torch.dtype | Device) -> Any:
        """The stack on a device, or in a dtype."""
        return self._rebuilt([spec.to(dest) for spec in self._members], self._dim)

    def expand(self, *shape: Any) -> Any:
        """The stack with leading dimensions expanded; those that the specs differ in are -1."""
        sizes = list(size_from(shape))
        new = len(sizes) - self.ndim
        if new < 0 or sizes[new + self._dim] not in (-1, len(self._members)):
            raise SpecError(
                f"a stack of shape {tuple(self.shape)} cannot expand to {tuple(sizes)}",
                hint="expand the leading dims only",
            )
        dim = new + self._dim
        rest = sizes[:dim] + sizes[dim + 1 :]
        members = []
        for spec in self._members:
            own = [spec.shape[i - new] if size == -1 else size for i, size in enumerate(rest)]
            members.append(spec.expand(*own))
        return self._rebuilt(members, dim)

    def unsqueeze(self, dim: int) -> Any:
        """The stack with a new dimension of size 1."""
        if dim < 0:
            dim += self.ndim + 1
        inner, stack_dim = (dim, self._dim + 1) if dim <= self._dim else (dim - 1, self._dim)
        return self._rebuilt([spec.unsqueeze(inner) for spec in self._members], stack_dim)

    def squeeze(self, dim: int | None = None) -> Any:
        """The stack without a dimension of size 1, or without all of them."""
        if dim is None:
            found: Any = self
            for i in reversed(range(self.ndim)):
                if found.shape[i] == 1:
                    found = found.squeeze(i)
            return found
        dim = self._dimension(dim)
        if self.shape[dim] != 1:
            return self
        if dim == self._dim:
            return self._members[0]
        inner, stack_dim = (dim, self._dim - 1) if dim < self._dim else (dim - 1, self._dim)
        return self._rebuilt([spec.squeeze(inner) for spec in self._members], stack_dim)

    def __getitem__(self, index: Any) -> Any:
        parts = list(without_ellipsis(index, self.ndim))
        before: list[Any] = []
        taken = 0
        while parts and taken < self._dim:
            part = parts.pop(0)
            before.append(part)
            taken += part is not None
        while parts and parts[0] is None:
            before.append(parts.pop(0))
        chosen, after = (parts[0], parts[1:]) if parts else (slice(None), [])
        full = (*before, *(slice(None),) * (self._dim - taken), *after)
        found = self._chosen(chosen)
        if isinstance(found, TensorSpec):
            return found[full] if full else found
        members = [spec[full] if full else spec for spec in found]
        dropped = sum(isinstance(part, int) for part in before)
        added = sum(part is None for part in before)
        return torch.stack(members, self._dim - dropped + added)

    def _chosen(self, chosen: Any) -> Any:
        try:
            picked = torch.arange(len(self._members))[chosen]
        except IndexError as error:
            raise SpecError(
                f"a stack of {len(self._members)} has no {chosen!r}",
                hint=f"use an index below {len(self._members)}",
            ) from error
        if picked.ndim == 0:
            return self._members[int(picked)]
        if picked.ndim > 1:
            raise SpecError(
                "a stack takes one-dimensional indices along its stack dimension",
                hint="use an integer, a slice or a list of integers",
            )
        return [self._members[i] for i in picked.tolist()]

    def unbind(self, dim: int = 0) -> Any:
        """The specs along a dimension."""
        if self._dimension(dim) == self._dim:
            return tuple(self._members)
        return super().unbind(dim)

    def make_neg_dim(self, dim: int) -> Any:
        """The stack with a dimension of unknown size."""
        dim = self._dimension(dim)
        if dim == self._dim:
            raise SpecError("the stack dimension has a known size", hint="name another dimension")
        inner = dim if dim < self._dim else dim - 1
        return self._rebuilt([spec.make_neg_dim(inner) for spec in self._members], self._dim)

    def _unsupported(self, *args: Any, **kwargs: Any) -> Any:
        raise SpecError(
            "a stack of unlike specs cannot be reshaped", hint="index, expand, squeeze, unsqueeze"
        )

    reshape = _unsupported
    flatten = _unsupported
    unflatten = _unsupported
    _viewed = _unsupported

    def _parts(self, val: Any) -> list[Any]:
        """The values of each spec, from a value of the stack with any leading dimensions.

        Raises:
            SpecError: it cannot be split into as many.
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
        if len(parts) != len(self._members):
            raise SpecError(
                f"expected {len(self._members)} parts along dimension {self._dim}",
                hint="give one part for each spec of the stack",
            )
        return parts

    def is_in(self, val: Any) -> bool:
        """Whether each part of a value is in its spec."""
        return self.why_not_in(val) is None

    def why_not_in(self, val: Any) -> str | None:
        """What keeps a value out, with the place in the stack; ``None`` for one that is in."""
        try:
            parts = self._parts(val)
        except SpecError as error:
            return error.message
        for i, (spec, part) in enumerate(zip(self._members, parts, strict=True)):
            reason = spec.why_not_in(part)
            if reason is not None:
                return f"part {i}: {reason}"
        return None

    def project(self, val: Any) -> Any:
        """The value with each part projected into its spec."""
        parts = [
            spec.project(part) for spec, part in zip(self._members, self._parts(val), strict=True)
        ]
        return self._joined(parts)

    def rand(self, shape: Any = ()) -> Any:
        """Random values, drawn spec by spec."""
        return self._joined([spec.rand(shape) for spec in self._members])

    def zero(self, shape: Any = ()) -> Any:
        """Zeros."""
        return self._joined([spec.zero(shape) for spec in self._members])

    def one(self, shape: Any = ()) -> Any:
        """Ones."""
        return self._joined([spec.one(shape) for spec in self._members])

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """The parts of a sequence or an array along the stack dimension, each by its spec."""
        parts = self._parts(torch.as_tensor(val) if isinstance(val, np.ndarray) else val)
        return self._joined(
            [
                spec.encode(part, ignore_device=ignore_device)
                for spec, part in zip(self._members, parts, strict=True)
            ]
        )

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """The parts as arrays, in a list."""
        if safe:
            self.assert_is_in(val)
        return [
            spec.to_numpy(part) for spec, part in zip(self._members, self._parts(val), strict=True)
        ]

    def _joined(self, parts: list[Any]) -> Any:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SpecStack) or type(other) is not type(self):
            return False
        return self._dim == other._dim and self._members == other._members

    __hash__ = None
