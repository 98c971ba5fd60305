"""The levels of a VecEnv, as :mod:`tdx.stacks.observe` calls and reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from tdx.core.meter import Lane
from tdx.foundation.keys import NestedKey, split_key
from tdx.stacks.gymnasium.building import build_batch
from tdx.stacks.gymnasium.levels import Level
from tdx.stacks.gymnasium.observed import WrapperLevels
from tdx.stacks.gymnasium.snapshots import observation_entries, result_entries
from tdx.stacks.observe import Event, LevelForm, Method, RowEntries, Slot
from tdx.stacks.observe.copies import Below, LevelEntries, freeze
from tdx.stacks.observe.events import FLAGS, INFO, OBSERVATION, REWARD
from tdx.stacks.observe.traces import stack_rows
from tdx.stacks.sb3.levels import VecLevel, passes_actions_on, vec_methods
from tdx.stacks.sources import attributes_of

DONE = "done"
TERMINAL = "terminal_observation"
LIMITED: NestedKey = (INFO, "TimeLimit.truncated")
"""Key of the infos that tells a truncation from a termination."""


def step_entries(space: Any, result: Any) -> LevelEntries:
    """Return the entries of a result of ``step_wait``: observation, reward, done and infos."""
    if not isinstance(result, tuple) or len(result) != 4:
        return {}
    observation, reward, done, infos = result
    entries = observation_entries(space, observation)
    entries[REWARD] = torch.as_tensor(reward).to(torch.float64)
    entries[DONE] = torch.as_tensor(done)
    return entries | info_entries(infos) | terminal_entries(space, infos)


def info_entries(infos: Sequence[Mapping[str, object]]) -> LevelEntries:
    """Return the entries of the infos of all sub-envs, lists with ``None`` for missing values.

    Example:
        >>> info_entries([{"x": 1.0, "lives": 3}, {"x": 2.0}])[("info", "lives")]
        [tensor(3), None]
    """
    rows = [
        result_entries((None, {name: value for name, value in info.items() if name != TERMINAL}))
        for info in infos
    ]
    return merge_rows(rows)


def merge_rows(rows: Sequence[LevelEntries]) -> LevelEntries:
    """Merge entries of sub-envs, ``[N, ...]`` each; ``None`` in a list stands for a missing one."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: stack_rows([row.get(key) for row in rows]) for key in keys}


def terminal_entries(space: Any, infos: Sequence[Mapping[str, Any]]) -> LevelEntries:
    """Return the last observations of the episodes that ended, ``[D, ...]`` for D sub-envs."""
    rows = []
    for value in (info[TERMINAL] for info in infos if TERMINAL in info):
        own = space
        if isinstance(value, Mapping) and not isinstance(space, spaces.Dict):
            # An observation of the sub-env need not have the structure of the space.
            own, value = spaces.Dict({}), {str(name): part for name, part in value.items()}
        rows.append(observation_entries(own, value))
    return {terminal_key(key): value for key, value in merge_rows(rows).items()}


def terminal_key(key: NestedKey) -> NestedKey:
    """Return the key in ``info`` of the last observation, for a key of the observation.

    Example:
        >>> terminal_key(("observation", "image"))
        ('info', 'terminal_observation', 'image')
    """
    parts = (key,) if isinstance(key, str) else key
    return (INFO, TERMINAL, *parts[1:])


def next_observations(entries: Mapping[NestedKey, Any]) -> LevelEntries:
    """Return the observations with the last one of each episode that ended, by key.

    A VecEnv returns the first observation of the next episode instead.
    """
    done = entries.get(DONE)
    observations: LevelEntries = {}
    for key, value in entries.items():
        if key != OBSERVATION and not (isinstance(key, tuple) and key[0] == OBSERVATION):
            continue
        last = entries.get(terminal_key(key))
        if not (isinstance(last, Tensor) and isinstance(done, Tensor) and done.ndim == 1):
            continue
        if last.shape[1:] == value.shape[1:] and len(last) == int(done.sum()):
            replaced = value.clone()
            replaced[done] = last.to(value.dtype)
            observations[key] = replaced
    return observations


