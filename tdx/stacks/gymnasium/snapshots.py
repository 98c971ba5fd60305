"""What a wrapper returned and keeps, as tensors by key, and the specs of its spaces."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from tdx.core.tracing.passages import is_same
from tdx.envs.gym import conversion  # noqa: F401 - registers the codecs of Dict and Tuple
from tdx.envs.gym.numeric_spaces import CodecOptions, tensor_dtype
from tdx.envs.gym.spaces import codec_of
from tdx.foundation.keys import NestedKey, split_key
from tdx.specs import Composite
from tdx.stacks.gymnasium.levels import Level, arguments_of
from tdx.stacks.observe.copies import LevelEntries, SharedPaths
from tdx.stacks.observe.events import ACTION, FLAGS, INFO, OBSERVATION, REWARD
from tdx.stacks.observe.traces import stack_rows
from tdx.stacks.sources import attributes_of

_MAX_INFO_DEPTH = 4


def space_specs(space: spaces.Space[object], key: str, num_envs: int | None) -> Composite:
    """Return the specs of a space; the entries of a ``Dict`` are nested below ``key``."""
    options = CodecOptions(num_envs, categorical=True, remap_state=False)
    spec = codec_of(space, options).spec
    if isinstance(space, spaces.Box) and not space.shape:
        # A codec gives scalars a dim of size 1, which the values of the env do not have.
        spec = spec.squeeze(-1)
    return Composite({key: spec}, shape=options.lead)


def observation_entries(space: spaces.Space[object], value: object) -> LevelEntries:
    """Return the entries of an observation, with the dtype and shape that it has."""
    return _entries(space, value, (OBSERVATION,))


def action_entries(space: spaces.Space[object], value: object) -> LevelEntries:
    """Return the entries of an action."""
    return _entries(space, value, (ACTION,))


def result_entries(result: object) -> LevelEntries:
    """Return the entries of reward, flags and info of a step, or the info of a reset."""
    entries: LevelEntries = {}
    if not isinstance(result, tuple) or len(result) not in (2, 5):
        return entries
    if len(result) == 5:
        reward = _to_tensor(result[1])
        entries[REWARD] = reward.to(torch.float64) if isinstance(reward, Tensor) else reward
        for name, value in zip(FLAGS, result[2:4], strict=True):
            entries[name] = _to_tensor(value)
    _add_info(entries, (INFO,), result[-1])
    return entries


def _add_info(entries: LevelEntries, key: tuple[str, ...], info: object) -> None:
    if not isinstance(info, Mapping):
        return
    for name, value in info.items():
        path = (*key, str(name))
        if isinstance(value, Mapping) and len(path) < _MAX_INFO_DEPTH:
            _add_info(entries, path, value)
        else:
            entries[path] = _to_tensor(value)


def _entries(space: object, value: object, key: tuple[str, ...]) -> LevelEntries:
    if isinstance(space, spaces.Dict) and isinstance(value, Mapping):
        entries: LevelEntries = {}
        for name, part in value.items():
            entries |= _entries(space.spaces.get(name), part, (*key, str(name)))
        return entries
    path: NestedKey = key if len(key) > 1 else key[0]
    if isinstance(space, spaces.Tuple) and isinstance(value, tuple | list):
        return _tuple_entries(space, value, key)
    if isinstance(space, spaces.Text | spaces.Sequence | spaces.Graph | spaces.OneOf):
        return {path: value}
    tensor = _to_tensor(value)
    start = getattr(space, "start", 0)
    if isinstance(tensor, Tensor) and not tensor.is_floating_point() and np.any(start):
        tensor = tensor - torch.as_tensor(np.asarray(start))
    return {path: tensor}


def _tuple_entries(space: spaces.Tuple[object], value: Any, key: tuple[str, ...]) -> LevelEntries:
    """Return the parts of a tuple, stacked if they have the same shape as in the spec."""
    path: NestedKey = key if len(key) > 1 else key[0]
    spec = codec_of(space, CodecOptions(None, categorical=True, remap_state=False)).spec
    if isinstance(spec, Composite) or len(value) != len(space.spaces):
        entries: LevelEntries = {}
        for index, part in enumerate(value):
            inner = space.spaces[index] if index < len(space.spaces) else None
            entries |= _entries(inner, part, (*key, str(index)))
        return entries
    parts = [_to_tensor(part) for part in value]
    if all(isinstance(part, Tensor) and part.shape == parts[0].shape for part in parts):
        # In a vector env the parts have a batch dim, which comes first.
        lead = parts[0].ndim - len(space.spaces[0].shape or ())
        return {path: torch.stack(parts, max(lead, 0))}
    return {path: value}


def _to_tensor(value: object) -> Any:
    """Return numbers as a tensor of the dtype that specs declare for theirs, else the value."""
    if isinstance(value, Tensor) or value is None or isinstance(value, str | bytes):
        return value
    try:
        array = np.asarray(value)
    except (ValueError, TypeError):
        return value
    if array.dtype.kind not in "biufc":
        return value
    try:
        dtype, _ = tensor_dtype(array.dtype.newbyteorder("="))
        return torch.from_numpy(array.astype(dtype, copy=False))
    except TypeError:
        return torch.from_numpy(array.astype(np.float64))


def overwritten_keys(
    shared: SharedPaths, old: LevelEntries, new: LevelEntries
) -> tuple[NestedKey, ...]:
    """Return the keys of an observation that replaced another value in the same memory."""
    keys = []
    for key, value in new.items():
        path = split_key(key)
        is_shared = any(path[: len(part) + 1] == (OBSERVATION, *part) for part in shared)
        if is_shared and key in old and not is_same(old[key], value):
            keys.append(key)
    return tuple(keys)


_SKIPPED = ("env", "envs", "spec", "np_random", "metadata", "render_mode")
_MAX_DEPTH = 3
_MAX_ITEMS = 10_000
"""Longer lists are histories, not state."""


def level_state(level: Level) -> dict[str, Tensor]:
    """Return copies of the numbers that a wrapper keeps; those of sub-envs are stacked.

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


def _numbers(owner: object) -> Iterator[tuple[str, Tensor]]:
    arguments = arguments_of(owner)
    skipped = {*_SKIPPED, *arguments, *(f"_{name}" for name in arguments)}
    # A setting that can change later is state, although it may be an argument.
    skipped -= {"update_running_mean", "_update_running_mean"}
    for name, value in attributes_of(owner).items():
        if name not in skipped and not name.startswith("_saved") and "space" not in name:
            yield from _leaves(name, value, 0)


def _leaves(name: str, value: object, depth: int) -> Iterator[tuple[str, Tensor]]:
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


def _tensor(value: object) -> Tensor | None:
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


def _is_record(value: object) -> bool:
    """Return True for a plain object of numbers, such as running statistics."""
    if callable(value) or isinstance(value, str | bytes | type) or value is None:
        return False
    if hasattr(value, "step") or hasattr(value, "sample"):
        return False
    attributes = attributes_of(value)
    return bool(attributes) and all(
        _tensor(attribute) is not None for attribute in attributes.values()
    )
