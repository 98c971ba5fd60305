"""Entries of a composite: a nested mapping from keys to specs that can be locked."""

from __future__ import annotations

import weakref
from collections.abc import Callable, KeysView, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from tdx.foundation.errors import AttributeKeyError, KeyNotFoundError, SpecError, did_you_mean
from tdx.foundation.keys import NestedKey, format_key, join_keys, normalize_key, split_key
from tdx.specs.arguments import Names
from tdx.specs.spec import TensorSpec

Specs = dict[str, Any]
"""Specs by name; ``None`` for an entry without a spec."""

MISSING: Any = object()


class CompositeEntries:
    """Specs of a composite by key, with its batch size, device and lock.

    Args:
        shape: Batch size, with which the shape of every entry begins.
        device: Device of every entry; ``None`` if they may differ.
        create: Creates a nested composite from a mapping: the class ``Composite``.
        specs: Specs by name, which have that batch size and device already.
        names: Names of the batch dimensions; ``None`` if they have none.
    """

    def __init__(
        self,
        shape: torch.Size,
        device: torch.device | None,
        create: Callable[..., Any],
        specs: Specs,
        names: Names | None = None,
    ) -> None:
        self.shape, self.device, self.specs, self.names = shape, device, specs, names
        self.lock_state = CompositeLock()
        self._create = create

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.is_locked:
            self.lock()

    def copy(
        self,
        specs: Specs,
        shape: torch.Size | None = None,
        device: torch.device | None = None,
        names: Names | None = None,
    ) -> CompositeEntries:
        """Return unlocked entries; another batch size drops the names, unless names are given."""
        if names is None and shape in (None, self.shape):
            names = self.names
        shape = self.shape if shape is None else shape
        return CompositeEntries(shape, device or self.device, self._create, specs, names)

    # Reading

    def find(self, key: NestedKey) -> Any:
        """Return the spec at a key; ``MISSING`` if there is none."""
        found: Any = MISSING
        level: CompositeEntries | None = self
        for part in (key,) if isinstance(key, str) else split_key(key):
            if level is None:
                return MISSING
            found = level.specs.get(part, MISSING)
            level = entries_of(found)
        return found

    def get(self, key: NestedKey, default: Any = MISSING) -> Any:
        """Return the spec at a key, or ``default`` if the key is missing.

        Raises:
            KeyNotFoundError: The key is missing, without a default.
        """
        found = self.find(key)
        if found is not MISSING:
            return found
        if default is not MISSING:
            return default
        known = [format_key(name) for name in self.select(nested=True)]
        fallback = f"it has {', '.join(known)}" if known else "it is empty"
        raise KeyNotFoundError(
            f"the Composite has no key {format_key(key)!r}",
            hint=did_you_mean(format_key(key), known, fallback),
        )

    def select(
        self,
        nested: bool = False,
        leaves_only: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
        step_mdp_static_only: bool = False,
    ) -> dict[Any, Any]:
        """Return entries by key, those of nested composites before the composite itself.

        Args:
            nested: True to include the entries of nested composites, with tuples as keys.
            leaves_only: True to leave out nested composites themselves.
            is_leaf: Decides by type whether an entry is a leaf; by default composites are not.
            step_mdp_static_only: True to include only entries of composites with
                ``step_mdp_static``.
        """
        if not (nested or leaves_only or step_mdp_static_only):
            return self.specs
        found: dict[Any, Any] = {}
        for name, spec in self.specs.items():
            inner = entries_of(spec)
            leaf = inner is None if is_leaf is None else is_leaf(type(spec))
            if nested and not leaf and inner is not None:
                below = inner.select(nested, leaves_only, is_leaf)
                found.update({join_keys(name, key): entry for key, entry in below.items()})
            if leaf or not leaves_only:
                found[name] = spec
        if step_mdp_static_only:
            found = {key: spec for key, spec in found.items() if self._is_static(key)}
        return found

    def _is_static(self, key: NestedKey) -> bool:
        """Return True if a composite on the path to an entry has ``step_mdp_static`` set."""
        parts = split_key(key)
        path = [self.find(parts[: i + 1]) for i in range(len(parts))]
        return any(getattr(spec, "step_mdp_static", False) for spec in path)

    def composites(self) -> list[Any]:
        """Return the nested composites of this level."""
        return [spec for spec in self.specs.values() if hasattr(spec, "_entries")]

    # Writing

    def set(self, parts: tuple[str, ...], spec: Any, key: NestedKey) -> None:
        """Set the spec at the remaining parts of a key; errors name the whole key."""
        first, *rest = parts
        if not rest:
            self.check_unlocked()
            self.specs[first] = self._as_entry(spec, key)
            return
        inner = self.specs.get(first)
        check_not_leaf(inner, first, key)
        nested = self._create_nested({}) if inner is None else inner
        nested._entries.set(tuple(rest), spec, key)
        if inner is None:
            self.set((first,), nested, key)

    def _as_entry(self, spec: Any, key: NestedKey) -> Any:
        """Return a spec, a mapping of specs or ``None`` as an entry of this composite."""
        try:
            if isinstance(spec, Mapping):
                spec = self._create_nested(spec)
            elif entries_of(spec) is not None:
                spec = self._as_nested(spec)
        except SpecError as error:
            raise prefix_error_key(key, error) from None
        return None if spec is None else check_entry(spec, key, self.shape, self.device)

    def _as_nested(self, spec: Any) -> Any:
        """Return a composite with at least the batch dimensions of this one, and their names."""
        if spec.ndim < len(self.shape):
            spec = _with_batch_size(spec, self.shape)
        if self.names is not None and spec.names[: len(self.names)] != self.names:
            names = [*self.names, *spec.names[len(self.names) :]]
            spec = spec.clone(recurse=False)
            spec.names = names
        return spec

    def set_names(self, names: Names | None) -> None:
        """Name the batch dimensions, also those of nested composites; ``None`` clears the names."""
        self.names = names if any(names or ()) else None
        if names:
            for spec in self.composites():
                spec.names = [*names, *spec.names[len(names) :]]

    def set_device(self, device: torch.device | None) -> None:
        """Move every entry to a device; ``None`` clears the device.

        Raises:
            SpecError: The composite is locked.
        """
        self.check_unlocked()
        if device is None:
            self.clear_device()
            return
        moved = {key: None if spec is None else spec.to(device) for key, spec in self.specs.items()}
        self.specs, self.device = moved, device

    def _create_nested(self, specs: Mapping[Any, Any]) -> Any:
        return self._create(specs, shape=self.shape, device=self.device, names=self.names)

    def delete(self, key: NestedKey) -> None:
        """Remove an entry.

        Raises:
            KeyNotFoundError: The key is missing.
            SpecError: The composite is locked.
        """
        self.check_unlocked()
        self.get(key)
        *above, last = split_key(key)
        if above:
            self.get(tuple(above))._entries.delete(last)
        else:
            del self.specs[last]

    def pop(self, key: NestedKey, default: Any = MISSING) -> Any:
        """Remove an entry and return its spec, or ``default`` if the key is missing.

        Raises:
            KeyNotFoundError: The key is missing, without a default.
            SpecError: The composite is locked.
        """
        self.check_unlocked()
        found = self.get(key, default)
        if self.find(key) is not MISSING:
            self.delete(key)
        return found

    def update(self, specs: Mapping[Any, Any]) -> None:
        """Set several entries, merging nested composites.

        Raises:
            SpecError: The composite is locked, or an entry is invalid.
        """
        self.check_unlocked()
        for key, spec in specs.items():
            current = entries_of(self.get(key, None))
            if current is not None and (isinstance(spec, Mapping) or entries_of(spec) is not None):
                current.update(dict(spec.items()))
            else:
                self.set(split_key(key), spec, key)

    def set_shape(self, shape: torch.Size) -> None:
        """Change the batch size, which nested composites with fewer dimensions get.

        Raises:
            SpecError: The composite is locked, or an entry's shape does not begin with ``shape``.
        """
        self.check_unlocked()
        changed = {}
        for key, spec in self.specs.items():
            if entries_of(spec) is not None and spec.ndim < len(shape):
                spec = _with_batch_size(spec, shape)
            if spec is not None and spec.shape[: len(shape)] != shape:
                raise SpecError(
                    f"its shape {tuple(spec.shape)} does not begin with {tuple(shape)}",
                    hint="expand the entry first, or use a shape that all entries begin with",
                ).at(key=key)
            changed[key] = spec
        if shape != self.shape:
            self.names = None
        self.specs, self.shape = changed, shape

    def clear_device(self) -> None:
        """Clear the device, also of nested composites."""
        self.device = None
        for spec in self.composites():
            spec._entries.clear_device()

    # Locks

    @property
    def is_locked(self) -> bool:
        """True if entries cannot be changed."""
        return self.lock_state.is_locked

    def check_unlocked(self) -> None:
        """Check that entries may be changed.

        Raises:
            SpecError: The composite is locked.
        """
        if self.is_locked:
            raise SpecError(
                "the Composite is locked", hint="change a clone(), or call unlock_() first"
            )

    def lock(self, recurse: bool = True) -> None:
        """Forbid changes of entries; with ``recurse``, also in nested composites."""
        self.lock_state.is_locked = True
        if recurse:
            for spec in self.composites():
                spec._entries.lock_state.add_parent(self.lock_state)
                spec._entries.lock()

    def unlock(self, recurse: bool = True) -> None:
        """Allow changes of entries; with ``recurse``, also in nested composites.

        Raises:
            SpecError: A composite that contains this one, or a nested one, is locked.
        """
        locks = self.list_locks() if recurse else [self.lock_state]
        held = [lock for lock in locks if lock.is_locked or lock._parents]
        for lock in held:
            lock.check_parents(locks)
        if held:
            self.release(recurse)

    def list_locks(self) -> list[CompositeLock]:
        """Return the locks of this composite and of all nested ones."""
        nested = [lock for spec in self.composites() for lock in spec._entries.list_locks()]
        return [self.lock_state, *nested]

    def release(self, recurse: bool) -> None:
        """Unlock without checks; with ``recurse``, also nested composites."""
        self.lock_state.is_locked = False
        for spec in self.composites():
            spec._entries.lock_state.remove_parent(self.lock_state)
            if recurse:
                spec._entries.release(recurse)


