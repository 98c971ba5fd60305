"""The levels of Gymnasium's wrappers, as :mod:`tdx.stacks.observe` calls and reads them."""

from __future__ import annotations

import dis
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from tdx.core.meter import Lane
from tdx.foundation.keys import NestedKey
from tdx.foundation.patches import Patches
from tdx.stacks.gymnasium.building import build_batch, build_info, build_value
from tdx.stacks.gymnasium.inner_preprocessing import is_envpool
from tdx.stacks.gymnasium.levels import THIN_WRAPPERS, Level
from tdx.stacks.gymnasium.snapshots import (
    action_entries,
    observation_entries,
    overwritten_keys,
    result_entries,
)
from tdx.stacks.observe import Event, LevelForm, Method, NestedLevels, RowEntries, Slot, base_key
from tdx.stacks.observe.copies import LevelEntries
from tdx.stacks.observe.events import FLAGS, OBSERVATION, REWARD
from tdx.stacks.sources import attributes_of

_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)


class WrapperLevels(NestedLevels):
    """Levels of wrapper objects.

    Spaces are read once: those of some levels are computed.
    """

    def __init__(self, target: Any, levels: Sequence[Level], env_name: str) -> None:
        self._target, self._env_name = target, env_name
        self._levels = {level.index: level for level in levels}
        self._known_spaces: dict[int, tuple[Any, Any]] = {}
        self._same_entries: dict[tuple[int, int, bool], bool] = {}
        self.num_envs, self.top = levels[-1].num_envs, levels[-1].index

    def forms(self) -> Mapping[int, LevelForm]:
        return self._forms

    @cached_property
    def _forms(self) -> dict[int, LevelForm]:
        return {index: self._form(level) for index, level in self._levels.items()}

    def _form(self, level: Level) -> LevelForm:
        return LevelForm("env", level.num_envs is not None and not level.in_rows)

    def name(self, index: int) -> str:
        return self._env_name if index < 0 else self._levels[index].name

    def count_rows(self, index: int) -> int | None:
        level = self._levels[index]
        return len(level.owners) if level.in_rows else None

    def _spaces(self, index: int) -> tuple[Any, Any]:
        known = self._known_spaces.get(index)
        if known is None:
            level = self._levels[index]
            known = self._known_spaces[index] = level.observation_space, level.action_space
        return known

    def slots(self, rows: int | None = None) -> Iterator[Slot]:
        # The same object may be several sub-envs.
        known: set[int] = set()
        for level in self._levels.values():
            owners = level.owners[:rows] if level.in_rows else level.owners
            for row, owner in enumerate(owners):
                if id(owner) not in known:
                    known.add(id(owner))
                    yield from self._slots(level, row, owner)

    def _slots(self, level: Level, row: int, owner: object) -> Iterator[Slot]:
        form = self._forms[level.index]
        yield Slot(level.index, row, form, "reset", owner)
        yield Slot(level.index, row, form, "step", owner)

    def base_entries(self, slot: Slot, result: Any) -> RowEntries:
        is_batch = slot.form.is_batch
        entries = self._base_observation(slot, result[0])
        for key, value in {} if slot.method == "reset" else result_entries(result).items():
            # The infos of a vector env are those of its sub-envs, which merge them again.
            if key in (REWARD, *FLAGS) or (isinstance(value, Tensor) and not is_batch):
                tensor = torch.as_tensor(value)
                entries[key] = tensor if is_batch else tensor.unsqueeze(0)
        return entries

    def _base_observation(self, slot: Slot, observation: object) -> RowEntries:
        return {
            base_key(key): value if slot.form.is_batch else value.unsqueeze(0)
            for key, value in observation_entries(self._spaces(-1)[0], observation).items()
            if isinstance(value, Tensor)
        }

    def base_result(self, slot: Slot, entries: RowEntries, live: Any) -> Any:
        space, is_batch = self._spaces(-1)[0], slot.form.is_batch
        if is_batch:
            observation = build_batch(space, entries, self.num_rows)
        else:
            single = {key: value[0] for key, value in entries.items()}
            observation = build_value(space, single, (OBSERVATION,))
        if slot.method == "reset":
            return observation, {} if live is None else dict(live[1])
        reward = entries[REWARD].numpy().astype(np.float64)
        flags = [entries[name].numpy().astype(np.bool_) for name in FLAGS]
        if is_batch:
            return observation, reward, *flags, {}
        # The reward of a multi-objective env is a vector.
        number = float(reward[0]) if reward.ndim == 1 else reward[0]
        return observation, number, bool(flags[0][0]), bool(flags[1][0]), build_info(entries)

    def lane(self, slot: Slot) -> Lane | None:
        return "reset" if slot.method == "reset" else "step"

    def given_entries(self, index: int, given: object) -> LevelEntries:
        return action_entries(self._spaces(index)[1], given)

    def returned_entries(self, index: int, method: Method, returned: Any) -> LevelEntries:
        observation = observation_entries(self._spaces(index)[0], returned[0])
        return {**observation, **result_entries(returned)}

    def has_same_entries(self, one: int, other: int, *, of_actions: bool) -> bool:
        key = (one, other, of_actions)
        known = self._same_entries.get(key)
        if known is None:
            kinds = {type(self._spaces(index)[of_actions]) for index in (one, other)}
            levels = self._levels[one], self._levels[other]
            known = kinds == {Box} and levels[0].in_rows == levels[1].in_rows
            self._same_entries[key] = known
        return known

    def overwritten_keys(self, event: Event, entries: LevelEntries) -> Sequence[NestedKey]:
        old = observation_entries(self._spaces(event.level)[0], event.previous)
        return overwritten_keys(event.shared, old, entries)

    def complete_reset(
        self, index: int, entries: LevelEntries, current: LevelEntries
    ) -> LevelEntries:
        """See :class:`~tdx.stacks.observe.Levels`; the flags are those of the env inside."""
        entries.pop(REWARD, None)
        size = () if self.num_envs is None else (self.num_envs,)
        for name in FLAGS:
            entries[name] = current.get(name, torch.zeros(size, dtype=torch.bool))
        return entries

    @contextmanager
    def silenced(self) -> Iterator[None]:
        """See :class:`~tdx.stacks.observe.Levels`.

        A monitor would write the replayed episodes into the log of the training.
        """
        with Patches() as patches:
            for level in self._levels.values():
                for owner in level.owners:
                    if "results_writer" in attributes_of(owner):
                        patches.put(owner, "results_writer", None)
            yield

    def generators(self) -> list[object]:
        generators: dict[int, object] = {}
        for level in self._levels.values():
            for owner in level.owners:
                for generator in _generators_of(owner, is_base=level.index < 0):
                    generators[id(generator)] = generator
        return list(generators.values())

    def begin(self, seed: int) -> None:
        base = self._levels.get(-1)
        if base is None:
            return
        index = -1
        while index + 1 in self._levels and self._is_watcher(self._levels[index + 1], base):
            index += 1
        for row, owner in enumerate(self._levels[index].owners):
            # An env of envpool warns that it ignores the seed.
            owner.reset(seed=None if is_envpool(owner) else seed + row)

    @staticmethod
    def _is_watcher(level: Level, base: Level) -> bool:
        """Return True for wrappers that check, count or log the calls of the env."""
        is_around_rows = level.in_rows == base.in_rows and level.num_envs == base.num_envs
        return is_around_rows and (
            type(level.owner) in THIN_WRAPPERS or "results_writer" in attributes_of(level.owner)
        )

    def call(self, method: Method, argument: Any) -> Any:
        return self._target.reset(**argument) if method == "reset" else self._target.step(argument)

    def assigned_names(self, index: int) -> set[str]:
        level = self._levels.get(index)
        if level is None:
            return set()
        functions = [
            function
            for kind in type(level.owner).__mro__
            for name in ("reset", "step", "step_async", "step_wait")
            if isinstance(function := vars(kind).get(name), FunctionType)
        ]
        return {
            str(instruction.argval)
            for function in functions
            for instruction in dis.get_instructions(function)
            if instruction.opname == "STORE_ATTR"
        }


def _generators_of(owner: object, *, is_base: bool) -> Iterator[object]:
    """Yield the generators that an env or wrapper, its parts and its spaces hold."""
    for value in attributes_of(owner).values():
        if isinstance(value, _GENERATORS):
            yield value
        elif not isinstance(value, ModuleType) and not hasattr(value, "step"):
            for inner in attributes_of(value).values():
                if isinstance(inner, _GENERATORS):
                    yield inner
    if is_base:
        # The env creates its generator when it is asked for it.
        generator = getattr(owner, "np_random", None)
        if isinstance(generator, _GENERATORS):
            yield generator
