"""The ``Composite`` spec, which describes a TensorDict, and stacks of composites that differ."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from dataclasses import replace
from types import EllipsisType
from typing import Any, Self, TypeAlias, TypeGuard

import torch
from tensordict import (
    LazyStackedTensorDict,
    TensorDict,
    TensorDictBase,
    is_non_tensor,
    is_tensor_collection,
    is_tensorclass,
)
from torch import Tensor

from tdx.foundation.errors import AttributeKeyError, KeyNotFoundError, SpecError, did_you_mean
from tdx.foundation.keys import NestedKey, format_key, join_keys, normalize_key, split_key
from tdx.specs.arguments import (
    Arguments,
    Device,
    Names,
    Shape,
    Value,
    as_device,
    as_size,
    expand_ellipsis,
    index_names,
    is_dtype,
    parse_index,
    size_from_args,
)
from tdx.specs.bounded import Unbounded
from tdx.specs.non_tensor import NonTensor
from tdx.specs.spaces import indent
from tdx.specs.spec import SpecStack, Stacked, TensorSpec, stack

Entry = TensorSpec | None
"""Spec of an entry; ``None`` for an entry without a spec."""
EntryLike: TypeAlias = TensorSpec | Mapping[Any, Any] | None
"""What an entry is set to: a spec, ``None``, or a (nested) mapping of specs."""
MISSING: Any = object()


def is_key(index: object) -> TypeGuard[NestedKey]:
    """Return True if an index is a key rather than a position in the batch."""
    if isinstance(index, tuple):
        return bool(index) and all(is_key(part) for part in index)
    return isinstance(index, str)


def _check_entry(
    spec: object, key: NestedKey, shape: torch.Size, device: torch.device | None
) -> TensorSpec:
    """Return a spec as an entry of a composite, on its device if the spec has none.

    Raises:
        SpecError: ``spec`` is not a spec, its shape does not begin with ``shape``, or it is on
            another device. An ``AttributeKeyError`` if an attribute was meant.
    """
    if not isinstance(spec, TensorSpec):
        if key in ("shape", "device", "dtype", "space"):
            raise AttributeKeyError(
                f"the entry {key!r} cannot be set to {spec!r}",
                hint=f"set the attribute: composite.{key} = ...",
            )
        raise SpecError(
            f"expected a spec, got a {type(spec).__name__}",
            hint="give a spec such as Unbounded((3,)), or a mapping of specs",
        ).at(key=key)
    ndim = len(shape)
    if ndim and spec.shape[:ndim] != shape:
        raise SpecError(
            f"its shape {tuple(spec.shape)} must begin with the composite's {tuple(shape)}",
            hint="expand the spec: spec.expand(*composite.shape, *spec.shape)",
        ).at(key=key)
    if device is None or spec.device == device:
        return spec
    if spec.device is None:
        return spec.to(device)
    raise SpecError(
        f"it is on {spec.device}, the composite on {device}",
        hint=f"use spec.to({str(device)!r})",
    ).at(key=key)


def prefix_error_key(key: NestedKey, error: SpecError) -> SpecError:
    """Prefix the key of an error from a nested composite with the composite's own key."""
    inner = error.where.key
    error.where = replace(error.where, key=key if inner is None else join_keys(key, inner))
    return error


def _check_names(names: Sequence[str | None], ndim: int) -> Names:
    """Return the names as a list, one for each batch dimension."""
    if len(names) != ndim:
        raise SpecError(
            f"expected {ndim} names, got {len(names)}: {list(names)}",
            hint="give one name for each batch dimension, None for no name",
        )
    return list(names)


class SpecKeys(KeysView[Any]):
    """Keys of a composite. They contain a key in any form, such as ``("a",)`` for ``"a"``."""

    _mapping: Mapping[Any, Entry]

    def __contains__(self, key: object) -> bool:
        try:
            return normalize_key(key) in self._mapping
        except TypeError:
            return False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)})"


