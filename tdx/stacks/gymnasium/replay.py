"""Replace the env inside a Gymnasium or Stable-Baselines3 stack by recorded results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from tdx.foundation.patches import Patches, instance_dict
from tdx.stacks.gymnasium.levels import Level
from tdx.stacks.gymnasium.snapshots import observation_entries, result_entries
from tdx.stacks.observe import LevelForm
from tdx.stacks.observe.events import ACTION, FLAGS, OBSERVATION, REWARD
from tdx.stacks.replay import BaseCalls, Entries, base_key, fit
from tdx.stacks.sources import attributes_of

_LEARNING = ("_update_running_mean", "training")
"""Attributes that switch the updates of running statistics."""


@contextmanager
def replaced_env(levels: Sequence[Level], form: LevelForm, calls: BaseCalls) -> Iterator[None]:
    """Answer the calls of the env inside in a block.

    Args:
        levels: Levels of the stack, the env inside first.
        form: How the env inside is called.
        calls: Answers the calls.
    """
    inside = levels[0]
    with Patches() as patches:
        for row, owner in enumerate(inside.owners):
            rows = tuple(range(inside.num_envs or 1)) if form.is_batch else (row,)
            base = _Base(owner, inside.observation_space, rows, form, calls)
            steps = ("step_async", "step_wait") if form.protocol == "vec_env" else ("step",)
            for name in ("reset", *steps):
                patches.put(owner, name, getattr(base, name))
        yield


class _Base:
    """The methods of one env inside, with results from ``calls``.

    Args:
        owner: The env.
        space: Space of the observations of one env.
        rows: Sub-envs that it steps.
        form: How it is called.
        calls: Answers the calls.
    """

    def __init__(
        self,
        owner: Any,
        space: spaces.Space[Any],
        rows: tuple[int, ...],
        form: LevelForm,
        calls: BaseCalls,
    ) -> None:
        self._rows, self._calls, self._space = rows, calls, space
        self._is_batch, self._is_vec_env = form.is_batch, form.protocol == "vec_env"
        self._reset, self._step = owner.reset, owner.step
        if self._is_vec_env:
            self._async, self._wait = owner.step_async, owner.step_wait

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        info: list[Any] = [{}]

        def run() -> Entries:
            result = self._reset(*args, **kwargs)
            observation = result
            if not self._is_vec_env:
                observation, info[0] = result
            return self._entries(observation)

        entries = self._calls.answer(self._rows, "reset", run)
        observation = self._observation(entries)
        return observation if self._is_vec_env else (observation, dict(info[0]))

    def step(self, *args: Any, **kwargs: Any) -> Any:
        def run() -> Entries:
            result = self._step(*args, **kwargs)
            entries = self._entries(result[0])
            for key, value in result_entries(result).items():
                if key in (REWARD, *FLAGS) or (isinstance(value, Tensor) and not self._is_batch):
                    entries[key] = self._rowed(value)
            return entries

        entries = self._calls.answer(self._rows, "step", run)
        reward = entries[REWARD].numpy().astype(np.float64)
        flags = [entries[name].numpy().astype(np.bool_) for name in FLAGS]
        observation, info = self._observation(entries), self._info(entries)
        if self._is_batch:
            return observation, reward, *flags, info
        # The reward of a multi-objective env is a vector.
        single = float(reward[0]) if reward.ndim == 1 else reward[0]
        return observation, single, bool(flags[0][0]), bool(flags[1][0]), info

    def step_async(self, actions: Any) -> None:
        self._actions = actions

    def step_wait(self) -> Any:
        def run() -> Entries:
            self._async(self._actions)
            observation, reward, done, _ = self._wait()
            found = self._entries(observation)
            found[REWARD] = torch.as_tensor(np.asarray(reward, np.float64))
            found["terminated"] = torch.as_tensor(np.asarray(done, np.bool_))
            found["truncated"] = torch.zeros_like(found["terminated"])
            return found

        entries = self._calls.answer(self._rows, "step", run)
        done = (entries["terminated"] | entries["truncated"]).numpy()
        reward = entries[REWARD].numpy().astype(np.float32)
        return self._observation(entries), reward, done, [{} for _ in self._rows]

    def _entries(self, observation: Any) -> Entries:
        entries = observation_entries(self._space, observation)
        return {
            base_key(key): self._rowed(value)
            for key, value in entries.items()
            if isinstance(value, Tensor)
        }

    def _rowed(self, value: Any) -> Tensor:
        tensor = torch.as_tensor(value)
        return tensor if self._is_batch else tensor.unsqueeze(0)

    def _info(self, entries: Entries) -> dict[str, Any]:
        info: dict[str, Any] = {}
        for key, value in entries.items():
            if isinstance(key, tuple) and key[0] == "info" and not self._is_batch:
                target = info
                for part in key[1:-1]:
                    target = target.setdefault(part, {})
                item = value[0].numpy()
                target[key[-1]] = item.item() if item.ndim == 0 else item
        return info

    def _observation(self, entries: Entries) -> Any:
        if self._is_batch:
            return build_batch(self._space, entries, len(self._rows))
        single = {key: value[0] for key, value in entries.items()}
        return build_value(self._space, single, (OBSERVATION,))


def build_batch(space: spaces.Space[Any], entries: Entries, count: int) -> Any:
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


def _below(entries: Entries, name: str) -> Entries:
    entries_below: Entries = {}
    for key, value in entries.items():
        parts = (key,) if isinstance(key, str) else key
        if parts[0] == name:
            inner = parts[1:]
            entries_below[OBSERVATION if not inner else base_key((OBSERVATION, *inner))] = value
    return entries_below


def build_value(space: spaces.Space[Any], entries: Mapping[Any, Any], key: tuple[str, ...]) -> Any:
    """Return a value of a space; entries that are missing or of another shape become zeros.

    Args:
        space: Space of one env.
        entries: Values by key, without a batch dim.
        key: Key of the value.
    """
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


def _plain(key: tuple[str, ...]) -> Any:
    return base_key(key if len(key) > 1 else key[0])


def build_action(space: spaces.Space[Any], entries: Entries, num_envs: int | None) -> Any:
    """Return the action of an env from entries ``[R, ...]``; rows are repeated if necessary.

    Args:
        space: Space of the action of one env.
        entries: Values by key; an entry of a ``Dict`` is nested below ``action``.
        num_envs: Number of sub-envs; ``None`` for a single env.
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


def _stack(rows: list[Any]) -> Any:
    first = rows[0]
    if isinstance(first, dict):
        return {name: _stack([row[name] for row in rows]) for name in first}
    if isinstance(first, tuple):
        return tuple(_stack([row[i] for row in rows]) for i in range(len(first)))
    return np.stack([np.asarray(row) for row in rows])


def learning_switches(owners: Iterable[Any]) -> list[tuple[Any, str, Any]]:
    """Return the changes that stop the updates of running statistics.

    Args:
        owners: Wrappers.
    """
    changes: list[tuple[Any, str, Any]] = []
    for owner in owners:
        own = instance_dict(owner) or {}
        has_statistics = any("rms" in name or "stat" in name for name in attributes_of(owner))
        changes += [
            (owner, name, False)
            for name in _LEARNING
            if isinstance(own.get(name), bool) and (has_statistics or name.startswith("_"))
        ]
    return changes
