"""Values of a composite: creation, checks, projection and conversion entry by entry.

The functions take the specs of a composite by key. An entry that is ``None`` has no spec: its value
is neither checked nor created.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from tdx.foundation.errors import SpecError
from tdx.foundation.keys import NestedKey, format_key, split_key
from tdx.specs.composite_entries import Specs, entries_of, prefix_error_key


def get_value(val: Any, key: NestedKey) -> Any:
    """Return the value at a key of a (nested) dict or TensorDict; ``None`` if it is missing."""
    for part in split_key(key):
        if not hasattr(val, "get"):
            return None
        val = val.get(part, None)
    return val


def create_tensordict(spec: Any, method: str, shape: Any) -> Any:
    """Create a TensorDict by ``rand``, ``zero`` or ``one`` of each entry of a composite, in order.

    Args:
        spec: The composite.
        method: Name of the method.
        shape: Leading dimensions to add.
    """
    specs = spec._entries.specs
    fields = {
        key: getattr(entry, method)(shape) for key, entry in specs.items() if entry is not None
    }
    return as_tensordict(spec, fields, spec._full_shape(shape), spec.device)


def as_tensordict(spec: Any, fields: dict[Any, Any], batch_size: torch.Size, device: Any) -> Any:
    """Create a TensorDict of the class and with the names of a composite."""
    names = spec._entries.names
    if names is not None:
        names = [*[None] * (len(batch_size) - len(names)), *names]
    created = TensorDict(fields, batch_size=batch_size, device=device, names=names)
    return created if spec.data_cls is None else spec.data_cls.from_tensordict(created)


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
    """Check the dtypes of a TensorDict's entries; of a tensor, which is the value of each key.

    Raises:
        SpecError: The dtype of an entry differs from its spec's; the error names the key.
    """
    for key, spec in specs.items():
        if spec is not None:
            spec.type_check(val if isinstance(val, Tensor) else get_value(val, key), key)


def project_values(specs: Specs, val: Any) -> Any:
    """Project every entry of a TensorDict to its spec, in place, and return the TensorDict.

    Raises:
        SpecError: A key is missing, or the shape of a value does not end with its spec's.
    """
    for key, spec in specs.items():
        if spec is None:
            continue
        value = get_value(val, key)
        if value is None:
            raise SpecError("the entry is missing", hint="add the entry to the value").at(key=key)
        try:
            projected = spec.project(value)
        except SpecError as error:
            raise prefix_error_key(key, error) from None
        if projected is not value:
            val[key] = projected
    return val


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


def enumerate_values(spec: Any, use_mask: bool) -> TensorDict:
    """Enumerate every combination of the values of a composite's entries.

    Returns:
        A TensorDict with the combinations along a new first dimension; without entries, of size 1.
    """
    specs = {key: entry for key, entry in spec._entries.specs.items() if entry is not None}
    if not specs:
        return TensorDict(batch_size=(1, *spec.shape), device=spec.device)
    values = {key: entry.enumerate(use_mask) for key, entry in specs.items()}
    grid = torch.cartesian_prod(*(torch.arange(len(value)) for value in values.values()))
    grid = grid.reshape(-1, len(values))
    combined = {
        key: value[grid[:, i].to(value.device)] if value.device else value[grid[:, i]]
        for i, (key, value) in enumerate(values.items())
    }
    return TensorDict(combined, batch_size=(len(grid), *spec.shape), device=spec.device)
