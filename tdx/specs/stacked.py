"""Stacks of specs that differ, and ``torch.stack`` of specs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, lazy_stack
from torch import Tensor

from tdx.errors import SpecError
from tdx.specs.arguments import Device, size_from
from tdx.specs.composite import Composite, _without_ellipsis
from tdx.specs.non_tensor import NonTensor
from tdx.specs.printing import indent
from tdx.specs.spec import TensorSpec
from tdx.specs.stacking import TorchFunctions


@TorchFunctions.handles(torch.stack)
def stack(tensors: Sequence[TensorSpec], dim: int = 0, *, out: Any = None) -> TensorSpec:
    """The spec of stacked values.

    Args:
        tensors: the specs; equal ones give one spec of their kind, others a ``Stacked`` or a
            ``StackedComposite``.
        dim: the new dimension.
        out: not supported.

    Raises:
        SpecError: the list is empty, or the specs cannot be stacked.
    """
    specs = list(tensors)
    if out is not None:
        raise SpecError("stacking specs into out is not supported")
    if not specs:
        raise SpecError("there are no specs to stack")
    if dim < 0:
        dim += specs[0].ndim + 1
    if all(spec == specs[0] for spec in specs[1:]):
        first = specs[0].clone().unsqueeze(dim)
        sizes = (*specs[0].shape[:dim], len(specs), *specs[0].shape[dim:])
        return first.expand(*sizes)
    composites = [isinstance(spec, Composite) for spec in specs]
    if all(composites):
        return _stack_composites(specs, dim)
    if any(composites):
        raise SpecError("composites do not stack with leaf specs")
    return Stacked(*specs, dim=dim)


def _stack_composites(specs: list[Any], dim: int) -> TensorSpec:
    return StackedComposite(*specs, dim=dim)


class _Stack(TensorSpec):
    """What stacks of leaves and of composites have in common."""

    _members: list[Any]
    _dim: int

    def __init__(self, *specs: Any, dim: int = 0) -> None:
        if not specs:
            raise SpecError("a stack needs at least one spec")
        ndim = specs[0].ndim
        if any(spec.ndim != ndim for spec in specs):
            shapes = [tuple(spec.shape) for spec in specs]
            raise SpecError(f"specs to stack must have as many dimensions, got shapes {shapes}")
        if dim < 0:
            dim += ndim + 1
        if not 0 <= dim <= ndim:
            raise SpecError(f"there is no dimension {dim} to stack along, shapes have {ndim}")
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
    def shape(self) -> torch.Size:
        """Shape of the stack; -1 where the specs differ in a size."""
        shapes = [spec.shape for spec in self._members]
        merged = [
            sizes[0] if all(size == sizes[0] for size in sizes) else -1
            for sizes in zip(*shapes, strict=True)
        ]
        return torch.Size([*merged[: self._dim], len(shapes), *merged[self._dim :]])

    @property
    def device(self) -> torch.device | None:
        """Device of the specs; ``None`` where they differ."""
        devices = {spec.device for spec in self._members}
        return devices.pop() if len(devices) == 1 else None

    def _rebuilt(self, members: list[Any], dim: int) -> Any:
        return type(self)(*members, dim=dim)

    def __len__(self) -> int:
        return int(self.shape[0])

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
            raise SpecError(f"a stack of shape {tuple(self.shape)} cannot expand to {tuple(sizes)}")
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
        dim %= self.ndim
        if self.shape[dim] != 1:
            return self
        if dim == self._dim:
            return self._members[0]
        inner, stack_dim = (dim, self._dim - 1) if dim < self._dim else (dim - 1, self._dim)
        return self._rebuilt([spec.squeeze(inner) for spec in self._members], stack_dim)

    def __getitem__(self, index: Any) -> Any:
        parts = list(_without_ellipsis(index, self.ndim))
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
        if isinstance(chosen, int):
            member = self._members[chosen]
            return member[full] if full else member
        members = [spec[full] if full else spec for spec in self._chosen(chosen)]
        dropped = sum(isinstance(part, int) for part in before)
        added = sum(part is None for part in before)
        return stack(members, self._dim - dropped + added)

    def _chosen(self, chosen: Any) -> list[Any]:
        if isinstance(chosen, slice):
            return self._members[chosen]
        picked = torch.arange(len(self._members))[chosen]
        if picked.ndim != 1:
            raise SpecError("a stack takes one-dimensional indices along its stack dimension")
        return [self._members[i] for i in picked.tolist()]

    def unbind(self, dim: int = 0) -> Any:
        """The specs along a dimension."""
        if dim % self.ndim == self._dim:
            return tuple(self._members)
        where = dim % self.ndim
        return tuple(self[(slice(None),) * where + (i,)] for i in range(self.shape[where]))

    def make_neg_dim(self, dim: int) -> Any:
        """The stack with a dimension of unknown size."""
        dim %= self.ndim
        if dim == self._dim:
            raise SpecError("the stack dimension has a known size")
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
        """The values of each spec, from a value of the stack with any leading dimensions."""
        if isinstance(val, Tensor) and val.is_nested:
            return list(val.unbind(0))
        ndim = len(val.batch_size) if hasattr(val, "batch_size") else val.ndim
        extra = ndim - self.ndim
        return list(val.unbind(extra + self._dim)) if extra >= 0 else []

    def is_in(self, val: Any) -> bool:
        """Whether each part of a value is in its spec."""
        return self.why_not_in(val) is None

    def why_not_in(self, val: Any) -> str | None:
        """What keeps a value out, with the place in the stack; ``None`` for one that is in."""
        if not hasattr(val, "unbind"):
            return f"expected a tensor, got a {type(val).__name__}"
        parts = self._parts(val)
        if len(parts) != len(self._members):
            return f"expected {len(self._members)} parts in dimension {self._dim}"
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
        parts = list(val) if isinstance(val, (list, tuple)) else self._parts(torch.as_tensor(val))
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
        return (
            type(other) is type(self)
            and isinstance(other, _Stack)
            and self._dim == other._dim
            and self._members == other._members
        )

    __hash__ = None  # type: ignore[assignment]


class Stacked(_Stack):
    """A stack of leaf specs that differ, in their space or in a size.

    Values are dense tensors where the shapes are the same, else nested tensors.

    Args:
        *specs: the specs, of the same dtype and as many dimensions.
        dim: the dimension to stack along.

    Raises:
        SpecError: their dtypes or numbers of dimensions differ.

    Example:
        >>> spec = torch.stack([Categorical(2), Categorical(5)])
        >>> spec.is_in(torch.tensor([1, 4])), spec.is_in(torch.tensor([4, 1]))
        (True, False)
    """

    def __init__(self, *specs: TensorSpec, dim: int = 0) -> None:
        super().__init__(*specs, dim=dim)
        dtypes = [spec.dtype for spec in specs]
        if any(dtype != dtypes[0] for dtype in dtypes):
            raise SpecError(f"specs to stack must have the same dtype, got {dtypes}")

    @property
    def dtype(self) -> torch.dtype | None:
        """Dtype of the values."""
        return self._members[0].dtype  # type: ignore[no-any-return]

    @property
    def domain(self) -> str | None:  # type: ignore[override]
        """Domain of the first spec."""
        return self._members[0].domain  # type: ignore[no-any-return]

    def _joined(self, parts: list[Any]) -> Any:
        if any(not isinstance(part, Tensor) for part in parts):
            return lazy_stack(parts, self._dim)
        if all(part.shape == parts[0].shape for part in parts):
            extra = parts[0].ndim - (self.ndim - 1)
            return torch.stack(parts, extra + self._dim)
        if self._dim:
            raise SpecError("values of unlike shapes can only be stacked along dimension 0")
        return torch.nested.nested_tensor(parts)

    def __repr__(self) -> str:
        kinds = {type(spec).__name__ for spec in self._members}
        name = f"Stacked{kinds.pop()}" if len(kinds) == 1 else "Stacked"
        body = f"shape={self.shape}, device={self.device}, dtype={self.dtype}, domain={self.domain}"
        return f"{name}(\n{indent(body)})"


class StackedComposite(_Stack, Composite):
    """A stack of composites that differ, in their keys or in the specs of a key.

    Its keys are those that all have; values are lazily stacked TensorDicts.

    Args:
        *specs: the composites, of as many batch dimensions.
        dim: the dimension to stack along.

    Example:
        >>> spec = torch.stack([Composite(a=Unbounded(3)), Composite(a=Unbounded(4))])
        >>> spec["a"].shape
        torch.Size([2, -1])
    """

    def __init__(self, *specs: Composite, dim: int = 0) -> None:
        _Stack.__init__(self, *specs, dim=dim)

    @property
    def shape(self) -> torch.Size:
        """The batch size of the stack."""
        return _Stack.shape.fget(self)  # type: ignore[attr-defined, no-any-return]

    @shape.setter
    def shape(self, shape: Any) -> None:
        self._unsupported()

    @property
    def device(self) -> torch.device | None:
        """Device of the composites; ``None`` where they differ."""
        return _Stack.device.fget(self)  # type: ignore[attr-defined, no-any-return]

    @device.setter
    def device(self, device: Device | None) -> None:
        for spec in self._members:
            spec.device = device

    @property
    def _shape(self) -> torch.Size:  # type: ignore[override]
        return self.shape

    @property
    def _device(self) -> torch.device | None:  # type: ignore[override]
        return self.device

    @property
    def _specs(self) -> dict[str, Any]:  # type: ignore[override]
        """The stacked entries of the keys that all composites have."""
        first, *others = self._members
        return {
            key: stack([spec[key] for spec in self._members], self._dim)
            for key in first
            if all(key in spec for spec in others)
        }

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str) or (
            isinstance(index, tuple) and index and all(isinstance(part, str) for part in index)
        ):
            return self.get(index)
        return _Stack.__getitem__(self, index)

    def __len__(self) -> int:
        return len(self.keys())

    def set(self, name: Any, spec: Any) -> Any:
        """Put the parts of a spec, along the stack dimension, at a key of each composite."""
        self._check_unlocked()
        parts = spec.unbind(self._dim)
        for member, part in zip(self._members, parts, strict=True):
            member.set(name, part)
        return self

    def __delitem__(self, key: Any) -> None:
        self._check_unlocked()
        self.get(key)
        for member in self._members:
            del member[key]

    @property
    def is_locked(self) -> bool:
        """Whether entries cannot be changed."""
        return all(spec.is_locked for spec in self._members)

    @is_locked.setter
    def is_locked(self, locked: bool) -> None:
        if locked:
            self.lock_()
        else:
            self.unlock_()

    @property
    def _locked(self) -> bool:  # type: ignore[override]
        return self.is_locked

    def lock_(self, recurse: bool | None = None) -> Any:
        """Let no entry be changed, in any of the composites."""
        for spec in self._members:
            spec.lock_(recurse)
        return self

    def unlock_(self, recurse: bool | None = None) -> Any:
        """Let entries be changed again, in all of the composites."""
        for spec in self._members:
            spec.unlock_(recurse)
        return self

    def clone(self, recurse: bool = True) -> Any:
        """A copy that changes of this one do not reach, unlocked."""
        return self._rebuilt([spec.clone(recurse) for spec in self._members], self._dim)

    def empty(self) -> Any:
        """The stack without its entries."""
        return self._rebuilt([spec.empty() for spec in self._members], self._dim)

    def clear_device_(self) -> Any:
        """Forget the device, in all of the composites."""
        for spec in self._members:
            spec.clear_device_()
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def _joined(self, parts: list[Any]) -> Any:
        extra = len(parts[0].batch_size) - (self.ndim - 1)
        return LazyStackedTensorDict(*parts, stack_dim=extra + self._dim)

    def repr_exclusive_keys(self) -> str:
        """The keys that not all composites have, with their specs, by place in the stack."""
        common = set(self.keys())
        found = []
        for i, spec in enumerate(self._members):
            own = [f"{key}: {entry}" for key, entry in spec.items() if key not in common]
            if own:
                found.append(f"{i} ->\n" + indent(",\n".join(own)))
        return ",\n".join(found)

    def __repr__(self) -> str:
        fields = ",\n".join(f"{key}: {spec}" for key, spec in self.items())
        body = ",\n".join(
            [
                f"fields={{\n{indent(fields)}}}",
                f"exclusive_fields={{\n{indent(self.repr_exclusive_keys())}}}",
                f"device={self.device}",
                f"shape={self.shape}",
                f"stack_dim={self._dim}",
            ]
        )
        return f"StackedComposite(\n{indent(body)})"


__all__ = ["NonTensor", "Stacked", "StackedComposite", "stack"]
