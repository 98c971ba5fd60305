"""Build values of Gymnasium's spaces from tensors by key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from torch import Tensor

from tdx.foundation.patches import instance_dict
from tdx.stacks.observe.env_inside import base_key, fit
from tdx.stacks.observe.events import ACTION, INFO, OBSERVATION
from tdx.stacks.observe.levels import RowEntries
from tdx.stacks.sources import attributes_of

_LEARNING = ("_update_running_mean", "training")
"""Attributes that switch the updates of running statistics."""


def build_batch(space: spaces.Space[object], entries: RowEntries, count: int) -> object:
    """Return a batch of values of a space from entries ``[N, ...]``."""
    if isinstance(space, spaces.Dict):
        return {
            name: build_batch(inner, _below(entries, name), count)
            for name, inner in space.spaces.items()
        }
    rows = [
        build_value(space, {key: value[row] for key, value in entries.items()}, (OBSERVATION,))
        for row in range(count)
    ]
    return np.stack([np.asarray(row) for row in rows])


def _below(entries: RowEntries, name: str) -> RowEntries:
    entries_below: RowEntries = {}
    for key, value in entries.items():
        parts = (key,) if isinstance(key, str) else key
        if parts[0] == name:
            inner = parts[1:]
            entries_below[OBSERVATION if not inner else base_key((OBSERVATION, *inner))] = value
    return entries_below


def build_value(
    space: spaces.Space[object], entries: Mapping[Any, Any], key: tuple[str, ...]
) -> Any:
    """Return a value of a space; entries that are missing or of another shape become zeros."""
    if isinstance(space, spaces.Dict):
        return {
            name: build_value(inner, entries, (*key, name)) for name, inner in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        stacked = entries.get(_plain(key))
        parts = list(stacked) if isinstance(stacked, Tensor) else []
        return tuple(
            build_value(inner, {"observation": parts[index]}, (OBSERVATION,))
            if index < len(parts)
            else build_value(inner, entries, (*key, str(index)))
            for index, inner in enumerate(space.spaces)
        )
    value = entries.get(_plain(key))
    if isinstance(space, spaces.Discrete):
        return np.int64(int(fit(value, ()).item()) + int(space.start))
    if space.shape is None or space.dtype is None:
        return space.sample()
    array = fit(value, space.shape).numpy().astype(space.dtype)
    start = getattr(space, "start", None)
    return array if start is None else (array + start).astype(space.dtype)


def _plain(key: tuple[str, ...]) -> object:
    return base_key(key if len(key) > 1 else key[0])


def build_info(entries: RowEntries) -> dict[str, object]:
    """Return the info of a single env from entries ``[1, ...]``."""
    info: dict[str, Any] = {}
    for key, value in entries.items():
        if isinstance(key, tuple) and key[0] == INFO:
            target = info
            for part in key[1:-1]:
                target = target.setdefault(part, {})
            item = value[0].numpy()
            target[key[-1]] = item.item() if item.ndim == 0 else item
    return info


def build_action(space: spaces.Space[object], entries: RowEntries, num_envs: int | None) -> object:
    """Return the action of an env from entries ``[R, ...]``; rows are repeated if necessary.

    An entry of a ``Dict`` is nested below ``action``.
    """

    def row(index: int) -> Any:
        values = {
            (OBSERVATION if key == ACTION else (OBSERVATION, *key[1:])): value[index % len(value)]
            for key, value in entries.items()
        }
        return build_value(
            space, {base_key(key): item for key, item in values.items()}, ("observation",)
        )

    if num_envs is None:
        return row(0)
    rows = [row(index) for index in range(num_envs)]
    return _stack(rows)


def _stack(rows: list[Any]) -> object:
    first = rows[0]
    if isinstance(first, dict):
        return {name: _stack([row[name] for row in rows]) for name in first}
    if isinstance(first, tuple):
        return tuple(_stack([row[i] for row in rows]) for i in range(len(first)))
    return np.stack([np.asarray(row) for row in rows])


def learning_switches(owners: Iterable[object]) -> list[tuple[object, str, object]]:
    """Return the changes that stop the updates of running statistics."""
    changes: list[tuple[object, str, object]] = []
    for owner in owners:
        own = instance_dict(owner) or {}
        has_statistics = any("rms" in name or "stat" in name for name in attributes_of(owner))
        changes += [
            (owner, name, False)
            for name in _LEARNING
            if isinstance(own.get(name), bool) and (has_statistics or name.startswith("_"))
        ]
    return changes
