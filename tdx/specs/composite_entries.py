"""Entries of a composite: lookup and iteration by nested key, entry checks and locks.

The functions work on the plain dict of entries of a composite. A spec that is itself a composite
has its own dict, see :func:`nested_entries`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch

from tdx.errors import KeyNotFoundError, SpecError, did_you_mean
from tdx.keys import NestedKey, format_key, join_keys
from tdx.specs.spec import TensorSpec

Entries = dict[str, Any]

MISSING: Any = object()


def nested_entries(spec: Any) -> Entries | None:
    """Return the entries of a composite; ``None`` for a leaf."""
    return getattr(spec, "_specs", None)


def find_entry(entries: Entries, parts: Iterable[str]) -> Any:
    """Look up an entry by the parts of its key; ``MISSING`` if there is none."""
    found: Any = MISSING
    level: Entries | None = entries
    for part in parts:
        if level is None:
            return MISSING
        found = level.get(part, MISSING)
        level = nested_entries(found)
    return found


def walk_entries(
    entries: Entries, leaves_only: bool, is_leaf: Callable[[type], bool] | None, nested: bool
) -> dict[Any, Any]:
    """Collect entries by key, those of nested composites before the composite itself.

    Args:
        entries: Entries of the composite.
        leaves_only: True to leave out nested composites themselves.
        is_leaf: Decides by type whether an entry is a leaf; by default composites are not.
        nested: True to include the entries of nested composites, with tuples as keys.
    """
    found: dict[Any, Any] = {}
    for name, spec in entries.items():
        inner = nested_entries(spec)
        leaf = inner is None if is_leaf is None else is_leaf(type(spec))
        if nested and not leaf and inner is not None:
            below = walk_entries(inner, leaves_only, is_leaf, nested)
            found.update({join_keys(name, key): entry for key, entry in below.items()})
        if leaf or not leaves_only:
            found[name] = spec
    return found


def is_static(entries: Entries, parts: tuple[str, ...]) -> bool:
    """Return True if a composite on the path to an entry has ``step_mdp_static`` set."""
    path = [find_entry(entries, parts[: i + 1]) for i in range(len(parts))]
    return any(getattr(spec, "step_mdp_static", False) for spec in path)


def key_not_found(entries: Entries, key: NestedKey) -> KeyNotFoundError:
    """Create the error for a missing key, with the nearest existing one."""
    known = [format_key(name) for name in walk_entries(entries, False, None, nested=True)]
    fallback = f"it has {', '.join(known)}" if known else "it is empty"
    return KeyNotFoundError(
        f"the Composite has no key {format_key(key)!r}",
        hint=did_you_mean(format_key(key), known, fallback),
    )


def check_entry(spec: Any, key: NestedKey, shape: torch.Size, device: torch.device | None) -> Any:
    """Return a spec as an entry of a composite, on its device if the spec has none.

    Args:
        spec: Spec to check.
        key: Key of the entry, for error messages.
        shape: Batch size of the composite.
        device: Device of the composite; ``None`` if entries may differ.

    Raises:
        SpecError: ``spec`` is not a spec, its shape does not begin with ``shape``, or it is on
            another device.
    """
    if not isinstance(spec, TensorSpec):
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


def change_batch_size(entries: Entries, shape: torch.Size) -> Entries:
    """Return entries for another batch size, which nested composites with fewer dimensions get.

    Raises:
        SpecError: An entry's shape does not begin with ``shape``.
    """
    changed = {}
    for key, spec in entries.items():
        if nested_entries(spec) is not None and spec.ndim < len(shape):
            spec = spec._with_batch_size(shape)
        if spec is not None and spec.shape[: len(shape)] != shape:
            raise SpecError(
                f"its shape {tuple(spec.shape)} does not begin with {tuple(shape)}",
                hint="expand the entry first, or use a shape that all entries begin with",
            ).at(key=key)
        changed[key] = spec
    return changed


def check_not_leaf(spec: Any, name: str, key: NestedKey) -> None:
    """Check that an existing entry on the path of a nested key is a composite.

    Args:
        spec: The entry; ``None`` if there is none.
        name: Name of the entry.
        key: The whole key, for the error message.

    Raises:
        SpecError: The entry is a leaf.
    """
    if spec is not None and nested_entries(spec) is None:
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
        kept = [ref for ref in self._parents if ref() not in (None, parent)]
        self._parents = (*kept, weakref.ref(parent))

    def remove_parent(self, parent: CompositeLock) -> None:
        """Forget the lock of an outer composite."""
        self._parents = tuple(ref for ref in self._parents if ref() is not parent)

    def check_parents(self) -> None:
        """Check that the composite may be unlocked.

        Raises:
            SpecError: A composite that contains it is locked.
        """
        parents = [parent for ref in self._parents if (parent := ref()) is not None]
        if any(parent.is_locked for parent in parents):
            raise SpecError(
                "the Composite is nested in a locked one", hint="unlock the outermost one"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {"is_locked": self.is_locked}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.is_locked = state["is_locked"]
        self._parents = ()