class CompositeLock:
    """Write lock of a composite, which the composites that contain it may hold too.

    A copy or a pickle keeps the state, but not the parents: those are set when the outer composite
    is restored.
    """

    def __init__(self) -> None:
        self.is_locked = False
        self._parents: tuple[weakref.ref[CompositeLock], ...] = ()

    @property
    def is_held(self) -> bool:
        """True if it, or the lock of an outer composite, forbids changes."""
        return self.is_locked or bool(self._parents)

    def add_parent(self, parent: CompositeLock) -> None:
        """Register the lock of an outer composite, which must be unlocked first."""
        others = [ref for ref in self._parents if ref() not in (None, parent)]
        self._parents = (*others, weakref.ref(parent))

    def remove_parent(self, parent: CompositeLock) -> None:
        """Forget the lock of an outer composite."""
        self._parents = tuple(ref for ref in self._parents if ref() is not parent)

    def check_parents(self, unlocked: Sequence[CompositeLock] = ()) -> None:
        """Raise an error if another composite that contains this one is locked.

        ``unlocked`` are the locks of composites that are unlocked at the same time.
        """
        parents = [parent for ref in self._parents if (parent := ref()) is not None]
        if any(parent.is_locked and parent not in unlocked for parent in parents):
            raise SpecError(
                "the Composite is nested in a locked one", hint="unlock the outermost one"
            )

    def __getstate__(self) -> dict[str, bool]:
        return {"is_locked": self.is_locked}

    def __setstate__(self, state: dict[str, bool]) -> None:
        self.is_locked = state["is_locked"]
        self._parents = ()


