"""What a composite does entry by entry: lookup, checks, locks, and operations on values.

The functions work on the plain dict of entries of a composite. A spec that is itself a composite
has its own dict, see :func:`nested_entries`. An entry that is ``None`` has no spec: its value is
neither checked nor created.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from tdx.errors import KeyNotFoundError, SpecError, did_you_mean
from tdx.keys import NestedKey, format_key, join_keys, split_key
from tdx.specs.spec import TensorSpec

Entries = dict[str, Any]

MISSING: Any = object()


def nested_entries(spec: Any) -> Entries | None:
    """Return the entries of a composite; ``None`` for a leaf."""
    return getattr(spec, "_specs", None)


def is_key(index: Any) -> bool:
    """Return True if an index is a key rather than a position in the batch."""
    if isinstance(index, tuple):
        return bool(index) and all(is_key(part) for part in index)
    return isinstance(index, str)


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


def select_entries(
    entries: Entries,
    nested: bool,
    leaves_only: bool,
    is_leaf: Callable[[type], bool] | None,
    static_only: bool,
) -> dict[Any, Any]:
    """Return the entries that ``Composite.keys`` is asked for, by key; see its arguments."""
    if not (nested or leaves_only or static_only):
        return entries
    found = walk_entries(entries, leaves_only, is_leaf, nested)
    if static_only:
        found = {key: spec for key, spec in found.items() if _is_static(entries, split_key(key))}
    return found


def _is_static(entries: Entries, parts: tuple[str, ...]) -> bool:
    """Return True if a composite on the path to an entry has ``step_mdp_static`` set."""
    path = [find_entry(entries, parts[: i + 1]) for i in range(len(parts))]
    return any(getattr(spec, "step_mdp_static", False) for spec in path)


def get_entry(entries: Entries, key: NestedKey, default: Any) -> Any:
    """Return the spec at a key, or ``default`` if the key is missing.

    Raises:
        KeyNotFoundError: The key is missing, and ``default`` is ``MISSING``.
    """
    found = find_entry(entries, split_key(key))
    if found is not MISSING:
        return found
    if default is MISSING:
        raise key_not_found(entries, key)
    return default


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


def check_unlocked(is_locked: bool) -> None:
    """Check that the entries of a composite may be changed.

    Raises:
        SpecError: The composite is locked.
    """
    if is_locked:
        raise SpecError("the Composite is locked", hint="change a clone(), or call unlock_() first")


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


def get_value(val: Any, key: NestedKey) -> Any:
    """Return the value at a key of a (nested) dict or TensorDict; ``None`` if it is missing."""
    for part in split_key(key):
        if not hasattr(val, "get"):
            return None
        val = val.get(part, None)
    return val


def create_values(entries: Entries, method: str, shape: Any) -> dict[str, Any]:
    """Call ``rand``, ``zero`` or ``one`` of each spec, in order."""
    return {key: getattr(spec, method)(shape) for key, spec in entries.items() if spec is not None}


def contains_values(entries: Entries, val: Any) -> bool:
    """Return True if every entry has a value in its spec; additional keys are ignored."""
    for key, spec in entries.items():
        if spec is None:
            continue
        value = get_value(val, key)
        if value is None:
            inner = nested_entries(spec)
            if inner is not None and not walk_entries(inner, True, None, nested=True):
                continue
            return False
        if not spec.is_in(value):
            return False
    return True


def explain_mismatch(leaves: Mapping[NestedKey, Any], val: Any) -> str | None:
    """Name the first leaf whose value is missing or not in its spec, with the reason."""
    for key, spec in leaves.items():
        if spec is None:
            continue
        name = format_key(key)
        value = get_value(val, key)
        if value is None:
            return f"key {name!r} is missing"
        reason = spec.why_not_in(value)
        if reason is not None:
            return f"key {name!r}: {reason}"
    return None


def check_dtypes(specs: Mapping[NestedKey, Any], val: Any) -> None:
    """Check the dtypes of a TensorDict's entries.

    Raises:
        SpecError: The dtype of an entry differs from its spec's; the error names the key.
    """
    for key, spec in specs.items():
        if spec is not None:
            spec.type_check(get_value(val, key), key)


def project_values(entries: Entries, val: Any) -> Any:
    """Return a copy of a TensorDict with every entry projected to its spec.

    Raises:
        SpecError: A key is missing, or the shape of a value does not end with its spec's.
    """
    projected = val.copy()
    for key, spec in entries.items():
        if spec is None:
            continue
        value = get_value(val, key)
        if value is None:
            raise SpecError("the entry is missing", hint="add the entry to the value").at(key=key)
        try:
            projected[key] = spec.project(value)
        except SpecError as error:
            raise prefix_error_key(key, error) from None
    return projected


def encode_values(
    find_spec: Callable[[Any], Any], values: Iterable[tuple[Any, Any]], ignore_device: bool
) -> dict[Any, Any]:
    """Encode values by the specs of their keys.

    Args:
        find_spec: Returns the spec of a key, such as ``Composite.get``.
        values: Pairs of key and value.
        ignore_device: True to leave tensors on their device.

    Raises:
        KeyNotFoundError: A key has no spec.
        SpecError: A value cannot be encoded; the error names the key.
    """
    encoded = {}
    for key, value in values:
        try:
            encoded[key] = find_spec(key).encode(value, ignore_device=ignore_device)
        except SpecError as error:
            raise prefix_error_key(key, error) from None
    return encoded


def count_values(entries: Entries) -> float:
    """Return the number of combinations of the entries' values."""
    return math.prod(spec.cardinality() for spec in entries.values() if spec is not None)


def enumerate_values(entries: Entries, use_mask: bool) -> tuple[dict[str, Any], int]:
    """Enumerate every combination of the entries' values.

    Returns:
        Values of each entry along a new first dimension, and its size. Without entries, an empty
        dict and 1.
    """
    specs = {key: spec for key, spec in entries.items() if spec is not None}
    if not specs:
        return {}, 1
    values = {key: spec.enumerate(use_mask) for key, spec in specs.items()}
    grid = torch.cartesian_prod(*(torch.arange(len(value)) for value in values.values()))
    grid = grid.reshape(-1, len(values))
    combined = {
        key: value[grid[:, i].to(value.device)] if value.device else value[grid[:, i]]
        for i, (key, value) in enumerate(values.items())
    }
    return combined, len(grid)
