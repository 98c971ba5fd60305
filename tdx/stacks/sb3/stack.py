"""``StableBaselines3Stack``: a VecEnv with its wrappers and those in its sub-envs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from tdx.core.meter import Lane, Meter
from tdx.errors import ArgumentError
from tdx.stacks.gymnasium.level_stack import LevelDriver, LevelStack, policy_name
from tdx.stacks.gymnasium.levels import Level
from tdx.stacks.gymnasium.measuring import LANES, measured_levels
from tdx.stacks.gymnasium.snapshots import FLAGS
from tdx.stacks.sb3.calls import VecCallRecorder
from tdx.stacks.sb3.levels import (
    close_vec_env,
    core_of,
    list_levels,
    list_notes,
    passes_actions_on,
    vec_methods,
    workers_of_vec_env,
)
from tdx.stacks.sb3.snapshots import DONE
from tdx.stacks.sb3.state import level_state
from tdx.stacks.sb3.traces import VecTraceBuilder

if TYPE_CHECKING:
    from tdx.envs import EnvBase
    from tdx.stacks.conversion import ConvertedStack
    from tdx.stacks.sb3.converted import VecEnvReference


class StableBaselines3Stack(LevelStack):
    """A VecEnv of Stable-Baselines3; each wrapper of it and of its sub-envs is a stage.

    Values are batched, ``[N, ...]`` for N sub-envs. ``next`` of a step has the
    ``terminal_observation`` of the infos for the sub-envs whose episode ended, and ``terminated``
    and ``truncated`` by ``TimeLimit.truncated`` of the infos.

    Args:
        target: The outermost VecEnv, or an algorithm that has one.

    Raises:
        ArgumentError: The algorithm has no env.

    Example:
        >>> from stable_baselines3.common.env_util import make_vec_env
        >>> from stable_baselines3.common.vec_env import VecNormalize
        >>> stack = StableBaselines3Stack(VecNormalize(make_vec_env("CartPole-v1", n_envs=2)))
        >>> [stage.name for stage in stack.stages[-3:]]
        ['Monitor', 'DummyVecEnv', 'VecNormalize']
    """

    kind = "stable-baselines3"
    done_keys = (DONE, *FLAGS)
    recorder = VecCallRecorder
    builder = VecTraceBuilder

    def __init__(self, target: Any) -> None:
        # `hasattr` of a VecEnv wrapper also searches the VecEnvs inside.
        env = target if hasattr(type(target), "step_wait") else target.get_env()
        if env is None:
            raise ArgumentError(
                f"the {type(target).__name__} has no env",
                hint="pass env= to its constructor or load(), or call set_env(env)",
            )
        workers = workers_of_vec_env(core_of(env))
        super().__init__(
            env, list_levels(env, () if workers is None else workers.levels()), workers
        )

    @cached_property
    def notes(self) -> Sequence[str]:
        """What the stack does not show, each a sentence."""
        return list_notes(self.levels, None if self.workers is None else self.workers.reason)

    def level_flags(self, level: Level) -> Sequence[str]:
        """Return the names of the flags that a level returns."""
        return FLAGS if level.in_rows else (DONE,)

    def level_state(self, level: Level) -> dict[str, Tensor]:
        """Return copies of the numbers that a level keeps."""
        return level_state(level)

    def copy_core(self, env_fns: list[Callable[[], Any]]) -> Any:
        """Return a ``DummyVecEnv`` like the ``SubprocVecEnv`` of the stack."""
        from stable_baselines3.common.vec_env import DummyVecEnv

        return DummyVecEnv(env_fns)

    def driver(self, policy: Any = None) -> VecEnvDriver:
        """See :class:`~tdx.stacks.Stack`; the policy takes observations, or is an algorithm."""
        return VecEnvDriver(self, policy)

    def as_env(self) -> EnvBase:
        """See :class:`~tdx.stacks.Stack`; the VecEnv and its wrappers are part of the env."""
        from tdx.stacks.sb3.env import wrap_vec_env

        return wrap_vec_env(self.target, self.levels[-1].observation_space, self.name)

    @contextmanager
    def measure(self, meter: Meter, *, all_stages: bool = False) -> Iterator[None]:
        """See :class:`~tdx.stacks.Stack`."""
        with measured_levels(self.levels, self.name, meter, _lanes_of, self.workers):
            yield

    def close(self) -> None:
        """See :class:`~tdx.stacks.Stack`."""
        close_vec_env(self.target)

    def convert(self) -> ConvertedStack:
        """See :class:`~tdx.stacks.conversion.Convertible`."""
        from tdx.stacks.sb3.converted import convert_levels

        return convert_levels(self.levels)

    def reference(self, last: int, key: str | None, seed: int) -> VecEnvReference:
        """See :class:`~tdx.stacks.conversion.Convertible`."""
        from tdx.stacks.sb3.converted import VecEnvReference, level_at

        return VecEnvReference(level_at(self.levels, last), key, seed)

    def base_env(self, last: int, key: str | None) -> EnvBase:
        """See :class:`~tdx.stacks.conversion.Convertible`."""
        from tdx.stacks.sb3.converted import level_at, wrap_level

        return wrap_level(level_at(self.levels, last), key)


def _lanes_of(level: Level, owner: Any) -> Mapping[str, Lane]:
    """Return the measured methods: ``step_async`` only if it does more than pass actions on."""
    if level.in_rows or "step" in vec_methods(owner):
        return LANES
    lanes: dict[str, Lane] = {"reset": "reset", "step_wait": "step"}
    return lanes if passes_actions_on(owner) else {**lanes, "step_async": "inverse"}


class VecEnvDriver(LevelDriver):
    """Resets and steps a VecEnv as the algorithms of Stable-Baselines3 do.

    A VecEnv resets its sub-envs itself, so a reset is due only once.

    Args:
        stack: The stack.
        policy: Takes observations and returns actions, or has ``predict``. ``None``: random
            actions.

    Raises:
        ArgumentError: The policy can neither be called nor predict.
    """

    def __init__(self, stack: StableBaselines3Stack, policy: Any) -> None:
        if policy is not None and not callable(policy) and not hasattr(policy, "predict"):
            raise ArgumentError(
                f"the policy must be callable, got {type(policy).__name__}",
                hint="pass an algorithm, or a function that takes observations and returns actions",
            )
        choose: Callable[[Any], Any] | None = policy
        if hasattr(policy, "predict"):
            choose = lambda observation: policy.predict(observation)[0]  # noqa: E731
        super().__init__(stack, choose, policy_name(policy))

    def _reset(self, seed: int | None) -> Any:
        env = self._stack.target
        if seed is not None:
            env.seed(seed)
        return env.reset()

    def _sample(self) -> Any:
        env = self._stack.target
        return np.array([env.action_space.sample() for _ in range(env.num_envs)])

    def _read(self, result: Any) -> tuple[Any, bool]:
        return self._check_result(result, "step", "observation, reward, done, infos")[0], False