class Composite(TensorSpec):
    """Describes a TensorDict: its keys, and the spec of each.

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
        >>> spec = Composite(observation=Unbounded(3), agents={"reward": Unbounded(1)})
        >>> spec["agents", "reward"].shape
        torch.Size([1])
        >>> spec.zero()["observation"]
        tensor([0., 0., 0.])
    """

    data_cls: type[TensorDictBase] | None = None
    step_mdp_static = False
    _dtype = None
    _entries: dict[str, Entry]
    _names: Names | None = None
    _lock: CompositeLock

    def __init__(
        self,
        *args: Any,
        shape: Shape | None = None,
        device: Device | None = None,
        data_cls: type[TensorDictBase] | None = None,
        step_mdp_static: bool = False,
        names: Sequence[str | None] | None = None,
        batch_size: Shape | None = None,
        **kwargs: Any,
    ) -> None:
        if shape is not None and batch_size is not None:
            raise SpecError("shape and batch_size are the same", hint="pass one of them")
        lead = shape if batch_size is None else batch_size
        self._shape = as_size(() if lead is None else lead)
        self._device = None if device is None else as_device(device)
        self._entries, self._lock = {}, CompositeLock()
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

    def __setstate__(self, state: dict[str, bool]) -> None:
        self.__dict__.update(state)
        if self.is_locked:
            self._lock_entries()

    def _copy_with(
        self,
        entries: dict[str, Entry],
        shape: torch.Size | None = None,
        device: torch.device | None = None,
        names: Names | None = None,
    ) -> Self:
        """Return an unlocked copy with other entries.

        Another batch size drops the names, unless names are given.
        """
        keeps_names = names is None and shape in (None, self._shape)
        return self._with(
            _entries=entries,
            _lock=CompositeLock(),
            _names=self._names if keeps_names else names,
            _shape=self._shape if shape is None else shape,
            _device=self._device if device is None else device,
        )

    def _map(
        self,
        function: Callable[[TensorSpec], TensorSpec],
        shape: torch.Size | None = None,
        device: torch.device | None = None,
        names: Names | None = None,
    ) -> Self:
        """Return a copy with a function applied to each spec; see ``_copy_with``."""
        entries = self._entries.items()
        mapped = {key: None if spec is None else function(spec) for key, spec in entries}
        return self._copy_with(mapped, shape, device, names)

    @property
    def shape(self) -> torch.Size:
        """Batch size, with which every entry's shape begins."""
        return self._shape

    @shape.setter
    def shape(self, shape: Shape) -> None:
        self._check_unlocked()
        size = as_size(shape)
        changed: dict[str, Entry] = {}
        for key, spec in self._entries.items():
            if isinstance(spec, Composite) and spec.ndim < len(size):
                spec = spec._with_batch_size(size)
            if spec is not None and spec.shape[: len(size)] != size:
                raise SpecError(
                    f"its shape {tuple(spec.shape)} does not begin with {tuple(size)}",
                    hint="expand the entry first, or use a shape that all entries begin with",
                ).at(key=key)
            changed[key] = spec
        if size != self._shape:
            self._names = None
        self._entries, self._shape = changed, size

    batch_size = shape

    def _with_batch_size(self, shape: torch.Size) -> Composite:
        copied = self.clone(recurse=False)
        copied.shape = shape
        return copied

    @property
    def device(self) -> torch.device | None:
        """Device of every entry; ``None`` if they may differ."""
        return self._device

    @device.setter
    def device(self, device: Device | None) -> None:
        self._check_unlocked()
        if device is None:
            self.clear_device_()
            return
        target = as_device(device)
        self._entries = {
            key: None if spec is None else spec.to(target) for key, spec in self._entries.items()
        }
        self._device = target

    def clear_device_(self) -> Self:
        """Clear the device, also of nested composites."""
        self._device = None
        for spec in self._nested():
            spec.clear_device_()
        return self

    @property
    def names(self) -> list[str | None]:
        """Names of the batch dimensions."""
        return [None] * len(self._shape) if self._names is None else list(self._names)

    @names.setter
    def names(self, names: Sequence[str | None] | None) -> None:
        checked = None if names is None else _check_names(names, len(self._shape))
        self._names = checked if any(checked or ()) else None
        if checked:
            for spec in self._nested():
                spec.names = [*checked, *spec.names[len(checked) :]]

    def refine_names(self, *names: str | EllipsisType | None) -> Self:
        """Name the batch dimensions that have no name; an ellipsis keeps the current names."""
        current = self.names
        refined = [name for name in names if not isinstance(name, EllipsisType)]
        if Ellipsis in names:
            at = names.index(Ellipsis)
            refined[at:at] = current[at : len(current) - (len(refined) - at)]
        for old, new in zip(current, _check_names(refined, len(current)), strict=True):
            if old not in (None, new):
                raise SpecError(
                    f"a dimension named {old!r} cannot be refined to {new!r}",
                    hint="rename it: spec.names = [...]",
                )
        self.names = refined
        return self

    # Reading entries

    def get(self, item: NestedKey, default: Any = MISSING) -> Any:
        """Return the spec at a key, or ``default`` if the key is missing.

        Raises:
            KeyNotFoundError: The key is missing, and no default is given.
        """
        spec = self._find(item)
        if spec is not MISSING:
            return spec
        if default is not MISSING:
            return default
        known = [format_key(name) for name in self.keys(include_nested=True)]
        fallback = f"it has {', '.join(known)}" if known else "it is empty"
        raise KeyNotFoundError(
            f"the Composite has no key {format_key(item)!r}",
            hint=did_you_mean(format_key(item), known, fallback),
        )

    def _find(self, key: NestedKey) -> Any:
        """Return the spec at a key; ``MISSING`` if there is none."""
        spec: Any = self
        for part in (key,) if isinstance(key, str) else split_key(key):
            if not isinstance(spec, Composite):
                return MISSING
            spec = spec._entries.get(part, MISSING)
        return spec

    def __getitem__(self, index: object) -> Any:
        if is_key(index):
            return self.get(index)
        parts = parse_index(index, self._shape, type(self).__name__)
        lead = self._view_shape(lambda tensor: tensor[parts])
        full = expand_ellipsis(parts, self.ndim)
        return self._map(lambda entry: entry[full], lead, names=index_names(self.names, parts))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, (str, tuple)) and self._find(key) is not MISSING

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def __bool__(self) -> bool:
        return bool(self._entries)

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
        return SpecKeys(self._select(include_nested, leaves_only, is_leaf, step_mdp_static_only))

    def values(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        *,
        is_leaf: Callable[[type], bool] | None = None,
        step_mdp_static_only: bool = False,
    ) -> ValuesView[Any]:
        """Return the specs; arguments and order as for ``keys``."""
        return self._select(include_nested, leaves_only, is_leaf, step_mdp_static_only).values()

    def items(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        *,
        is_leaf: Callable[[type], bool] | None = None,
        step_mdp_static_only: bool = False,
    ) -> ItemsView[Any, Any]:
        """Return pairs of key and spec; arguments and order as for ``keys``."""
        return self._select(include_nested, leaves_only, is_leaf, step_mdp_static_only).items()

    def _select(
        self,
        nested: bool,
        leaves_only: bool,
        is_leaf: Callable[[type], bool] | None = None,
        step_mdp_static_only: bool = False,
    ) -> Mapping[Any, Entry]:
        """Return entries by key, those of nested composites before the composite itself."""
        if not (nested or leaves_only or step_mdp_static_only):
            return self._entries
        selected: dict[Any, Entry] = {}
        for name, spec in self._entries.items():
            is_composite = isinstance(spec, Composite)
            leaf = not is_composite if is_leaf is None else is_leaf(type(spec))
            if nested and not leaf and isinstance(spec, Composite):
                below = spec._select(nested, leaves_only, is_leaf)
                selected.update({join_keys(name, key): entry for key, entry in below.items()})
            if leaf or not leaves_only:
                selected[name] = spec
        if step_mdp_static_only:
            # An entry is static if a composite on the path to it is.
            paths = {key: split_key(key) for key in selected}
            selected = {
                key: spec
                for key, spec in selected.items()
                if any(
                    getattr(self._find(paths[key][: i + 1]), "step_mdp_static", False)
                    for i in range(len(paths[key]))
                )
            }
        return selected

    def _nested(self) -> list[Composite]:
        """Return the nested composites of this level."""
        return [spec for spec in self._entries.values() if isinstance(spec, Composite)]

    def is_empty(self, recurse: bool = False) -> bool:
        """Return True if there are no entries; with ``recurse``, no leaves."""
        return not (self.keys(True, True) if recurse else self._entries)

    # Writing entries

    def set(self, name: NestedKey, spec: EntryLike) -> Self:
        """Set the spec at a key, creating nested composites as needed.

        Args:
            name: Key of the entry.
            spec: A spec, a (nested) dict of specs, or ``None`` for an entry without a spec. A
                composite with fewer batch dimensions gets this composite's.

        Raises:
            SpecError: The composite is locked, the spec has other leading dimensions or another
                device, or the key addresses an entry of a leaf.
        """
        self._set_at(split_key(name), spec, name)
        return self

    def _set_at(self, parts: tuple[str, ...], spec: EntryLike, key: NestedKey) -> None:
        """Set the spec at the remaining parts of a key; errors name the whole key."""
        first, *rest = parts
        if not rest:
            self._check_unlocked()
            self._entries[first] = self._as_entry(spec, key)
            return
        inner = self._entries.get(first)
        if inner is not None and not isinstance(inner, Composite):
            raise SpecError(
                f"{first!r} is a leaf, so it cannot contain other entries",
                hint="remove the leaf first, or use another key",
            ).at(key=key)
        nested = self._create_nested({}) if inner is None else inner
        nested._set_at(tuple(rest), spec, key)
        if inner is None:
            self._set_at((first,), nested, key)

    def _create_nested(self, specs: Mapping[NestedKey, EntryLike]) -> Composite:
        return Composite(specs, shape=self._shape, device=self._device, names=self._names)

    def _as_entry(self, spec: EntryLike, key: NestedKey) -> Entry:
        """Return a spec, a mapping of specs or ``None`` as an entry of this composite."""
        try:
            if isinstance(spec, Mapping):
                spec = self._create_nested(spec)
            elif isinstance(spec, Composite):
                # A nested composite has at least the batch dimensions of this one, and their names.
                if spec.ndim < len(self._shape):
                    spec = spec._with_batch_size(self._shape)
                if self._names is not None and spec.names[: len(self._names)] != self._names:
                    names = [*self._names, *spec.names[len(self._names) :]]
                    spec = spec.clone(recurse=False)
                    spec.names = names
        except SpecError as error:
            raise prefix_error_key(key, error) from None
        return None if spec is None else _check_entry(spec, key, self._shape, self._device)

    def __setitem__(self, key: NestedKey, spec: EntryLike) -> None:
        self.set(key, spec)

    def __delitem__(self, key: NestedKey) -> None:
        self._check_unlocked()
        self.get(key)
        *above, last = split_key(key)
        if above:
            del self.get(tuple(above))[last]
        else:
            del self._entries[last]

    def pop(self, key: NestedKey, default: Any = MISSING) -> Any:
        """Remove an entry and return its spec, or ``default`` if the key is missing."""
        self._check_unlocked()
        spec = self.get(key, default)
        if key in self:
            del self[key]
        return spec

    def update(self, dict_or_spec: Any = (), **kwargs: Any) -> Self:
        """Set several entries as ``set`` does, merging nested composites.

        Args:
            dict_or_spec: A composite or a mapping from keys to specs.
            **kwargs: More entries.
        """
        self._check_unlocked()
        source = dict_or_spec.items() if hasattr(dict_or_spec, "items") else dict_or_spec
        for key, spec in {**dict(source), **kwargs}.items():
            current = self.get(key, None)
            if isinstance(current, Composite) and isinstance(spec, Mapping | Composite):
                current.update(spec)
            else:
                self.set(key, spec)
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
        return self._lock.is_locked

    @is_locked.setter
    def is_locked(self, locked: bool) -> None:
        if locked:
            self.lock_()
        else:
            self.unlock_()

    locked = is_locked

    def lock_(self, recurse: bool | None = None) -> Self:
        """Forbid changes of entries, also in nested composites unless ``recurse`` is False."""
        self._lock_entries(recurse is not False)
        return self

    def unlock_(self, recurse: bool | None = None) -> Self:
        """Allow changes of entries, also in nested composites unless ``recurse`` is False.

        Raises:
            SpecError: Another composite that contains this one, or a nested one, is locked.
        """
        locks = [self._lock] if recurse is False else self._list_locks()
        held = [lock for lock in locks if lock.is_held]
        for lock in held:
            lock.check_parents(locks)
        if held:
            self._release(recurse is not False)
        return self

    def _check_unlocked(self) -> None:
        if self.is_locked:
            raise SpecError(
                "the Composite is locked", hint="change a clone(), or call unlock_() first"
            )

    def _lock_entries(self, recurse: bool = True) -> None:
        self._lock.is_locked = True
        if recurse:
            for spec in self._nested():
                spec._lock.add_parent(self._lock)
                spec._lock_entries()

    def _list_locks(self) -> list[CompositeLock]:
        """Return the locks of this composite and of all nested ones."""
        return [self._lock, *(lock for spec in self._nested() for lock in spec._list_locks())]

    def _release(self, recurse: bool) -> None:
        """Unlock without checks; with ``recurse``, also nested composites."""
        self._lock.is_locked = False
        for spec in self._nested():
            spec._lock.remove_parent(self._lock)
            if recurse:
                spec._release(recurse)

    # Values. An entry without a spec is neither checked nor created.

    def rand(self, shape: Shape | None = ()) -> TensorDict:
        return self._create("rand", shape)

    def zero(self, shape: Shape | None = ()) -> TensorDict:
        return self._create("zero", shape)

    def one(self, shape: Shape | None = ()) -> TensorDict:
        return self._create("one", shape)

    def _create(self, method: str, shape: Shape | None) -> TensorDict:
        """Create a TensorDict by ``rand``, ``zero`` or ``one`` of each entry, in order."""
        entries = self._entries.items()
        fields = {key: getattr(spec, method)(shape) for key, spec in entries if spec is not None}
        return self._as_tensordict(fields, self._full_shape(shape), self.device)

    def _as_tensordict(
        self, fields: Mapping[str, Value], batch_size: torch.Size, device: torch.device | None
    ) -> TensorDict:
        """Create a TensorDict of the class and with the names of this composite."""
        names = self._names
        if names is not None:
            names = [*[None] * (len(batch_size) - len(names)), *names]
        created = TensorDict(fields, batch_size=batch_size, device=device, names=names)
        return created if self.data_cls is None else self.data_cls.from_tensordict(created)

    def rand_update(self, val: TensorDictBase) -> TensorDictBase:
        """Set the entries of a TensorDict to random values, in place."""
        return val.update(self.rand(val.batch_size[: val.ndim - self.ndim]))

    def zeros_update(self, val: TensorDictBase) -> TensorDictBase:
        """Set the entries of a TensorDict to zeros, in place."""
        return val.update(self.zero(val.batch_size[: val.ndim - self.ndim]))

    def ones_update(self, val: TensorDictBase) -> TensorDictBase:
        """Set the entries of a TensorDict to ones, in place."""
        return val.update(self.one(val.batch_size[: val.ndim - self.ndim]))

    def is_in(self, val: object) -> bool:
        for key, spec in self._entries.items():
            if spec is None:
                continue
            value = _get_value(val, key)
            if value is None:
                if not isinstance(spec, Composite) or spec.keys(True, True):
                    return False
            elif not spec.is_in(value):
                return False
        return True

    def why_not_in(self, val: object) -> str | None:
        """Explain why a TensorDict is not in the spec, with the key; ``None`` if it is."""
        for key, spec in self.items(True, True):
            if spec is None:
                continue
            value = _get_value(val, key)
            if value is None:
                return f"key {format_key(key)!r} is missing"
            reason = spec.why_not_in(value)
            if reason is not None:
                return f"key {format_key(key)!r}: {reason}"
        return None

    def project(self, val: Value) -> Value:
        """Project the entries of a TensorDict in place, and return it.

        Raises:
            SpecError: A key is missing, or the shape of a value does not end with its spec's.
        """
        for key, spec in self._entries.items():
            if spec is None:
                continue
            value = _get_value(val, key)
            if value is None:
                raise SpecError("the entry is missing", hint="add the entry to the value").at(
                    key=key
                )
            try:
                projected = spec.project(value)
            except SpecError as error:
                raise prefix_error_key(key, error) from None
            if projected is not value:
                val[key] = projected
        return val

    def type_check(
        self, value: Value, selected_keys: NestedKey | Sequence[NestedKey] | None = None
    ) -> None:
        """Check the dtypes of a TensorDict's entries.

        Args:
            value: TensorDict to check; the value of an entry if one key is selected.
            selected_keys: A key or several; all by default.

        Raises:
            SpecError: The dtype of an entry differs; the error names the key.
        """
        keys = list(self.keys(True, True)) if selected_keys is None else selected_keys
        for key in [keys] if isinstance(keys, (str, tuple)) else keys:
            spec = self.get(key)
            if spec is not None:
                spec.type_check(value if isinstance(value, Tensor) else _get_value(value, key), key)

    def encode(
        self, val: Mapping[str, object] | TensorDictBase, *, ignore_device: bool = False
    ) -> TensorDict:
        """Encode values by the specs of their keys.

        Raises:
            KeyNotFoundError: A key has no spec.
            SpecError: A value cannot be encoded; the error names the key.
        """
        encoded: dict[str, Value] = {}
        for key, value in val.items():
            try:
                encoded[key] = self.get(key).encode(value, ignore_device=ignore_device)
            except SpecError as error:
                raise prefix_error_key(key, error) from None
        device = None if ignore_device else self._device
        return self._as_tensordict(encoded, self._full_shape(()), device)

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        if safe:
            self.assert_is_in(val)
        return {key: self[key].to_numpy(value) for key, value in val.items()}

    def cardinality(self) -> float:
        """Return the number of combinations of the entries' values."""
        specs = self._entries.values()
        return math.prod(spec.cardinality() for spec in specs if spec is not None)

    def enumerate(self, use_mask: bool = False) -> TensorDict:
        """Enumerate every combination of the values of the entries.

        Returns:
            A TensorDict with the combinations along a new first dimension; without entries, of
            size 1.
        """
        values = {
            key: spec.enumerate(use_mask) for key, spec in self._entries.items() if spec is not None
        }
        if not values:
            return TensorDict(batch_size=(1, *self.shape), device=self.device)
        grid = torch.cartesian_prod(*(torch.arange(len(value)) for value in values.values()))
        grid = grid.reshape(-1, len(values))
        combined = {
            key: value[grid[:, i].to(value.device)] if value.device else value[grid[:, i]]
            for i, (key, value) in enumerate(values.items())
        }
        return TensorDict(combined, batch_size=(len(grid), *self.shape), device=self.device)

    # Shape operations: they change the batch size; the entries' own dimensions stay.

    def expand(self, *shape: Shape) -> Self:
        sizes = size_from_args(shape)
        lead = self._view_shape(lambda tensor: tensor.expand(sizes))
        ndim = self.ndim
        names = [*[None] * (len(lead) - ndim), *self.names]
        return self._map(lambda entry: entry.expand(*lead, *entry.shape[ndim:]), lead, names=names)

    def squeeze(self, dim: int | None = None) -> Self:
        if dim is None:
            squeezed = self.clone()
            for i in reversed(range(self.ndim)):
                squeezed = squeezed.squeeze(i)
            return squeezed
        lead = self._view_shape(lambda tensor: tensor.squeeze(dim))
        if lead == self.shape:
            return self.clone()
        where = dim % self.ndim
        names = [name for i, name in enumerate(self.names) if i != where]
        return self._map(lambda entry: entry.squeeze(where), lead, names=names)

    def unsqueeze(self, dim: int) -> Self:
        lead = self._view_shape(lambda tensor: tensor.unsqueeze(dim))
        where = dim % len(lead)
        names = [*self.names[:where], None, *self.names[where:]]
        return self._map(lambda entry: entry.unsqueeze(where), lead, names=names)

    def reshape(self, *shape: Shape) -> Self:
        """Return the composite with its batch size reshaped; the names are dropped."""
        sizes = size_from_args(shape)
        lead = self._view_shape(lambda tensor: tensor.reshape(sizes))
        ndim = self.ndim
        return self._map(lambda entry: entry.reshape(*lead, *entry.shape[ndim:]), lead)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        return self.reshape(self._view_shape(lambda tensor: tensor.flatten(start_dim, end_dim)))

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Self:
        return self.reshape(self._view_shape(lambda tensor: tensor.unflatten(dim, tuple(sizes))))

    def make_neg_dim(self, dim: int) -> Self:
        where = dim % self.ndim
        sizes = [-1 if i == where else size for i, size in enumerate(self.shape)]
        return self._map(
            lambda entry: entry.make_neg_dim(where), torch.Size(sizes), names=self.names
        )

    # Copies

    def clone(self, recurse: bool = True) -> Self:
        """Return an unlocked copy; with ``recurse=False``, one that shares the entries."""
        if recurse:
            return self._map(lambda spec: spec.clone())
        return self._copy_with(dict(self._entries))

    def empty(self) -> Self:
        """Return the composite without its entries."""
        return self._copy_with({})

    def separates(self, *keys: NestedKey, default: Any = None) -> Any:
        """Move some entries to a new composite.

        Args:
            *keys: Keys of the entries; missing ones are ignored.
            default: Returned if all are missing.
        """
        moved = {key: self.pop(key) for key in keys if key in self}
        return self.empty().update(moved) if moved else default

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
        arguments: Arguments = {
            "shape": self._shape,
            "device": self._device,
            "data_cls": self.data_cls,
            "step_mdp_static": self.step_mdp_static,
            "names": None if {"shape", "batch_size"} & set(changes) else self.names,
        }
        return Composite(self._entries, **{**arguments, **changes})

    def to(self, dest: torch.dtype | Device) -> Self:
        """Return the spec with every entry on a device or in a dtype; itself if on the device."""
        if is_dtype(dest):
            return self._map(lambda spec: spec.to(dest))
        device = as_device(dest)  # type: ignore[arg-type]
        if device == self._device:
            return self
        return self._map(lambda spec: spec.to(device), device=device)

    # Comparison, stacking and printing

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Composite) or type(other) is not type(self):
            return False
        return (
            self._shape == other._shape
            and self._device == other._device
            and self.data_cls is other.data_cls
            and self._entries == other._entries
        )

    __hash__ = None

    @staticmethod
    def _stack_class() -> type[SpecStack]:
        return StackedComposite

    def __repr__(self) -> str:
        body = ",\n".join(f"{key}: {spec}" for key, spec in self._entries.items())
        place = f"device={self._device}, shape={self._shape}"
        return f"{type(self).__name__}(\n{indent(body)}, {place})"


