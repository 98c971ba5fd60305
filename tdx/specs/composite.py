"""The ``Composite`` spec: describes a TensorDict by a nested mapping from keys to specs."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, KeysView, Sequence, ValuesView
from typing import Any, Self

import torch
from tensordict import TensorDict, TensorDictBase

from tdx.errors import SpecError
from tdx.keys import NestedKey, split_key
from tdx.specs import composite_values as values_of
from tdx.specs.arguments import (
    Device,
    as_device,
    as_size,
    expand_ellipsis,
    is_dtype,
    refine_names,
    size_from_args,
)
from tdx.specs.composite_entries import MISSING, CompositeEntries, Specs, is_key
from tdx.specs.spaces import indent
from tdx.specs.spec import TensorSpec


class Composite(TensorSpec):
    """Describes a TensorDict: its keys, and the spec of each.

    It delegates lookup, changes and locks to its
    :class:`~tdx.specs.composite_entries.CompositeEntries`, and operations on values to
    :mod:`tdx.specs.composite_values`.

    Args:
        *args: A mapping from keys to specs. Values may be dicts, which become nested composites,
            or ``None``; keys may be tuples, which address nested entries.
        shape: Batch size; every entry's shape begins with it.
        device: Device of every entry; ``None`` if they may differ.
        data_cls: Class of the TensorDicts to create; ``TensorDict`` if not given.
        step_mdp_static: True to mark entries that a step does not change.
        names: Names of the batch dimensions.
        **kwargs: Entries by keyword.

    Raises:
        SpecError: An entry's shape does not begin with ``shape``, or it is on another device.

    Example:
        >>> from tdx.specs import Unbounded
        >>> spec = Composite(observation=Unbounded(3), agents={"reward": Unbounded(1)})
        >>> spec["agents", "reward"].shape
        torch.Size([1])
        >>> spec.zero()["observation"]
        tensor([0., 0., 0.])
    """

    data_cls: Any = None
    step_mdp_static = False
    _names: list[str | None] | None = None
    _dtype = None
    _entries: CompositeEntries

    def __init__(
        self,
        *args: Any,
        shape: Any = None,
        device: Device | None = None,
        data_cls: type | None = None,
        step_mdp_static: bool = False,
        names: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> None:
        size = as_size(() if shape is None else shape)
        self._entries = CompositeEntries(
            size, None if device is None else as_device(device), Composite, {}
        )
        self.data_cls = data_cls
        self.step_mdp_static = step_mdp_static
        self._names = None if names is None else list(names)
        if len(args) > 1:
            raise SpecError(
                f"a Composite takes one mapping, got {len(args)} positional arguments",
                hint="write Composite({'key': spec}), or Composite(key=spec)",
            )
        for source in (*args, kwargs):
            for key, spec in source.items():
                self.set(key, spec)

    def _copy_with(
        self, specs: Specs, shape: torch.Size | None = None, device: torch.device | None = None
    ) -> Self:
        """Return an unlocked copy with other entries, and perhaps another shape or device."""
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        if shape is not None and shape != self._shape:
            copied._names = None
        copied._entries = CompositeEntries(
            self._shape if shape is None else shape,
            self._device if device is None else device,
            Composite,
            specs,
        )
        return copied

    def _map(
        self,
        function: Callable[[Any], Any],
        shape: torch.Size | None = None,
        device: torch.device | None = None,
    ) -> Self:
        """Return a copy with a function applied to each spec."""
        specs = {
            key: None if spec is None else function(spec)
            for key, spec in self._entries.specs.items()
        }
        return self._copy_with(specs, shape, device)

    @property
    def _shape(self) -> torch.Size:  # type: ignore[override]
        return self._entries.shape

    @property
    def _device(self) -> torch.device | None:  # type: ignore[override]
        return self._entries.device

    @property
    def shape(self) -> torch.Size:
        """Batch size, with which every entry's shape begins."""
        return self._shape

    @shape.setter
    def shape(self, shape: Any) -> None:
        self._entries.set_shape(as_size(shape))

    def _with_batch_size(self, shape: torch.Size) -> Composite:
        copied = self.clone(recurse=False)
        copied.shape = shape
        return copied

    @property
    def batch_size(self) -> torch.Size:
        """Batch size: alias of ``shape``."""
        return self.shape

    @batch_size.setter
    def batch_size(self, shape: Any) -> None:
        self.shape = shape

    @property
    def device(self) -> torch.device | None:
        """Device of every entry; ``None`` if they may differ."""
        return self._device

    @device.setter
    def device(self, device: Device | None) -> None:
        entries = self._entries
        entries.check_unlocked()
        if device is None:
            entries.clear_device()
            return
        moved = self.to(device)
        entries.specs, entries.device = moved._entries.specs, moved._device

    def clear_device_(self) -> Self:
        """Clear the device, also of nested composites."""
        self._entries.clear_device()
        return self

    @property
    def names(self) -> list[str | None]:
        """Names of the batch dimensions."""
        return [None] * len(self._shape) if self._names is None else list(self._names)

    @names.setter
    def names(self, names: Sequence[str | None] | None) -> None:
        self._names = None if names is None else list(names)

    def refine_names(self, *names: Any) -> Self:
        """Name the batch dimensions; an ellipsis keeps the current names."""
        self._names = refine_names(self.names, names)
        return self

    # Reading entries

    def get(self, item: NestedKey, default: Any = MISSING) -> Any:
        """Return the spec at a key, or ``default`` if the key is missing.

        Raises:
            KeyNotFoundError: The key is missing, and no default is given.
        """
        return self._entries.get(item, default)

    def __getitem__(self, index: Any) -> Any:
        if is_key(index):
            return self._entries.get(index)
        lead = self._view_shape(lambda tensor: tensor[index])
        full = expand_ellipsis(index, len(self._shape))
        return self._map(lambda spec: spec[full], lead)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, (str, tuple)) and self._entries.find(key) is not MISSING

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def __bool__(self) -> bool:
        return len(self) > 0

    def keys(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        *,
        is_leaf: Callable[[type], bool] | None = None,
        step_mdp_static_only: bool = False,
    ) -> KeysView[Any]:
        """Return the keys, in order.

        Args:
            include_nested: True to include the keys in nested composites, as tuples.
            leaves_only: True to leave out the keys of nested composites themselves.
            is_leaf: Decides by type whether an entry is a leaf; by default composites are not.
            step_mdp_static_only: True to include only entries of composites with
                ``step_mdp_static``.
        """
        return self._entries.select(
            include_nested, leaves_only, is_leaf, step_mdp_static_only
        ).keys()

    def values(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        *,
        is_leaf: Callable[[type], bool] | None = None,
        step_mdp_static_only: bool = False,
    ) -> ValuesView[Any]:
        """Return the specs; arguments and order as for ``keys``."""
        return self._entries.select(
            include_nested, leaves_only, is_leaf, step_mdp_static_only
        ).values()

    def items(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        *,
        is_leaf: Callable[[type], bool] | None = None,
        step_mdp_static_only: bool = False,
    ) -> ItemsView[Any, Any]:
        """Return pairs of key and spec; arguments and order as for ``keys``."""
        return self._entries.select(
            include_nested, leaves_only, is_leaf, step_mdp_static_only
        ).items()

    def is_empty(self, recurse: bool = False) -> bool:
        """Return True if there are no entries; with ``recurse``, no leaves."""
        return not (self.keys(True, True) if recurse else self._entries.specs)

    # Writing entries

    def set(self, name: NestedKey, spec: Any) -> Self:
        """Set the spec at a key, creating nested composites as needed.

        Args:
            name: Key of the entry.
            spec: A spec, a (nested) dict of specs, or ``None`` for an entry without a spec. A
                composite with fewer batch dimensions gets this composite's.

        Raises:
            SpecError: The composite is locked, the spec has other leading dimensions or another
                device, or the key addresses an entry of a leaf.
        """
        self._entries.set(split_key(name), spec, name)
        return self

    def __setitem__(self, key: NestedKey, spec: Any) -> None:
        self.set(key, spec)

    def __delitem__(self, key: NestedKey) -> None:
        self._entries.delete(key)

    def pop(self, key: NestedKey, default: Any = MISSING) -> Any:
        """Remove an entry and return its spec, or ``default`` if the key is missing.

        Raises:
            KeyNotFoundError: The key is missing, and no default is given.
            SpecError: The composite is locked.
        """
        return self._entries.pop(key, default)

    def update(self, dict_or_spec: Any = (), **kwargs: Any) -> Self:
        """Set several entries, merging nested composites.

        Args:
            dict_or_spec: A composite or a mapping from keys to specs.
            **kwargs: More entries.

        Raises:
            SpecError: The composite is locked, or an entry is invalid (see ``set``).
        """
        source = dict_or_spec.items() if hasattr(dict_or_spec, "items") else dict_or_spec
        self._entries.update({**dict(source), **kwargs})
        return self

    def setdefault(self, key: NestedKey, default: Any = None) -> Any:
        """Return the spec at a key, setting it to ``default`` first if the key is missing."""
        if key not in self:
            self.set(key, default)
        return self.get(key)

    # Locks

    @property
    def is_locked(self) -> bool:
        """True if entries cannot be changed."""
        return self._entries.is_locked

    @is_locked.setter
    def is_locked(self, locked: bool) -> None:
        if locked:
            self.lock_()
        else:
            self.unlock_()

    @property
    def locked(self) -> bool:
        """True if entries cannot be changed: alias of ``is_locked``."""
        return self.is_locked

    def lock_(self, recurse: bool | None = None) -> Self:
        """Forbid changes of entries, also in nested composites.

        Args:
            recurse: False to leave nested composites unlocked.
        """
        self._entries.lock(recurse is not False)
        return self

    def unlock_(self, recurse: bool | None = None) -> Self:
        """Allow changes of entries, also in nested composites.

        Args:
            recurse: False to leave nested composites locked.

        Raises:
            SpecError: A composite that contains this one is locked.
        """
        self._entries.unlock(recurse is not False)
        return self

    # Values

    def _create(self, method: str, shape: Any) -> Any:
        fields = values_of.create_values(self._entries.specs, method, shape)
        return self._to_tensordict(fields, shape, self._device)

    def _to_tensordict(self, fields: dict[Any, Any], shape: Any, device: Any) -> Any:
        full = self._full_shape(shape)
        names = None if self._names is None else [*[None] * (len(full) - self.ndim), *self._names]
        created = TensorDict(fields, batch_size=full, device=device, names=names)
        return created if self.data_cls is None else self.data_cls.from_tensordict(created)

    def rand(self, shape: Any = ()) -> Any:
        return self._create("rand", shape)

    def zero(self, shape: Any = ()) -> Any:
        return self._create("zero", shape)

    def one(self, shape: Any = ()) -> Any:
        return self._create("one", shape)

    def rand_update(self, val: TensorDictBase) -> TensorDictBase:
        """Set the entries of a TensorDict to random values, in place."""
        return val.update(self.rand(self._extra_dims(val)))

    def zeros_update(self, val: TensorDictBase) -> TensorDictBase:
        """Set the entries of a TensorDict to zeros, in place."""
        return val.update(self.zero(self._extra_dims(val)))

    def ones_update(self, val: TensorDictBase) -> TensorDictBase:
        """Set the entries of a TensorDict to ones, in place."""
        return val.update(self.one(self._extra_dims(val)))

    def _extra_dims(self, val: TensorDictBase) -> torch.Size:
        return val.batch_size[: len(val.batch_size) - len(self._shape)]

    def is_in(self, val: Any) -> bool:
        return values_of.contains_values(self._entries.specs, val)

    def why_not_in(self, val: Any) -> str | None:
        """Explain why a TensorDict is not in the spec, with the key; ``None`` if it is."""
        return values_of.explain_mismatch(dict(self.items(True, True)), val)

    def project(self, val: Any) -> Any:
        return values_of.project_values(self._entries.specs, val)

    def type_check(self, value: Any, selected_keys: Any = None) -> None:
        """Check the dtypes of a TensorDict's entries.

        Args:
            value: TensorDict to check.
            selected_keys: A key or several; all by default.

        Raises:
            SpecError: The dtype of an entry differs; the error names the key.
        """
        keys = list(self.keys(True, True)) if selected_keys is None else selected_keys
        named = [keys] if isinstance(keys, (str, tuple)) else keys
        values_of.check_dtypes({key: self.get(key) for key in named}, value)

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        fields = values_of.encode_values(self.get, val.items(), ignore_device)
        return self._to_tensordict(fields, (), None if ignore_device else self._device)

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        if safe:
            self.assert_is_in(val)
        return {key: self[key].to_numpy(value) for key, value in val.items()}

    def cardinality(self) -> float:
        return values_of.count_values(self._entries.specs)

    def enumerate(self, use_mask: bool = False) -> Any:
        fields, count = values_of.enumerate_values(self._entries.specs, use_mask)
        return TensorDict(fields, batch_size=(count, *self._shape), device=self._device)

    # Shape operations: they change the batch size; the entries' own dimensions stay.

    def expand(self, *shape: Any) -> Self:
        sizes = size_from_args(shape)
        lead = self._view_shape(lambda tensor: tensor.expand(sizes))
        ndim = len(self._shape)
        return self._map(lambda spec: spec.expand(*lead, *spec.shape[ndim:]), lead)

    def squeeze(self, dim: int | None = None) -> Self:
        if dim is None:
            squeezed = self.clone()
            for i in reversed(range(len(self._shape))):
                squeezed = squeezed.squeeze(i)
            return squeezed
        lead = self._view_shape(lambda tensor: tensor.squeeze(dim))
        if lead == self._shape:
            return self.clone()
        where = dim % len(self._shape)
        return self._map(lambda spec: spec.squeeze(where), lead)

    def unsqueeze(self, dim: int) -> Self:
        lead = self._view_shape(lambda tensor: tensor.unsqueeze(dim))
        where = dim % len(lead)
        return self._map(lambda spec: spec.unsqueeze(where), lead)

    def reshape(self, *shape: Any) -> Self:
        sizes = size_from_args(shape)
        lead = self._view_shape(lambda tensor: tensor.reshape(sizes))
        ndim = len(self._shape)
        return self._map(lambda spec: spec.reshape(*lead, *spec.shape[ndim:]), lead)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        return self.reshape(self._view_shape(lambda tensor: tensor.flatten(start_dim, end_dim)))

    def unflatten(self, dim: int, sizes: Any) -> Self:
        return self.reshape(self._view_shape(lambda tensor: tensor.unflatten(dim, tuple(sizes))))

    def make_neg_dim(self, dim: int) -> Self:
        where = dim % len(self._shape)
        sizes = [-1 if i == where else size for i, size in enumerate(self._shape)]
        return self._map(lambda spec: spec.make_neg_dim(where), torch.Size(sizes))

    # Copies

    def clone(self, recurse: bool = True) -> Self:
        """Return an unlocked copy.

        Args:
            recurse: False to share the entries, including nested composites.
        """
        if recurse:
            return self._map(lambda spec: spec.clone())
        return self._copy_with(dict(self._entries.specs))

    def empty(self) -> Self:
        """Return the composite without its entries."""
        return self._copy_with({})

    def separates(self, *keys: NestedKey, default: Any = None) -> Composite | None:
        """Move some entries to a new composite.

        Args:
            *keys: Keys of the entries; missing ones are ignored.
            default: Returned if all are missing.
        """
        found = {key: self.pop(key) for key in keys if key in self}
        return self.empty().update(found) if found else default

    def select(self, *keys: NestedKey) -> Self:
        """Return a copy with only some entries."""
        specs = {key: self.get(key) for key in keys}
        return self.empty().update(
            {key: None if spec is None else spec.clone() for key, spec in specs.items()}
        )

    def exclude(self, *keys: NestedKey) -> Self:
        """Return a copy without some entries; missing keys are ignored."""
        copied = self.clone()
        for key in keys:
            copied.pop(key, None)
        return copied

    def replace(self, **changes: Any) -> Composite:
        """Return a copy with ``shape``, ``device`` or ``names`` changed."""
        arguments: dict[str, Any] = {
            "shape": self._shape,
            "device": self._device,
            "data_cls": self.data_cls,
            "step_mdp_static": self.step_mdp_static,
        }
        return Composite(self._entries.specs, **{**arguments, **changes})

    def to(self, dest: torch.dtype | Device) -> Self:
        """Return the spec with every entry on a device or in a dtype; itself if on the device."""
        if is_dtype(dest):
            return self._map(lambda spec: spec.to(dest))
        device = as_device(dest)  # type: ignore[arg-type]
        if device == self._device:
            return self
        return self._map(lambda spec: spec.to(device), device=device)

    # Comparison and printing

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Composite) or type(other) is not type(self):
            return False
        return (
            self._shape == other._shape
            and self._device == other._device
            and self.data_cls is other.data_cls
            and self._entries.specs == other._entries.specs
        )

    __hash__ = None

    def __repr__(self) -> str:
        body = ",\n".join(f"{key}: {spec}" for key, spec in self._entries.specs.items())
        return (
            f"{type(self).__name__}(\n{indent(body)}, device={self._device}, shape={self._shape})"
        )