def end_flags(entries: Mapping[NestedKey, Any]) -> LevelEntries:
    """Return why the episodes of a step ended, which a VecEnv only tells in the infos.

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
        else [info is not None and bool(info) for info in infos]
    )
    truncated = done & torch.tensor(rows)
    return {"terminated": done & ~truncated, "truncated": truncated}


class VecEnvLevels(WrapperLevels):
    """Levels of a VecEnv: those of its sub-envs, its own, and those of its wrappers.

    A step consists of the calls of ``step_async`` and those of ``step_wait``.
    """

    def _form(self, level: Level) -> LevelForm:
        return super()._form(level) if level.in_rows else LevelForm("vec_env", True)

    def _slots(self, level: Level, row: int, owner: object) -> Iterator[Slot]:
        if level.in_rows:
            yield from super()._slots(level, row, owner)
            return
        form = self.forms()[level.index]
        is_core = isinstance(level, VecLevel) and level.is_core
        copy_reset = partial(_copy_reset, owner if is_core else None)
        yield Slot(level.index, row, form, "reset", owner, copy_reset)
        yield Slot(level.index, row, form, "step_async", owner, None)
        yield Slot(level.index, row, form, "step_wait", owner)
        if "step" in vec_methods(owner):
            yield Slot(level.index, row, form, "step", owner)

    def base_entries(self, slot: Slot, result: Any) -> RowEntries:
        if slot.form.protocol == "env":
            return super().base_entries(slot, result)
        if slot.method == "reset":
            return self._base_observation(slot, result)
        observation, reward, done, _ = result
        entries = self._base_observation(slot, observation)
        entries[REWARD] = torch.as_tensor(np.asarray(reward, np.float64))
        entries["terminated"] = torch.as_tensor(np.asarray(done, np.bool_))
        entries["truncated"] = torch.zeros_like(entries["terminated"])
        return entries

    def base_result(self, slot: Slot, entries: RowEntries, live: object) -> Any:
        if slot.form.protocol == "env":
            return super().base_result(slot, entries, live)
        observation = build_batch(self._spaces(-1)[0], entries, self.num_rows)
        if slot.method == "reset":
            return observation
        done = (entries["terminated"] | entries["truncated"]).numpy()
        reward = entries[REWARD].numpy().astype(np.float32)
        return observation, reward, done, [{} for _ in range(self.num_rows)]

    def lane(self, slot: Slot) -> Lane | None:
        if slot.form.protocol == "env" or slot.method in ("reset", "step"):
            return super().lane(slot)
        if "step" in vec_methods(slot.owner):
            # It contains both halves.
            return None
        if slot.method == "step_wait":
            return "step"
        return None if passes_actions_on(slot.owner) else "inverse"

    def returned_entries(self, index: int, method: Method, returned: Any) -> LevelEntries:
        """See :class:`~tdx.stacks.observe.Levels`; a reset returns no infos, its copy has them."""
        if self.forms()[index].protocol == "env":
            return super().returned_entries(index, method, returned)
        space = self._spaces(index)[0]
        if method != "reset":
            return step_entries(space, returned)
        observation, *infos = returned
        entries = observation_entries(space, observation)
        return entries | info_entries(infos[0]) if infos else entries

    def complete_reset(
        self, index: int, entries: LevelEntries, current: LevelEntries
    ) -> LevelEntries:
        """See :class:`~tdx.stacks.observe.Levels`; wrappers keep the infos."""
        done = torch.zeros(self.num_rows, dtype=torch.bool)
        level = self._levels[index]
        if level.in_rows:
            entries.pop(REWARD, None)
            return entries | dict.fromkeys(FLAGS, done)
        entries[DONE] = done
        if isinstance(level, VecLevel) and not level.is_core:
            entries |= {key: value for key, value in current.items() if split_key(key)[0] == INFO}
        return entries

    def merge_infos(self, rows: Sequence[LevelEntries]) -> LevelEntries:
        return merge_rows(rows)

    def find_autoresets(self, root: Event) -> set[int]:
        """See :class:`~tdx.stacks.observe.Levels`; resets that a VecEnv makes in a step."""
        forms = self.forms()
        return {
            id(inner)
            for event in root.walk()
            if forms[event.level].protocol == "vec_env"
            for child in event.children
            if child.method == "reset"
            for inner in child.walk()
        }

    def next_entries(self, current: LevelEntries) -> LevelEntries:
        """See :class:`~tdx.stacks.observe.Levels`.

        ``next`` has the last observation of each episode, and why it ended.
        """
        return next_observations(current) | end_flags(current)

    def begin(self, seed: int) -> None:
        base = self._levels.get(-1)
        if base is not None and not base.in_rows:
            base.owner.reset()
            # Its reset takes no seed, so that of the next one is set here.
            base.owner.seed(seed)
        else:
            super().begin(seed)

    def call(self, method: Method, argument: object) -> object:
        function = getattr(self._target, method)
        return function() if method in ("reset", "step_wait") else function(argument)


def _copy_reset(core: object, result: object, below: Below) -> tuple[object, ...] | None:
    """Copy the first observations, and the infos, which the VecEnv of the sub-envs keeps."""
    try:
        if core is None:
            return (freeze(result),)
        return freeze(result), freeze(attributes_of(core).get("reset_infos", ()))
    except Exception:
        return None