def _get_value(val: object, key: NestedKey) -> Value | None:
    """Return the value at a key of a (nested) dict or TensorDict; ``None`` if it is missing."""
    for part in split_key(key):
        if not hasattr(val, "get"):
            return None
        val = val.get(part, None)
    return val


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

    _specs: Sequence[Composite]

    @property
    def specs(self) -> list[Composite]:
        """Composites, in order."""
        return list(self._specs)

    def __init__(self, *specs: Composite, dim: int = 0) -> None:
        SpecStack.__init__(self, *specs, dim=dim)
        self._lock = CompositeLock()

    @property
    def _entries(self) -> dict[str, Entry]:  # type: ignore[override]
        """Stacked entries of the keys that all composites have; changes go to each composite."""
        first, *others = self._specs
        entries: dict[str, Entry] = {}
        for key in first:
            if all(key in spec for spec in others):
                try:
                    entries[key] = stack([spec[key] for spec in self._specs], self._dim)
                except SpecError as error:
                    raise error.at(key=key) from None
        return entries

    def _set_at(self, parts: tuple[str, ...], spec: EntryLike, key: NestedKey) -> None:
        """Unbind a spec along the stack dimension, and set the entry of each composite."""
        self._check_unlocked()
        if isinstance(spec, Mapping):
            spec = Composite(spec, shape=self._shape)
        specs = [None] * len(self._specs) if spec is None else spec.unbind(self._dim)
        if len(specs) != len(self._specs):
            raise SpecError(
                f"expected {len(self._specs)} specs along dimension {self._dim}, got {len(specs)}",
                hint="give one spec for each part of the stack",
            )
        for member, entry in zip(self._specs, specs, strict=True):
            member._set_at(parts, entry, key)

    def __delitem__(self, key: NestedKey) -> None:
        self._check_unlocked()
        owners = [member for member in self._specs if key in member]
        if not owners:
            self.get(key)
        for member in owners:
            del member[key]

    @property
    def shape(self) -> torch.Size:
        """Shape of the stack; -1 for sizes in which the composites differ."""
        return self._shape

    @shape.setter
    def shape(self, shape: Shape) -> None:
        raise SpecError(
            "the shape of stacked composites cannot be set",
            hint="set the shape of each composite before stacking",
        )

    batch_size = shape

    @property
    def device(self) -> torch.device | None:
        """Device of the composites; ``None`` where they differ."""
        return self._device

    @device.setter
    def device(self, device: Device | None) -> None:
        for member in self._specs:
            member.device = device

    def clear_device_(self) -> Self:
        for member in self._specs:
            member.clear_device_()
        return self

    @property
    def is_locked(self) -> bool:
        """True if every composite is locked."""
        return all(member.is_locked for member in self._specs)

    @is_locked.setter
    def is_locked(self, locked: bool) -> None:
        if locked:
            self.lock_()
        else:
            self.unlock_()

    locked = is_locked

    def _lock_entries(self, recurse: bool = True) -> None:
        for member in self._specs:
            member._lock_entries(recurse)

    def _list_locks(self) -> list[CompositeLock]:
        return [self._lock, *(lock for member in self._specs for lock in member._list_locks())]

    def _release(self, recurse: bool) -> None:
        for member in self._specs:
            member._release(recurse)

    def __getitem__(self, index: object) -> Any:
        if is_key(index):
            return self.get(index)
        return SpecStack.__getitem__(self, index)

    def __len__(self) -> int:
        return self._shape[0]

    def clone(self, recurse: bool = True) -> Self:
        return self._rebuild([spec.clone(recurse) for spec in self._specs], self._dim)

    def empty(self) -> Self:
        return self._rebuild([spec.empty() for spec in self._specs], self._dim)

    def type_check(
        self, value: Value, selected_keys: NestedKey | Sequence[NestedKey] | None = None
    ) -> None:
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

    def _join(self, parts: list[Value]) -> TensorDictBase:
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
        entries: dict[str, list[Entry]] = {}
        for member in members:
            for key, entry in member.items():
                entries.setdefault(key, []).append(entry)
        for member in members:
            for key, specs in entries.items():
                if key not in member:
                    known = [entry for entry in specs if entry is not None]
                    member[key] = _without_elements(known, member.ndim) if known else None
        consolidated = StackedComposite(*members, dim=spec.dim)
    if recurse_through_entries:
        for key, entry in list(consolidated.items()):
            if isinstance(entry, Composite):
                consolidated[key] = consolidate_spec(entry, *options)
    return consolidated


