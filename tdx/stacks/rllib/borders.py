"""What passes between two connectors of RLlib, as arrays by key.

A batch has columns, such as ``obs``. A column has an item per episode, a list of items, or items
that are stacked; an item is an array, or a dict or tuple of arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

_NUMERIC = "biuf"


@dataclass(frozen=True, slots=True)
class Column:
    """The form of a column."""

    form: Literal["episodes", "list", "stacked"]
    template: Any  # A structure like that of an item.
    is_tensor: bool = False  # True if it has tensors instead of arrays.


Columns = Mapping[str, Column]


def flatten(value: object, key: str) -> Iterator[tuple[str, Any]]:
    """Yield the arrays in nested dicts and tuples, with their keys.

    Example:
        >>> [key for key, _ in flatten({"image": 1, "state": (2, 3)}, "obs")]
        ['obs.image', 'obs.state.0', 'obs.state.1']
    """
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from flatten(part, f"{key}.{name}")
    elif isinstance(value, tuple):
        for index, part in enumerate(value):
            yield from flatten(part, f"{key}.{index}")
    else:
        yield key, value


def unflatten(entries: Mapping[str, object], template: object, key: str) -> object:
    """Return the arrays of some entries in the structure of a template."""
    if isinstance(template, Mapping):
        return {name: unflatten(entries, part, f"{key}.{name}") for name, part in template.items()}
    if isinstance(template, tuple):
        return tuple(
            unflatten(entries, part, f"{key}.{index}") for index, part in enumerate(template)
        )
    return entries[key]


def stack_items(items: Sequence[Any], key: str) -> dict[str, Any]:
    """Return the items of all rows as arrays ``[N, ...]`` by key."""
    rows = [dict(flatten(item, key)) for item in items]
    return {name: np.stack([_to_array(row[name]) for row in rows]) for name in rows[0]}


def take_item(entries: Mapping[str, Any], template: Any, key: str, row: int) -> Any:
    """Return the item of a row; it does not share the memory of the entries."""
    item = {
        name: np.array(value[row])
        for name, value in entries.items()
        if name == key or name.startswith(f"{key}.")
    }
    # An item of a discrete space is a number, as in an episode.
    return unflatten(
        {name: value if value.ndim else value[()] for name, value in item.items()}, template, key
    )


def read_batch(batch: Mapping[str, Any]) -> tuple[dict[str, object], dict[str, Column]]:
    """Return a copy of the numbers in a batch as arrays ``[N, ...]`` by key, and their forms."""
    entries: dict[str, object] = {}
    columns: dict[str, Column] = {}
    for name, data in batch.items():
        form: Literal["episodes", "list", "stacked"] = "stacked"
        if isinstance(data, Mapping) and data and all(isinstance(key, tuple) for key in data):
            form, items = "episodes", [item for held in data.values() for item in held]
        elif isinstance(data, list):
            form, items = "list", data
        else:
            items = []
        leaves = [leaf for item in items or [data] for _, leaf in flatten(item, name)]
        if not all(_to_array(leaf).dtype.kind in _NUMERIC for leaf in leaves):
            # Infos, for example, which are passed on.
            continue
        is_tensor = any(isinstance(leaf, Tensor) for leaf in leaves)
        if form == "stacked":
            entries |= {key: _to_array(value) for key, value in flatten(data, name)}
        else:
            entries |= stack_items(items, name)
        columns[name] = Column(form, items[0] if items else data, is_tensor)
    return entries, columns


def build_batch(
    entries: Mapping[str, object], columns: Columns, episode_ids: Sequence[str]
) -> dict[str, object]:
    """Return a batch with the numbers of some entries, in the form that it had."""
    batch: dict[str, object] = {}
    for name, column in columns.items():
        own = {
            key: torch.from_numpy(np.array(value)) if column.is_tensor else np.array(value)
            for key, value in entries.items()
            if key == name or key.startswith(f"{name}.")
        }
        if column.form == "stacked":
            batch[name] = unflatten(own, column.template, name)
            continue
        items = [
            unflatten({key: value[row] for key, value in own.items()}, column.template, name)
            for row in range(len(episode_ids))
        ]
        batch[name] = (
            items
            if column.form == "list"
            else {(episode,): [item] for episode, item in zip(episode_ids, items, strict=True)}
        )
    return batch


def _to_array(value: object) -> Any:
    if isinstance(value, Tensor):
        return np.array(value.detach().cpu().numpy())
    try:
        return np.array(value)
    except (ValueError, TypeError):
        return np.array(None)
