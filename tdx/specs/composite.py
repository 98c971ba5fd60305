"""The ``Composite`` spec: describes a TensorDict by a nested mapping from keys to specs."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Sequence, ValuesView
from typing import Any, Self

import torch
from tensordict import TensorDictBase

from tdx.foundation.errors import SpecError
from tdx.foundation.keys import NestedKey, split_key
from tdx.specs import composite_shapes as shapes_of
from tdx.specs import composite_values as values_of
from tdx.specs.arguments import Device, Names, as_device, as_size, is_dtype
from tdx.specs.composite_entries import MISSING, CompositeEntries, SpecKeys, is_key
from tdx.specs.spaces import indent
from tdx.specs.spec import TensorSpec


class Composite(TensorSpec):
    """Describes a TensorDict: its keys, and the spec of each.

    It delegates lookup, changes and locks to its
    :class:`~tdx.specs.composite_entries.CompositeEntries`, operations on values to
    :mod:`tdx.specs.composite_values`, and operations on the batch size to
    :mod:`tdx.specs.composite_shapes`.

    Args:
        *args: A mapping from keys to specs. Values may be dicts, which become nested composites,
            or ``None``; keys may be tuples, which address nested entries.
        shape: Batch size; every entry's shape begins with it.
        device: Device of every entry; ``None`` if they may differ.
        data_cls: Class of the TensorDicts to create; ``TensorDict`` if not given.
        step_mdp_static: True to mark entries that a step does not change.
        names: Names of the batch dimensions, which nested composites share.
        batch_size: Alias of ``shape``.
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
        batch_size: Any = None,
        **kwargs: Any,
    ) -> None:
        if shape is not None and batch_size is not None:
            raise SpecError("shape and batch_size are the same", hint="pass one of them")
        lead = shape if batch_size is None else batch_size
        size = as_size(() if lead is None else lead)
        place = None if device is None else as_device(device)
        self._entries = CompositeEntries(size, place, Composite, {})
        self.data_cls = data_cls
        self.step_mdp_static = step_mdp_static
        self.names = names
        if len(args) > 1:
            raise SpecError(
                f"a Composite takes one mapping, got {len(args)} positional arguments",
                hint="write Composite({'key': spec}), or Composite(key=spec)",
            )
        for source in (*args, kwargs):
            for key, spec in source.items():
                self.set(key, spec)

    def _copy_with(self, entries: CompositeEntries) -> Self:
        """Return a copy with other entries."""
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        copied._entries = entries
        return copied

    def _map(
        self,
        function: Callable[[Any], Any],
        shape: torch.Size | None = None,
        device: torch.device | None = None,
        names: Names | None = None,
    ) -> Self:
        """Return a copy with a function applied to each spec; see ``CompositeEntries.copy``."""
        specs = self._entries.specs.items()
        mapped = {key: None if spec is None else function(spec) for key, spec in specs}
        return self._copy_with(self._entries.copy(mapped, shape, device, names))

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

    batch_size = shape

    @property
    def device(self) -> torch.device | None:
        """Device of every entry; ``None`` if they may differ."""
        return self._device

    @device.setter
    def device(self, device: Device | None) -> None:
        self._entries.set_device(None if device is None else as_device(device))

    def clear_device_(self) -> Self:
        """Clear the device, also of nested composites."""
        self._entries.clear_device()
        return self

    @property
    def names(self) -> list[str | None]:
        """Names of the batch dimensions."""
        names = self._entries.names
        return [None] * len(self._shape) if names is None else list(names)

    @names.setter
    def names(self, names: Sequence[str | None] | None) -> None:
        found = None if names is None else shapes_of.check_names(names, len(self._shape))
        self._entries.set_names(found)

    def refine_names(self, *names: Any) -> Self:
        """Name the batch dimensions that have no name; an ellipsis keeps the current names."""
        self.names = shapes_of.refine_names(self.names, names)
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
        return shapes_of.index(self, index)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, (str, tuple)) and self._entries.find(key) is not MISSING

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def __bool__(self) -> bool:
        return bool(self._entries.specs)

    def keys(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        *,
        is_leaf: Callable[[type], bool] | None = None,
        step_mdp_static_only: bool = False,
    ) -> SpecKeys:
        """Return the keys, in order.

        Args:
            include_nested: True to include the keys in nested composites, as tuples.
            leaves_only: True to leave out the keys of nested composites themselves.
            is_leaf: Decides by type whether an entry is a leaf; by default composites are not.
            step_mdp_static_only: True to include only entries of composites with
                ``step_mdp_static``.
        """
        entries = self._entries
        return SpecKeys(entries.select(include_nested, leaves_only, is_leaf, step_mdp_static_only))

    def values(
        self, include_nested: bool = False, leaves_only: bool = False, **options: Any
    ) -> ValuesView[Any]:
        """Return the specs; arguments and order as for ``keys``."""
        return self._entries.select(include_nested, leaves_only, **options).values()

    def items(
        self, include_nested: bool = False, leaves_only: bool = False, **options: Any
    ) -> ItemsView[Any, Any]:
        """Return pairs of key and spec; arguments and order as for ``keys``."""
        return self._entries.select(include_nested, leaves_only, **options).items()

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
        """Remove an entry and return its spec, or ``default`` if the key is missing."""
        return self._entries.pop(key, default)

    def update(self, dict_or_spec: Any = (), **kwargs: Any) -> Self:
        """Set several entries as ``set`` does, merging nested composites.

        Args:
            dict_or_spec: A composite or a mapping from keys to specs.
            **kwargs: More entries.
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

    locked = is_locked

    def lock_(self, recurse: bool | None = None) -> Self:
        """Forbid changes of entries, also in nested composites unless ``recurse`` is False."""
        self._entries.lock(recurse is not False)
        return self

    def unlock_(self, recurse: bool | None = None) -> Self:
        """Allow changes of entries, also in nested composites unless ``recurse`` is False.

        Raises:
            SpecError: Another composite that contains this one, or a nested one, is locked.
        """
        self._entries.unlock(recurse is not False)
        return self

    # Values

    def rand(self, shape: Any = ()) -> Any:
        return values_of.create_tensordict(self, "rand", shape)

    def zero(self, shape: Any = ()) -> Any:
        return values_of.create_tensordict(self, "zero", shape)

    def one(self, shape: Any = ()) -> Any:
        return values_of.create_tensordict(self, "one", shape)

    def rand_update(self, val: TensorDictBase) -> TensorDictBase:
        """Set the entries of a TensorDict to random values, in place."""
        return val.update(self.rand(val.batch_size[: val.ndim - self.ndim]))

    def zeros_update(self, val: TensorDictBase) -> TensorDictBase:
        """Set the entries of a TensorDict to zeros, in place."""
        return val.update(self.zero(val.batch_size[: val.ndim - self.ndim]))

    def ones_update(self, val: TensorDictBase) -> TensorDictBase:
        """Set the entries of a TensorDict to ones, in place."""
        return val.update(self.one(val.batch_size[: val.ndim - self.ndim]))

    def is_in(self, val: Any) -> bool:
        return values_of.contains_values(self._entries.specs, val)

    def why_not_in(self, val: Any) -> str | None:
        """Explain why a TensorDict is not in the spec, with the key; ``None`` if it is."""
        return values_of.explain_mismatch(dict(self.items(True, True)), val)

    def project(self, val: Any) -> Any:
        """Project the entries of a TensorDict in place, and return it."""
        return values_of.project_values(self._entries.specs, val)

    def type_check(self, value: Any, selected_keys: Any = None) -> None:
        """Check the dtypes of a TensorDict's entries.

        Args:
            value: TensorDict to check; the value of an entry if one key is selected.
            selected_keys: A key or several; all by default.

        Raises:
            SpecError: The dtype of an entry differs; the error names the key.
        """
        keys = list(self.keys(True, True)) if selected_keys is None else selected_keys
        named = [keys] if isinstance(keys, (str, tuple)) else keys
        values_of.check_dtypes({key: self.get(key) for key in named}, value)

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        fields = values_of.encode_values(self.get, val.items(), ignore_device)
        device = None if ignore_device else self._device
        return values_of.as_tensordict(self, fields, self._full_shape(()), device)

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        if safe:
            self.assert_is_in(val)
        return {key: self[key].to_numpy(value) for key, value in val.items()}

    def cardinality(self) -> float:
        return values_of.count_values(self._entries.specs)

    def enumerate(self, use_mask: bool = False) -> Any:
        return values_of.enumerate_values(self, use_mask)

    # Shape operations: they change the batch size; the entries' own dimensions stay.

    def expand(self, *shape: Any) -> Self:
        return shapes_of.expand(self, shape)

    def squeeze(self, dim: int | None = None) -> Self:
        return shapes_of.squeeze(self, dim)

    def unsqueeze(self, dim: int) -> Self:
        return shapes_of.unsqueeze(self, dim)

    def reshape(self, *shape: Any) -> Self:
        return shapes_of.reshape(self, shape)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        return self.reshape(self._view_shape(lambda tensor: tensor.flatten(start_dim, end_dim)))

    def unflatten(self, dim: int, sizes: Any) -> Self:
        return self.reshape(self._view_shape(lambda tensor: tensor.unflatten(dim, tuple(sizes))))

    def make_neg_dim(self, dim: int) -> Self:
        return shapes_of.make_neg_dim(self, dim)

    # Copies

    def clone(self, recurse: bool = True) -> Self:
        """Return an unlocked copy; with ``recurse=False``, one that shares the entries."""
        if recurse:
            return self._map(lambda spec: spec.clone())
        return self._copy_with(self._entries.copy(dict(self._entries.specs)))

    def empty(self) -> Self:
        """Return the composite without its entries."""
        return self._copy_with(self._entries.copy({}))

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
        copied = self.clone()
        return copied.empty().update({key: copied.get(key) for key in keys})

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
            "names": None if {"shape", "batch_size"} & set(changes) else self.names,
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
        place = f"device={self._device}, shape={self._shape}"
        return f"{type(self).__name__}(\n{indent(body)}, {place})"
