"""What stacks of wrapper objects share: Gymnasium's and those of Stable-Baselines3."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from tdx.core import StageSpecs
from tdx.core.meter import Meter
from tdx.foundation.errors import (
    ArgumentError,
    EnvError,
    SpecError,
    TdxError,
    Where,
    get_first_line,
)
from tdx.foundation.html_repr import repr_html
from tdx.foundation.patches import Patches
from tdx.pipeline.factories import is_closed
from tdx.specs import Binary, Composite, Unbounded
from tdx.stacks.gymnasium.building import build_action, learning_switches
from tdx.stacks.gymnasium.levels import Level, env_name, place_of_error
from tdx.stacks.gymnasium.observed import WrapperLevels
from tdx.stacks.gymnasium.snapshots import level_state, space_specs
from tdx.stacks.observe import Actor, Event, LastResults, RowEntries, locate, timed_levels, traced
from tdx.stacks.observe.events import ACTION, FLAGS, INFO, OBSERVATION
from tdx.stacks.stack import Stack, StackState, StageInfo
from tdx.stacks.states import write_number
from tdx.stacks.tracer import OnTrace


class LevelStack(Stack):
    """A stack whose stages are objects around an env, with Gymnasium's spaces.

    A subclass lists the levels and has a driver. Where their methods or results are others than
    Gymnasium's, ``level_type`` is a subclass of :class:`WrapperLevels`.
    """

    _repr_html_ = repr_html
    free_keys = (INFO,)
    attaches_to_runs = True
    level_type: type[WrapperLevels] = WrapperLevels
    value_shape: tuple[int, ...] = ()
    """Shape of the reward and the flags of one env; of several agents ``(A,)``."""

    def __init__(self, target: Any, levels: Sequence[Level]) -> None:
        self.target = target
        self.levels = tuple(levels)
        self._pending_seed: int | None = None
        self._space_seed: int | None = None
        self._seeded_space: gymnasium.Space[object] | None = None
        # A tracer may attach for each step.
        self._last_results: LastResults = {}
        self.actor = Actor()

    def level_flags(self, level: Level) -> Sequence[str]:
        """Return the names of the flags that a level returns."""
        return FLAGS

    def level_state(self, level: Level) -> dict[str, Tensor]:
        """Return copies of the numbers that a level keeps."""
        return level_state(level)

    @cached_property
    def name(self) -> str:
        return env_name(self.levels)

    @cached_property
    def stages(self) -> Sequence[StageInfo]:
        return tuple(level.info() for level in self.levels[1:])

    @property
    def env_arguments(self) -> Mapping[str, object]:
        return self.levels[0].info().arguments

    @property
    def num_envs(self) -> int | None:
        return self.levels[-1].num_envs

    @property
    def device(self) -> str:
        return "cpu"

    def specs(self) -> Sequence[StageSpecs]:
        return [self._level_specs(level) for level in self.levels]

    def _level_specs(self, level: Level) -> StageSpecs:
        shape = () if level.num_envs is None else (level.num_envs,)
        try:
            observation = space_specs(level.observation_space, OBSERVATION, level.num_envs)
            action = space_specs(level.action_space, ACTION, level.num_envs)
        except Exception as error:
            raise SpecError(
                f"its spaces cannot be read: {get_first_line(error)}",
                hint="set observation_space and action_space to Gymnasium spaces",
                where=Where(stage=level.index if level.index >= 0 else None, transform=level.name),
            ) from error
        values = (*shape, *self.value_shape)
        flags = {name: Binary(shape=values, dtype=torch.bool) for name in self.level_flags(level)}
        inputs = {"full_action_spec": action, "full_state_spec": Composite(shape=shape)}
        outputs = {
            "full_observation_spec": observation,
            "full_reward_spec": Composite(
                reward=Unbounded(values, dtype=torch.float64), shape=shape
            ),
            "full_done_spec": Composite(flags, shape=shape),
        }
        return StageSpecs(
            level.index,
            level.name if level.index >= 0 else self.name,
            None,
            Composite(inputs, shape=shape),
            Composite(outputs, shape=shape),
        )

    def attach(self, on_trace: OnTrace) -> AbstractContextManager[None]:
        return traced(self.observed_levels(), self.actor, self._last_results, on_trace)

    def measure(self, meter: Meter, *, all_stages: bool = False) -> AbstractContextManager[None]:
        return timed_levels(self.observed_levels(), meter)

    def locate_error(self, error: Exception) -> TdxError | None:
        place = place_of_error(error, self.levels)
        if place is None:
            return None
        level, row, method = place
        failed = Event(level, row, method, None, 0, error=error)
        return locate(self.observed_levels(), failed)

    def state(self) -> StackState:
        states = {level.index: self.level_state(level) for level in self.levels[1:]}
        return {index: state for index, state in states.items() if state}

    def observed_levels(self) -> WrapperLevels:
        return self.level_type(self.target, self.levels, self.name)

    def encode_action(self, entries: RowEntries) -> object:
        return build_action(self.levels[-1].action_space, entries, self.num_envs)

    def paused_learning(self) -> AbstractContextManager[object]:
        return Patches(learning_switches(self.state_owners()))

    def state_owners(self) -> Sequence[object]:
        return [owner for level in self.levels[1:] for owner in level.owners]

    def load_state(self, state: StackState) -> Sequence[str]:
        """See :class:`~tdx.stacks.Stack`; the state of sub-envs has one row for each."""
        levels = {level.index: level for level in self.levels}
        missing: list[str] = []
        for index, values in state.items():
            level = levels.get(index)
            for name, value in values.items():
                owners = () if level is None else level.owners
                in_rows = level is not None and level.in_rows
                written = [
                    write_number(owner, name, value[row % len(value)] if in_rows else value)
                    for row, owner in enumerate(owners)
                ]
                if not written or not all(written):
                    missing.append(f"{index}.{name}")
        return missing

    @contextmanager
    def seeded(self, seed: int | None) -> Iterator[None]:
        """See :class:`~tdx.stacks.Stack`; the env gets the seed in the next reset."""
        state = np.random.get_state()
        if seed is not None:
            self._pending_seed = seed
            self._space_seed, self._seeded_space = seed, self.sampled_space
            self._seeded_space.seed(seed)
            np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            np.random.set_state(state)

    @property
    def sampled_space(self) -> gymnasium.Space[object]:
        """Space of random actions. Default: that of the outermost object, as it is now."""
        space: gymnasium.Space[object] = self.target.action_space
        return space

    def sample_action(self) -> Any:
        """Return a random action of the outermost level, which follows the seed."""
        space = self.sampled_space
        if self._space_seed is not None and space is not self._seeded_space:
            # Some envs, such as those of highway-env, create their spaces anew in each reset.
            self._space_seed += 1
            self._seeded_space = space
            space.seed(self._space_seed)
        return space.sample()

    def take_seed(self) -> int | None:
        """Return the seed for the next reset, once."""
        seed, self._pending_seed = self._pending_seed, None
        return seed

    def close(self) -> None:
        self.target.close()


class LevelDriver(ABC):
    """Resets and steps the env of a stack as a training loop does."""

    policy_hint = "pass a function that takes observations and returns actions"

    def __init__(self, stack: LevelStack, policy: object) -> None:
        if policy is not None and not callable(policy):
            raise ArgumentError(
                f"the policy must be callable, got {type(policy).__name__}", hint=self.policy_hint
            )
        if is_closed(stack.target):
            raise EnvError(
                "the env is closed", hint="create a new one", where=Where(env=stack.name)
            )
        self._stack, self._policy, self._policy_name = stack, policy, policy_name(policy)
        self._observation: object = None
        self._reset_due = True

    @property
    def reset_due(self) -> bool:
        return self._reset_due

    def reset(self, seed: int | None) -> None:
        pending = self._stack.take_seed()
        self._observation = self._reset(pending if seed is None else seed)
        self._reset_due = False

    def step(self, action: object = None) -> None:
        actor = self._stack.actor
        start = time.perf_counter_ns()
        actor.name = "given"
        if action is None:
            actor.name = self._policy_name
            action = self._sample() if self._policy is None else self._policy(self._observation)
        actor.took_ns = time.perf_counter_ns() - start
        try:
            result = self._stack.target.step(action)
        finally:
            actor.name, actor.took_ns = "given", 0
        self._observation, self._reset_due = self._read(result)

    @abstractmethod
    def _reset(self, seed: int | None) -> object:
        """Start new episodes and return the observation."""

    @abstractmethod
    def _sample(self) -> object:
        """Return a random action."""

    @abstractmethod
    def _read(self, result: object) -> tuple[object, bool]:
        """Return the observation of a step, and whether a reset is due."""

    def _check_result(self, result: object, method: str, parts: str) -> tuple[Any, ...]:
        """Return what a method returned."""
        length = parts.count(",") + 1
        form = f"a {type(result).__name__}"
        if isinstance(result, tuple):
            if len(result) == length:
                return result
            form = f"{len(result)} values"
        raise EnvError(
            f"{method} returned {form} instead of {length} values",
            hint=f"return {parts}",
            where=Where(env=self._stack.name),
        )


def policy_name(policy: object) -> str:
    """Return the name of a policy in traces; ``random`` for ``None``."""
    return "random" if policy is None else str(getattr(policy, "__name__", type(policy).__name__))
