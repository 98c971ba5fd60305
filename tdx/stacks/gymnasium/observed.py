"""The levels of Gymnasium and Stable-Baselines3 for :mod:`tdx.stacks.observe`."""

from __future__ import annotations

import dis
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import FunctionType, ModuleType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from tdx.stacks.gymnasium.hooks import METHODS, replaced_methods
from tdx.stacks.gymnasium.levels import THIN_WRAPPERS, Level
from tdx.stacks.gymnasium.snapshots import (
    FLAGS,
    REWARD,
    action_entries,
    observation_entries,
)
from tdx.stacks.observe import LevelForm, Method, Slot
from tdx.stacks.observe.replay import Entries, OnCall, Originals
from tdx.stacks.replay import base_key, replaced_attributes
from tdx.stacks.sources import attributes_of

_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)


class ObservedLevels:
    """Levels of wrapper objects; see :class:`tdx.stacks.observe.Levels`.

    Args:
        target: The outermost object.
        levels: Its levels, the env inside first.
        vec_methods: Returns the methods that reset and step a VecEnv.
    """

    def __init__(
        self,
        target: Any,
        levels: Sequence[Level],
        vec_methods: Callable[[Any], Sequence[str]] | None = None,
    ) -> None:
        self._target, self._vec_methods = target, vec_methods
        self._levels = {level.index: level for level in levels}
        self._known_spaces: dict[int, tuple[Any, Any]] = {}
        self.num_rows = levels[-1].num_envs or 1
        self.top = self._form(levels[-1])

    def forms(self) -> dict[int, LevelForm]:
        """See :class:`tdx.stacks.observe.Levels`."""
        return {index: self._form(level) for index, level in self._levels.items()}

    def _form(self, level: Level) -> LevelForm:
        is_batch = level.num_envs is not None and not level.in_rows
        is_vec_env = self._vec_methods is not None and not level.in_rows
        return LevelForm("vec_env" if is_vec_env else "env", is_batch)

    def _spaces(self, index: int) -> tuple[Any, Any]:
        # The spaces of some levels are computed.
        known = self._known_spaces.get(index)
        if known is None:
            level = self._levels[index]
            known = self._known_spaces[index] = level.observation_space, level.action_space
        return known

    @contextmanager
    def hooked(self, on_call: OnCall, rows: int) -> Iterator[Originals]:
        """See :class:`tdx.stacks.observe.Levels`."""
        originals: dict[tuple[int, int, Method], Callable[..., Any]] = {}

        def wrap_for(slot: Slot) -> Any:
            def wrap(owner: Any, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
                method = cast(Method, name)
                originals[slot.level, slot.row, method] = original

                def call(*args: Any, **kwargs: Any) -> Any:
                    return on_call(slot, method, original, args, kwargs)

                return call

            return wrap

        # A monitor would write the replayed episodes into the log of the training.
        logged = [
            (owner, "results_writer", None)
            for level in self._levels.values()
            for owner in level.owners
            if "results_writer" in attributes_of(owner)
        ]
        with ExitStack() as stack:
            stack.enter_context(replaced_attributes(logged))
            for level in self._levels.values():
                form = self._form(level)
                owners = level.owners[:rows] if level.in_rows else level.owners
                for row, owner in enumerate(owners):
                    slot = Slot(level.index, row, form)
                    names: Sequence[str] = METHODS
                    if form.protocol == "vec_env":
                        assert self._vec_methods is not None
                        names = self._vec_methods(owner)
                    stack.enter_context(replaced_methods([(owner, wrap_for(slot))], names))
            yield originals

    def generators(self) -> list[Any]:
        """See :class:`tdx.stacks.observe.Levels`."""
        generators: dict[int, Any] = {}
        for level in self._levels.values():
            for owner in level.owners:
                for generator in _generators_of(owner, is_base=level.index < 0):
                    generators[id(generator)] = generator
        return list(generators.values())

    def begin(self, seed: int) -> None:
        """See :class:`tdx.stacks.observe.Levels`."""
        base = self._levels.get(-1)
        if base is None:
            return
        if self._form(base).protocol == "vec_env":
            base.owner.reset()
            return
        index = -1
        while index + 1 in self._levels and self._is_watcher(self._levels[index + 1], base):
            index += 1
        for row, owner in enumerate(self._levels[index].owners):
            owner.reset(seed=seed + row)

    @staticmethod
    def _is_watcher(level: Level, base: Level) -> bool:
        """Return True for wrappers that check, count or log the calls of the env."""
        is_around_rows = level.in_rows == base.in_rows and level.num_envs == base.num_envs
        return is_around_rows and (
            type(level.owner) in THIN_WRAPPERS or "results_writer" in attributes_of(level.owner)
        )

    def call(self, method: Method, argument: Any) -> Any:
        """See :class:`tdx.stacks.observe.Levels`."""
        function = getattr(self._target, method)
        if method == "step_wait":
            return function()
        if method == "reset":
            return function() if self.top.protocol == "vec_env" else function(**argument)
        return function(argument)

    def assigned_names(self, index: int) -> set[str]:
        """See :class:`tdx.stacks.observe.Levels`."""
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

    def given_entries(self, slot: Slot, given: Any) -> Entries:
        """See :class:`tdx.stacks.observe.Levels`."""
        return _rowed(slot, action_entries(self._spaces(slot.level)[1], given))

    def returned_entries(self, slot: Slot, method: Method, returned: Any) -> Entries:
        """See :class:`tdx.stacks.observe.Levels`."""
        space = self._spaces(slot.level)[0]
        if slot.form.protocol == "vec_env" and method == "reset":
            returned = (returned,)
        if not isinstance(returned, tuple) or not returned:
            return {}
        entries: dict[Any, Any] = {
            base_key(key): value for key, value in observation_entries(space, returned[0]).items()
        }
        if len(returned) == 5:
            names: Sequence[str] = (REWARD, *FLAGS)
            entries |= dict(zip(names, returned[1:4], strict=True))
        elif len(returned) == 4:
            entries |= {REWARD: returned[1], "done": returned[2]}
        return _rowed(slot, entries)


def _rowed(slot: Slot, entries: Mapping[Any, Any]) -> Entries:
    """Return the numbers among some entries with a dim for the sub-envs."""
    rowed: dict[Any, Tensor] = {}
    for key, value in entries.items():
        if isinstance(value, str):
            # A text is compared by its characters.
            value = torch.tensor(list(value.encode("utf-8")), dtype=torch.uint8)
        if not isinstance(value, Tensor):
            try:
                value = torch.as_tensor(np.asarray(value))
            except (TypeError, ValueError):
                continue
        if key == REWARD:
            value = value.to(torch.float64)
        rowed[key] = value if slot.form.is_batch and value.ndim else value.unsqueeze(0)
    return rowed


def _generators_of(owner: Any, *, is_base: bool) -> Iterator[Any]:
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
