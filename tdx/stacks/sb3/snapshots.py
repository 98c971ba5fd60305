"""Copies of what a VecEnv returned as tensors by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from tdx.keys import NestedKey
from tdx.stacks.gymnasium.capture import Entries
from tdx.stacks.gymnasium.snapshots import (
    INFO,
    OBSERVATION,
    REWARD,
    observation_entries,
    result_entries,
    stack_rows,
)

DONE = "done"
TERMINAL = "terminal_observation"
LIMITED: NestedKey = (INFO, "TimeLimit.truncated")
"""Key of the infos that tells a truncation from a termination."""


def step_entries(space: Any, result: Any) -> Entries:
    """Return the entries of a result of ``step_wait``: observation, reward, done and infos.

    Args:
        space: Space of the observations of one env.
        result: Copy of the result.
    """
    if not isinstance(result, tuple) or len(result) != 4:
        return {}
    observation, reward, done, infos = result
    entries = observation_entries(space, observation)
    entries[REWARD] = torch.as_tensor(reward).to(torch.float64)
    entries[DONE] = torch.as_tensor(done)
    return entries | info_entries(infos) | terminal_entries(space, infos)


def info_entries(infos: Sequence[Mapping[str, Any]]) -> Entries:
    """Return the entries of the infos of all sub-envs, lists with ``None`` for missing values.

    Args:
        infos: Info of each sub-env.

    Example:
        >>> info_entries([{"x": 1.0, "lives": 3}, {"x": 2.0}])[("info", "lives")]
        [tensor(3), None]
    """
    rows = [
        result_entries((None, {name: value for name, value in info.items() if name != TERMINAL}))
        for info in infos
    ]
    return merge_rows(rows)


def merge_rows(rows: Sequence[Entries]) -> Entries:
    """Merge entries of sub-envs, ``[N, ...]`` each; ``None`` in a list stands for a missing one."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: stack_rows([row.get(key) for row in rows]) for key in keys}


def terminal_entries(space: Any, infos: Sequence[Mapping[str, Any]]) -> Entries:
    """Return the last observations of the episodes that ended, ``[D, ...]`` for D sub-envs.

    Args:
        space: Space of the observations of one env.
        infos: Info of each sub-env.
    """
    rows = [_terminal_row(space, info[TERMINAL]) for info in infos if TERMINAL in info]
    return {terminal_key(key): value for key, value in merge_rows(rows).items()}


def _terminal_row(space: Any, value: Any) -> Entries:
    """Return the entries of an observation that need not have the structure of the space."""
    if not isinstance(value, Mapping) or isinstance(space, spaces.Dict):
        return observation_entries(space, value)
    parts = {str(name): part for name, part in value.items()}
    return observation_entries(spaces.Dict({}), parts)


def terminal_key(key: NestedKey) -> NestedKey:
    """Return the key in ``info`` of the last observation, for a key of the observation.

    Example:
        >>> terminal_key(("observation", "image"))
        ('info', 'terminal_observation', 'image')
    """
    parts = (key,) if isinstance(key, str) else key
    return (INFO, TERMINAL, *parts[1:])


def next_observations(entries: Mapping[NestedKey, Any]) -> Entries:
    """Return the observations with the last one of each episode that ended, by key.

    A VecEnv returns the first observation of the next episode instead.

    Args:
        entries: Values of a step after its outermost stage.
    """
    done = entries.get(DONE)
    found: Entries = {}
    for key, value in entries.items():
        if key != OBSERVATION and not (isinstance(key, tuple) and key[0] == OBSERVATION):
            continue
        last = entries.get(terminal_key(key))
        if not (isinstance(last, Tensor) and isinstance(done, Tensor) and done.ndim == 1):
            continue
        if last.shape[1:] == value.shape[1:] and len(last) == int(done.sum()):
            replaced = value.clone()
            replaced[done] = last.to(value.dtype)
            found[key] = replaced
    return found


def end_flags(entries: Mapping[NestedKey, Any]) -> Entries:
    """Return why the episodes of a step ended, which a VecEnv only tells in the infos.

    Args:
        entries: Values of a step after its outermost stage.

    Example:
        >>> done = torch.tensor([True, True])
        >>> flags = end_flags({"done": done, LIMITED: [torch.tensor(True), None]})
        >>> flags["terminated"], flags["truncated"]
        (tensor([False,  True]), tensor([ True, False]))
    """
    done = entries.get(DONE)
    if not (isinstance(done, Tensor) and done.ndim == 1):
        return {}
    infos = entries.get(LIMITED)
    rows = (
        [False] * len(done)
        if infos is None
        else [each is not None and bool(each) for each in infos]
    )
    truncated = done & torch.tensor(rows)
    return {"terminated": done & ~truncated, "truncated": truncated}