def spec_leaves(spec: Composite) -> dict[NestedKey, TensorSpec]:
    """Return the leaves of a composite by key."""
    return {normalize_key(key): leaf for key, leaf in spec.items(True, True)}


def all_leaves(spec: Composite) -> dict[NestedKey, TensorSpec]:
    """Return the leaves of all parts of an input or output spec by key."""
    parts = (part for part in spec.values() if part is not None)
    return {key: leaf for part in parts for key, leaf in spec_leaves(part).items()}


def check_no_exclusive_keys(spec: TensorSpec | None, recurse: bool = True) -> bool:
    """Return True if all composites of a stack have the same keys.

    Args:
        spec: Spec to check; only stacks of composites can have keys that are not common.
        recurse: True to check nested composites too.
    """
    if not isinstance(spec, Composite):
        return True
    members = spec.specs if isinstance(spec, StackedComposite) else []
    if any(set(member.keys()) != set(spec.keys()) for member in members):
        return False
    if not recurse:
        return True
    return all(check_no_exclusive_keys(inner) for inner in (*members, *spec.values()))


def _without_elements(specs: Sequence[TensorSpec], batch_dims: int) -> TensorSpec:
    """Return the spec of an entry without elements that stacks with the given ones."""
    first = specs[0]
    if isinstance(first, Composite):
        return first.empty()
    if isinstance(first, Stacked):
        part = _without_elements(first.specs, batch_dims)
        return Stacked(*[part.clone() for _ in first.specs], dim=first.dim)
    shapes = list(zip(*(spec.shape for spec in specs), strict=True))
    sizes = [0 if len(set(lengths)) > 1 else lengths[0] for lengths in shapes]
    if 0 not in sizes:
        sizes = [size if i < batch_dims else 0 for i, size in enumerate(sizes)]
    return Unbounded(torch.Size(sizes), first.device, first.dtype)


