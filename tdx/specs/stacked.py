"""Stacks of specs that differ, ``torch.stack`` of specs, and composites with the keys of all."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, lazy_stack
from torch import Tensor

from tdx.foundation.errors import SpecError
from tdx.foundation.keys import NestedKey
from tdx.specs.arguments import TORCH_FUNCTIONS
from tdx.specs.bounded import Unbounded
from tdx.specs.composite import Composite
from tdx.specs.composite_entries import CompositeEntries, CompositeLock, is_key
from tdx.specs.spaces import indent
from tdx.specs.spec import TensorSpec
from tdx.specs.stack_base import SpecStack, stack_shape


class Stacked(SpecStack):
    """A stack of leaf specs that differ in their space or in a size.

    Values are dense tensors if the shapes are equal, else nested tensors.

    Args:
        *specs: Specs of the same dtype and number of dimensions.
        dim: Stack dimension, which is new.

    Raises:
        SpecError: The dtypes or the numbers of dimensions differ.

    Example:
        >>> from tdx.specs import Categorical
        >>> spec = torch.stack([Categorical(2), Categorical(5)])
        >>> spec.is_in(torch.tensor([1, 4])), spec.is_in(torch.tensor([4, 1]))
        (True, False)
    """

    def __init__(self, *specs: TensorSpec, dim: int = 0) -> None:
        super().__init__(*specs, dim=dim)
        dtypes = [spec.dtype for spec in specs]
        if any(dtype != dtypes[0] for dtype in dtypes):
            names = ", ".join(str(dtype).removeprefix("torch.") for dtype in dict.fromkeys(dtypes))
            raise SpecError(
                f"specs to stack must have the same dtype, got {names}",
                hint="cast the values first: add a DTypeCastTransform to each env",
            )

    @property
    def _dtype(self) -> torch.dtype | None:  # type: ignore[override]
        """Dtype of the values."""
        return self._specs[0].dtype

    @property
    def domain(self) -> str | None:  # type: ignore[override]
        """Domain of the first spec."""
        return self._specs[0].domain

    def cardinality(self) -> float:
        return math.prod(spec.cardinality() for spec in self._specs)

    def enumerate(self, use_mask: bool = False) -> Any:
        values = [list(spec.enumerate(use_mask)) for spec in self._specs]
        return torch.stack([self._join(list(parts)) for parts in itertools.product(*values)])

    def _join(self, parts: list[Any]) -> Any:
        if any(not isinstance(part, Tensor) for part in parts):
            return lazy_stack(parts, self._dim)
        if all(part.shape == parts[0].shape for part in parts):
            extra = parts[0].ndim - (self.ndim - 1)
            return torch.stack(parts, extra + self._dim)
        if self._dim:
            raise SpecError(
                f"values of different shapes cannot be stacked along dimension {self._dim}",
                hint="stack along dimension 0, or pad the values",
            )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*nested tensors is in prototype stage")
            return torch.nested.as_nested_tensor(parts)

    def __repr__(self) -> str:
        classes = {type(spec).__name__ for spec in self._specs}
        name = f"Stacked{classes.pop()}" if len(classes) == 1 else "Stacked"
        body = f"shape={self.shape}, device={self.device}, dtype={self.dtype}, domain={self.domain}"
        return f"{name}(\n{indent(body)})"


class StackedEntries(CompositeEntries):
    """Entries of stacked composites: the common keys; changes apply to each composite.

    Args:
        members: The composites, in order.
        dim: Stack dimension.
    """

    def __init__(self, members: list[Composite], dim: int) -> None:
        self._specs, self._dim = members, dim
        self.names = None
        self.lock_state = CompositeLock()

    @property
    def specs(self) -> dict[str, Any]:  # type: ignore[override]
        """Stacked entries of the keys that all composites have."""
        first, *others = self._specs
        return {key: self._stack_entry(key) for key in first if all(key in spec for spec in others)}

    def _stack_entry(self, key: str) -> Any:
        try:
            return stack([spec[key] for spec in self._specs], self._dim)
        except SpecError as error:
            raise error.at(key=key) from None

    def set(self, parts: tuple[str, ...], spec: Any, key: NestedKey) -> None:
        """Unbind a spec along the stack dimension, and set the entry of each composite."""
        self.check_unlocked()
        if isinstance(spec, Mapping):
            spec = Composite(spec, shape=stack_shape(self._specs, self._dim))
        specs = [None] * len(self._specs) if spec is None else spec.unbind(self._dim)
        if len(specs) != len(self._specs):
            raise SpecError(
                f"expected {len(self._specs)} specs along dimension {self._dim}, got {len(specs)}",
                hint="give one spec for each part of the stack",
            )
        for member, entry in zip(self._specs, specs, strict=True):
            member._entries.set(parts, entry, key)

    def delete(self, key: NestedKey) -> None:
        """Remove an entry from each composite that has it.

        Raises:
            KeyNotFoundError: None has it.
        """
        self.check_unlocked()
        owners = [member for member in self._specs if key in member]
        if not owners:
            self.get(key)
        for member in owners:
            member._entries.delete(key)

    def set_shape(self, shape: torch.Size) -> None:
        """Raise an error, since the composites may differ in size.

        Raises:
            SpecError: Always.
        """
        raise SpecError(
            "the shape of stacked composites cannot be set",
            hint="set the shape of each composite before stacking",
        )

    def set_device(self, device: torch.device | None) -> None:
        """Move each composite to a device."""
        for member in self._specs:
            member._entries.set_device(device)

    def clear_device(self) -> None:
        """Clear the device of each composite."""
        for member in self._specs:
            member._entries.clear_device()

    @property
    def is_locked(self) -> bool:
        """True if every composite is locked."""
        return all(member.is_locked for member in self._specs)

    def lock(self, recurse: bool = True) -> None:
        """Forbid changes of the entries of each composite."""
        for member in self._specs:
            member._entries.lock(recurse)

    def list_locks(self) -> list[CompositeLock]:
        """Return the locks of the stack and of each composite."""
        locks = [lock for member in self._specs for lock in member._entries.list_locks()]
        return [self.lock_state, *locks]

    def release(self, recurse: bool) -> None:
        """Unlock each composite without checks."""
        for member in self._specs:
            member._entries.release(recurse)


class StackedComposite(SpecStack, Composite):
    """A stack of composites that differ in their keys or in the specs of a key.

    Its keys are the common keys; values are lazily stacked TensorDicts.

    Args:
        *specs: Composites of the same number of batch dimensions.
        dim: Stack dimension, which is new.

    Example:
        >>> from tdx.specs import Unbounded
        >>> spec = torch.stack([Composite(a=Unbounded(3)), Composite(a=Unbounded(4))])
        >>> spec["a"].shape
        torch.Size([2, -1])
    """

    def __init__(self, *specs: Composite, dim: int = 0) -> None:
        SpecStack.__init__(self, *specs, dim=dim)
        self._entries = StackedEntries(self._specs, dim=self._dim)

    def __getitem__(self, index: Any) -> Any:
        if is_key(index):
            return self.get(index)
        return SpecStack.__getitem__(self, index)

    def __len__(self) -> int:
        return self._shape[0]

    def clone(self, recurse: bool = True) -> Any:
        return self._rebuild([spec.clone(recurse) for spec in self._specs], self._dim)

    def empty(self) -> Any:
        return self._rebuild([spec.empty() for spec in self._specs], self._dim)

    def type_check(self, value: Any, selected_keys: Any = None) -> None:
        if isinstance(value, Tensor):
            super().type_check(value, selected_keys)
            return
        for spec, part in zip(self._specs, self._split(value), strict=True):
            spec.type_check(part, selected_keys)

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """Convert the entries that all composites have; a list of arrays where they differ."""
        if safe:
            self.assert_is_in(val)
        parts = self._split(val)
        dim = len(parts[0].batch_size) - (self.ndim - 1) + self._dim
        values = {key: [part.get(key) for part in parts] for key in self.keys()}
        return {
            key: self[key].to_numpy(
                entries if isinstance(self[key], SpecStack) else torch.stack(entries, dim)
            )
            for key, entries in values.items()
        }

    def _join(self, parts: list[Any]) -> Any:
        extra = len(parts[0].batch_size) - (self.ndim - 1)
        return LazyStackedTensorDict(*parts, stack_dim=extra + self._dim)

    def repr_exclusive_keys(self) -> str:
        """Describe the keys that not all composites have, by index in the stack."""
        common = set(self.keys())
        lines = []
        for i, spec in enumerate(self._specs):
            own = [f"{key}: {entry}" for key, entry in spec.items() if key not in common]
            if own:
                lines.append(f"{i} ->\n" + indent(",\n".join(own)))
        return ",\n".join(lines)

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


def stack(tensors: Sequence[TensorSpec], dim: int = 0, *, out: Any = None) -> TensorSpec:
    """Return the spec of stacked values.

    Args:
        tensors: Specs. Equal ones are stacked to a spec of the same class, others to a
            ``Stacked`` or a ``StackedComposite``.
        dim: Stack dimension, which is new.
        out: Not supported.

    Raises:
        SpecError: The list is empty, or the specs cannot be stacked.
    """
    specs: list[Any] = list(tensors)
    if out is not None:
        raise SpecError(
            "stacking specs into out is not supported", hint="leave out= out and use the result"
        )
    if not specs:
        raise SpecError("cannot stack an empty list of specs", hint="stack at least one spec")
    if dim < 0:
        dim += specs[0].ndim + 1
    if all(spec == specs[0] for spec in specs[1:]):
        first = specs[0].clone().unsqueeze(dim)
        sizes = (*specs[0].shape[:dim], len(specs), *specs[0].shape[dim:])
        return first.expand(*sizes)
    composites = [isinstance(spec, Composite) for spec in specs]
    if all(composites):
        return StackedComposite(*specs, dim=dim)
    if any(composites):
        raise SpecError(
            "composites cannot be stacked with leaf specs",
            hint="stack composites with composites, leaves with leaves",
        )
    return Stacked(*specs, dim=dim)


TORCH_FUNCTIONS[torch.stack] = stack


def consolidate_spec(
    spec: Any, recurse_through_entries: bool = True, recurse_through_stack: bool = True
) -> Any:
    """Return a copy in which all composites of a stack have the same keys.

    A missing entry becomes a spec of values without elements: its sizes are 0 where the others
    differ; if they do not differ, after the batch dimensions.

    Args:
        spec: Spec to consolidate, such as the observation spec of different agents.
        recurse_through_entries: True to consolidate nested composites too.
        recurse_through_stack: True to consolidate the composites of a stack first.

    Example:
        >>> agents = torch.stack([Composite(position=Unbounded(2)), Composite(speed=Unbounded(1))])
        >>> sorted(agents.keys()), sorted(consolidate_spec(agents).keys())
        ([], ['position', 'speed'])
        >>> consolidate_spec(agents)[0]["speed"].shape
        torch.Size([0])
    """
    if not isinstance(spec, Composite):
        return spec.clone()
    options = (recurse_through_entries, recurse_through_stack)
    consolidated: Any = spec.clone()
    if isinstance(spec, StackedComposite):
        members = consolidated.specs
        if recurse_through_stack:
            members = [consolidate_spec(member, *options) for member in members]
        _add_missing_entries(members)
        consolidated = StackedComposite(*members, dim=spec.dim)
    if recurse_through_entries:
        for key, entry in list(consolidated.items()):
            if isinstance(entry, Composite):
                consolidated[key] = consolidate_spec(entry, *options)
    return consolidated


def check_no_exclusive_keys(spec: Any, recurse: bool = True) -> bool:
    """Return True if all composites of a stack have the same keys.

    Args:
        spec: Spec to check; only stacks of composites can have keys that are not common.
        recurse: True to check nested composites too.
    """
    members = spec.specs if isinstance(spec, StackedComposite) else []
    if any(set(member.keys()) != set(spec.keys()) for member in members):
        return False
    if not recurse or not isinstance(spec, Composite):
        return True
    return all(check_no_exclusive_keys(inner) for inner in (*members, *spec.values()))


def _add_missing_entries(members: list[Any]) -> None:
    entries: dict[str, list[Any]] = {}
    for member in members:
        for key, entry in member.items():
            entries.setdefault(key, []).append(entry)
    for member in members:
        for key, found in entries.items():
            if key not in member:
                member[key] = _without_elements(found, member.ndim)


def _without_elements(specs: list[Any], batch_dims: int) -> Any:
    """Return the spec of an entry without elements that stacks with the given ones."""
    first = specs[0]
    if first is None:
        return None
    if isinstance(first, Composite):
        return first.empty()
    if isinstance(first, Stacked):
        part = _without_elements(first.specs, batch_dims)
        return Stacked(*[part.clone() for _ in first.specs], dim=first.dim)
    shapes = list(zip(*(spec.shape for spec in specs), strict=True))
    sizes = [0 if len(set(found)) > 1 else found[0] for found in shapes]
    if 0 not in sizes:
        sizes = [size if i < batch_dims else 0 for i, size in enumerate(sizes)]
    return Unbounded(torch.Size(sizes), first.device, first.dtype)
