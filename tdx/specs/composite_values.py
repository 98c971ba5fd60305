"""Values of a composite: creation, checks, projection and conversion entry by entry.

The functions take the specs of a composite by key. An entry that is ``None`` has no spec: its value
is neither checked nor created.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from tdx.errors import SpecError
from tdx.keys import NestedKey, format_key, split_key
from tdx.specs.composite_entries import Specs, entries_of, prefix_error_key


def get_value(val: Any, key: NestedKey) -> Any:
    """Return the value at a key of a (nested) dict or TensorDict; ``None`` if it is missing."""
    for part in split_key(key):
        if not hasattr(val, "get"):
            return None
        val = val.get(part, None)
    return val


def create_values(specs: Specs, method: str, shape: Any) -> dict[str, Any]:
    """Call ``rand``, ``zero`` or ``one`` of each spec, in order."""
    return {key: getattr(spec, method)(shape) for key, spec in specs.items() if spec is not None}


def contains_values(specs: Specs, val: Any) -> bool:
    """Return True if every entry has a value in its spec; additional keys are ignored."""
    for key, spec in specs.items():
        if spec is None:
            continue
        value = get_value(val, key)
        if value is None:
            inner = entries_of(spec)
            if inner is not None and not inner.select(nested=True, leaves_only=True):
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


def project_values(specs: Specs, val: Any) -> Any:
    """Return a copy of a TensorDict with every entry projected to its spec.

    Raises:
        SpecError: A key is missing, or the shape of a value does not end with its spec's.
    """
    projected = val.copy()
    for key, spec in specs.items():
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


def count_values(specs: Specs) -> float:
    """Return the number of combinations of the entries' values."""
    return math.prod(spec.cardinality() for spec in specs.values() if spec is not None)


def enumerate_values(specs: Specs, use_mask: bool) -> tuple[dict[str, Any], int]:
    """Enumerate every combination of the entries' values.

    Returns:
        Values of each entry along a new first dimension, and its size. Without entries, an empty
        dict and 1.
    """
    specs = {key: spec for key, spec in specs.items() if spec is not None}
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
