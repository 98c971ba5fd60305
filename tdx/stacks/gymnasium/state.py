"""State of Gymnasium wrappers as named tensors: statistics, counters, queues."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdx.stacks.gymnasium.levels import Level, arguments_of
from tdx.stacks.gymnasium.snapshots import stack_rows
from tdx.stacks.sources import attributes_of

_SKIPPED = ("env", "envs", "spec", "np_random", "metadata", "render_mode")
_MAX_DEPTH = 3
_MAX_ITEMS = 10_000
"""Longer lists are histories, not state."""


def level_state(level: Level) -> dict[str, Tensor]:
    """Return copies of the numbers that a wrapper keeps; those of sub-envs are stacked.

    Args:
        level: The level.

    Example:
        >>> import gymnasium
        >>> from tdx.stacks.gymnasium.levels import list_levels
        >>> env = gymnasium.wrappers.NormalizeObservation(gymnasium.make("Pendulum-v1"))
        >>> sorted(level_state(list_levels(env)[-1]))
        ['_update_running_mean', 'obs_rms.count', 'obs_rms.mean', 'obs_rms.var']
    """
    rows = [dict(_numbers(owner)) for owner in level.owners]
    if not level.in_rows:
        return rows[0]
    shared = [name for name in rows[0] if all(name in row for row in rows)]
    stacked = {name: stack_rows([row[name] for row in rows]) for name in shared}
    return {name: value for name, value in stacked.items() if isinstance(value, Tensor)}


def _numbers(owner: Any) -> Iterator[tuple[str, Tensor]]:
    arguments = arguments_of(owner)
    skipped = {*_SKIPPED, *arguments, *(f"_{name}" for name in arguments)}
    # A setting that can change later is state, although it may be an argument.
    skipped -= {"update_running_mean", "_update_running_mean"}
    for name, value in attributes_of(owner).items():
        if name not in skipped and not name.startswith("_saved") and "space" not in name:
            yield from _leaves(name, value, 0)


def _leaves(name: str, value: Any, depth: int) -> Iterator[tuple[str, Tensor]]:
    tensor = _tensor(value)
    if tensor is not None:
        yield name, tensor
    elif depth < _MAX_DEPTH:
        parts: Mapping[Any, Any] = {}
        if isinstance(value, Mapping):
            parts = value
        elif _is_record(value):
            parts = attributes_of(value)
        for part, inner in list(parts.items())[:_MAX_ITEMS]:
            yield from _leaves(f"{name}.{part}", inner, depth + 1)


def _tensor(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, deque | list | tuple):
        if not value or len(value) > _MAX_ITEMS:
            return None
        value = list(value)
    elif not isinstance(value, bool | int | float | np.generic | np.ndarray):
        return None
    try:
        array = np.array(value)
    except ValueError:
        return None
    if array.dtype.kind not in "biuf":
        return None
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    return torch.from_numpy(array)


def _is_record(value: Any) -> bool:
    """Return True for a plain object of numbers, such as running statistics."""
    if callable(value) or isinstance(value, str | bytes | type) or value is None:
        return False
    if hasattr(value, "step") or hasattr(value, "sample"):
        return False
    attributes = attributes_of(value)
    return bool(attributes) and all(_tensor(each) is not None for each in attributes.values())
