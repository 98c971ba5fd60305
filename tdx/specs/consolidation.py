"""Consolidation of stacked composites: every composite of a stack gets the keys of all."""

from __future__ import annotations

from typing import Any

import torch

from tdx.specs.bounded import Unbounded
from tdx.specs.composite import Composite
from tdx.specs.stacked import Stacked, StackedComposite


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