class SpecKeys(KeysView[Any]):
    """Keys of a composite. They contain a key in any form, such as ``("a",)`` for ``"a"``."""

    _mapping: Mapping[Any, Any]

    def __contains__(self, key: object) -> bool:
        try:
            return normalize_key(key) in self._mapping
        except TypeError:
            return False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)})"


def entries_of(spec: Any) -> CompositeEntries | None:
    """Return the entries of a composite; ``None`` for a leaf."""
    return getattr(spec, "_entries", None)


def _with_batch_size(spec: Any, shape: torch.Size) -> Any:
    copied = spec.clone(recurse=False)
    copied.shape = shape
    return copied


def is_key(index: Any) -> bool:
    """Return True if an index is a key rather than a position in the batch."""
    if isinstance(index, tuple):
        return bool(index) and all(is_key(part) for part in index)
    return isinstance(index, str)


def check_entry(spec: Any, key: NestedKey, shape: torch.Size, device: torch.device | None) -> Any:
    """Return a spec as an entry of a composite, on its device if the spec has none.

    Args:
        spec: Spec to check.
        key: Key of the entry, for error messages.
        shape: Batch size of the composite.
        device: Device of the composite; ``None`` if entries may differ.

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


def check_not_leaf(spec: Any, name: str, key: NestedKey) -> None:
    """Check that the entry ``name`` on the path of a nested key, if it exists, is not a leaf.

    Raises:
        SpecError: It is a leaf.
    """
    if spec is not None and entries_of(spec) is None:
        raise SpecError(
            f"{name!r} is a leaf, so it cannot contain other entries",
            hint="remove the leaf first, or use another key",
        ).at(key=key)


def prefix_error_key(key: NestedKey, error: SpecError) -> SpecError:
    """Prefix the key of an error from a nested composite with the composite's own key."""
    inner = error.where.key
    error.where = replace(error.where, key=key if inner is None else join_keys(key, inner))
    return error


