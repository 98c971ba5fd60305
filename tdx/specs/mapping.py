"""The mapping side of ``Composite``: nested keys, locks, and what holds between its entries."""

from __future__ import annotations

import weakref
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from dataclasses import replace
from typing import Any, Self

import torch

from tdx.errors import KeyNotFoundError, SpecError, did_you_mean
from tdx.keys import NestedKey, format_key, join_keys, key_parts
from tdx.specs.spec import TensorSpec

_MISSING: Any = object()
_ABSENT: Any = object()

Entries = dict[NestedKey, Any]


class SpecMapping(TensorSpec):
    """A locked or open mapping from nested keys to specs that share their leading dimensions."""

    _specs: dict[str, Any]
    _locked: bool = False
    _lock_parents: tuple[weakref.ref[SpecMapping], ...] = ()
    step_mdp_static: bool = False

    # reading

    def get(self, item: NestedKey, default: Any = _MISSING) -> Any:
        """The spec at a key, or ``default`` where there is none.

        Raises:
            KeyNotFoundError: there is none, and no default is given.
        """
        found: Any = self
        for part in key_parts(item):
            found = found._specs.get(part, _MISSING) if isinstance(found, SpecMapping) else _MISSING
            if found is _MISSING:
                return self._without(item, default)
        return found

    def _without(self, key: NestedKey, default: Any) -> Any:
        if default is not _MISSING:
            return default
        known = [format_key(name) for name in self.keys(include_nested=True)]
        otherwise = f"it has {', '.join(known)}" if known else "it is empty"
        raise KeyNotFoundError(
            f"the Composite has no key {format_key(key)!r}",
            hint=did_you_mean(format_key(key), known, otherwise),
        )

    def __contains__(self, key: object) -> bool:
        return isinstance(key, (str, tuple)) and self.get(key, _ABSENT) is not _ABSENT

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
        """The keys, in order.

        Args:
            include_nested: also the keys inside nested composites, as tuples.
            leaves_only: leave out the keys of nested composites themselves.
            is_leaf: says of an entry's type whether it counts as a leaf.
            step_mdp_static_only: only what composites with ``step_mdp_static`` hold.
        """
        return self._entries(include_nested, leaves_only, is_leaf, step_mdp_static_only).keys()

    def values(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        *,
        is_leaf: Callable[[type], bool] | None = None,
        step_mdp_static_only: bool = False,
    ) -> ValuesView[Any]:
        """The specs, in the order of ``keys`` with the same arguments."""
        return self._entries(include_nested, leaves_only, is_leaf, step_mdp_static_only).values()

    def items(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        *,
        is_leaf: Callable[[type], bool] | None = None,
        step_mdp_static_only: bool = False,
    ) -> ItemsView[Any, Any]:
        """The keys with their specs, in the order of ``keys`` with the same arguments."""
        return self._entries(include_nested, leaves_only, is_leaf, step_mdp_static_only).items()

    def _entries(
        self,
        include_nested: bool,
        leaves_only: bool,
        is_leaf: Callable[[type], bool] | None,
        static_only: bool,
    ) -> dict[Any, Any]:
        if not (include_nested or leaves_only or static_only):
            return self._specs
        found: Entries = {}
        for name, spec in self._specs.items():
            leaf = not isinstance(spec, SpecMapping) if is_leaf is None else is_leaf(type(spec))
            if include_nested and not leaf and isinstance(spec, SpecMapping):
                below = spec._entries(True, leaves_only, is_leaf, False)
                found.update({join_keys(name, key): entry for key, entry in below.items()})
            if leaf or not leaves_only:
                found[name] = spec
        if static_only:
            found = {key: spec for key, spec in found.items() if self._is_static(key)}
        return found

    def _is_static(self, key: NestedKey) -> bool:
        parts = key_parts(key)
        inside = [self.get(parts[: i + 1]) for i in range(len(parts))]
        return any(isinstance(spec, SpecMapping) and spec.step_mdp_static for spec in inside)

    def is_empty(self, recurse: bool = False) -> bool:
        """Whether there are no entries; with ``recurse``, no leaves."""
        return not (self.keys(True, True) if recurse else self._specs)

    # writing

    def set(self, name: NestedKey, spec: Any) -> Self:
        """Put a spec at a key, in place of what is there; nested composites are made.

        Args:
            name: the key.
            spec: a spec, a (nested) dict of specs, or ``None`` for an entry without one. A
                composite with fewer batch dimensions gets this one's.

        Raises:
            SpecError: the composite is locked, the spec's leading dimensions or its device are not
                the composite's, or the key leads through a leaf.
        """
        self._put(key_parts(name), spec, name)
        return self

    def _put(self, parts: tuple[str, ...], spec: Any, key: NestedKey) -> None:
        """Set the entry at the parts of a key that lead on from here; errors name all of it."""
        first, *rest = parts
        if rest:
            inner = self._specs.get(first)
            if isinstance(inner, SpecMapping):
                inner._put(tuple(rest), spec, key)
                return
            if inner is not None:
                raise SpecError(
                    f"{first!r} is a leaf, nothing can be nested in it",
                    hint="remove the leaf first, or use another key",
                ).at(key=key)
            inner = self._child({})
            inner._put(tuple(rest), spec, key)
            spec = inner
        self._check_unlocked()
        self._specs[first] = self._checked(key, spec)

    def _child(self, entries: Mapping[Any, Any]) -> SpecMapping:
        """A composite of these entries with this one's shape and device."""
        raise NotImplementedError

    def _reshaped_batch(self, shape: torch.Size) -> SpecMapping:
        """A copy with another batch size, which its entries' shapes must begin with."""
        raise NotImplementedError

    def _checked(self, key: NestedKey, spec: Any) -> Any:
        """The spec in the form that is stored, if it can be an entry here."""
        if spec is None:
            return None
        ndim = len(self._shape)
        try:
            if isinstance(spec, Mapping):
                spec = self._child(spec)
            if isinstance(spec, SpecMapping) and spec.ndim < ndim:
                spec = spec._reshaped_batch(self._shape)
        except SpecError as error:
            raise inside(key, error) from None
        if not isinstance(spec, TensorSpec):
            raise SpecError(
                f"expected a spec, got a {type(spec).__name__}",
                hint="give a spec such as Unbounded((3,)), or a mapping of specs",
            ).at(key=key)
        if ndim and spec.shape[:ndim] != self._shape:
            own, mine = tuple(spec.shape), tuple(self._shape)
            raise SpecError(
                f"its shape {own} must begin with the composite's {mine}",
                hint="expand the spec: spec.expand(*composite.shape, *spec.shape)",
            ).at(key=key)
        if self._device is None or spec.device == self._device:
            return spec
        if spec.device is None:
            return spec.to(self._device)
        raise SpecError(
            f"it is on {spec.device}, the composite on {self._device}",
            hint=f"use spec.to({str(self._device)!r})",
        ).at(key=key)

    def __setitem__(self, key: NestedKey, spec: Any) -> None:
        self.set(key, spec)

    def __delitem__(self, key: NestedKey) -> None:
        self._check_unlocked()
        self.get(key)
        *above, last = key_parts(key)
        if above:
            del self.get(tuple(above))[last]
        else:
            del self._specs[last]

    def pop(self, key: NestedKey, default: Any = _MISSING) -> Any:
        """Take out the spec at a key and return it, or ``default`` where there is none.

        Raises:
            KeyNotFoundError: there is none, and no default is given.
            SpecError: the composite is locked.
        """
        self._check_unlocked()
        if key not in self:
            return self._without(key, default)
        found = self.get(key)
        del self[key]
        return found

    def update(self, dict_or_spec: Any = (), **kwargs: Any) -> Self:
        """Set many entries; nested composites are merged.

        Args:
            dict_or_spec: a composite or a mapping from keys to specs.
            **kwargs: more entries.

        Raises:
            SpecError: the composite is locked, or an entry does not fit (see ``set``).
        """
        self._check_unlocked()
        for key, spec in {**dict(_items(dict_or_spec)), **kwargs}.items():
            there = self.get(key, None)
            if isinstance(there, SpecMapping) and isinstance(spec, (SpecMapping, Mapping)):
                there.update(spec)
            else:
                self.set(key, spec)
        return self

    def setdefault(self, key: NestedKey, default: Any = None) -> Any:
        """The spec at a key, which is set to ``default`` first where there is none."""
        if key not in self:
            self.set(key, default)
        return self.get(key)

    # locks

    @property
    def is_locked(self) -> bool:
        """Whether entries cannot be changed."""
        return self._locked

    @is_locked.setter
    def is_locked(self, locked: bool) -> None:
        if locked:
            self.lock_()
        else:
            self.unlock_()

    @property
    def locked(self) -> bool:
        """Whether entries cannot be changed."""
        return self._locked

    def lock_(self, recurse: bool | None = None) -> Self:
        """Let no entry be changed, here and in nested composites.

        Args:
            recurse: ``False`` to leave nested composites open.
        """
        self._locked = True
        if recurse is not False:
            self._lock_children()
        return self

    def _lock_children(self) -> None:
        for spec in self._composites():
            held = [ref for ref in spec._lock_parents if ref() not in (None, self)]
            spec._lock_parents = (*held, weakref.ref(self))
            spec.lock_()

    def _composites(self) -> list[SpecMapping]:
        return [spec for spec in self._specs.values() if isinstance(spec, SpecMapping)]

    def unlock_(self, recurse: bool | None = None) -> Self:
        """Let entries be changed again, here and in nested composites.

        Args:
            recurse: ``False`` to leave nested composites locked.

        Raises:
            SpecError: a composite that this one is nested in is locked.
        """
        self._check_parents()
        self._locked = False
        for spec in self._composites():
            spec._lock_parents = tuple(ref for ref in spec._lock_parents if ref() is not self)
            if recurse is not False:
                spec.unlock_()
        return self

    def _check_parents(self) -> None:
        parents = [parent for ref in self._lock_parents if (parent := ref()) is not None]
        if any(parent._locked for parent in parents):
            raise SpecError(
                "the Composite is nested in a locked one", hint="unlock the outermost one"
            )

    def _check_unlocked(self) -> None:
        if self._locked:
            raise SpecError(
                "the Composite is locked", hint="change a clone(), or call unlock_() first"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock_parents"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._locked:
            self._lock_children()


def inside(key: NestedKey, error: SpecError) -> SpecError:
    """The error of a nested entry, its key now that from the outer composite."""
    inner = error.where.key
    error.where = replace(error.where, key=key if inner is None else join_keys(key, inner))
    return error


def _items(source: Any) -> Any:
    return source.items() if hasattr(source, "items") else source