def make_composite_from_td(
    data: TensorDictBase, *, unsqueeze_null_shapes: bool = True, dynamic_shape: bool = False
) -> Composite:
    """Return the spec of a TensorDict, with all numbers unbounded.

    Args:
        data: TensorDict or tensorclass, ``[*B]``.
        unsqueeze_null_shapes: If True, tensors without dims are declared with shape ``[1]``.
        dynamic_shape: If True, declare the size of the last dim after the batch dims as -1.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> spec = make_composite_from_td(TensorDict(observation=torch.zeros(3), step=1))
        >>> spec["observation"].shape, spec["step"].dtype
        (torch.Size([3]), torch.int64)
    """
    entries: TensorDictBase = data.to_tensordict() if is_tensorclass(data) else data
    leaves = {
        name: _infer(entries.get(name), data.ndim, unsqueeze_null_shapes, dynamic_shape)
        for name in entries.keys()
    }
    kind = type(data) if is_tensorclass(data) else None
    return Composite(leaves, shape=data.batch_size, device=data.device, data_cls=kind)


def _infer(
    value: Value, batch_dims: int, unsqueeze_null_shapes: bool, dynamic_shape: bool
) -> TensorSpec:
    if is_non_tensor(value):
        return NonTensor(shape=value.batch_size, device=value.device, example_data=value.data)
    if is_tensor_collection(value):
        return make_composite_from_td(
            value, unsqueeze_null_shapes=unsqueeze_null_shapes, dynamic_shape=dynamic_shape
        )
    shape = value.shape
    if unsqueeze_null_shapes and not shape:
        shape = torch.Size((1,))
    if dynamic_shape and len(shape) > batch_dims:
        shape = torch.Size((*shape[:-1], -1))
    return Unbounded(shape=shape, device=value.device, dtype=value.dtype)