class CompositeLock:
    """Write lock of a composite, which the composites that contain it may hold too.

    A copy or a pickle keeps the state, but not the parents: those are set when the outer composite
    is restored.
    """

    def __init__(self) -> None:
        self.is_locked = False
        self._parents: tuple[weakref.ref[CompositeLock], ...] = ()

    def add_parent(self, parent: CompositeLock) -> None:
        """Register the lock of an outer composite, which must be unlocked first."""
        others = [ref for ref in self._parents if ref() not in (None, parent)]
        self._parents = (*others, weakref.ref(parent))

    def remove_parent(self, parent: CompositeLock) -> None:
        """Forget the lock of an outer composite."""
        self._parents = tuple(ref for ref in self._parents if ref() is not parent)

    def check_parents(self, unlocked: Sequence[CompositeLock] = ()) -> None:
        """Check that the composite may be unlocked.

        Args:
            unlocked: Locks of composites that are unlocked at the same time.

        Raises:
            SpecError: Another composite that contains it is locked.
        """
        parents = [parent for ref in self._parents if (parent := ref()) is not None]
        if any(parent.is_locked and parent not in unlocked for parent in parents):
            raise SpecError(
                "the Composite is nested in a locked one", hint="unlock the outermost one"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {"is_locked": self.is_locked}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.is_locked = state["is_locked"]
        self._parents = ()
