"""``StableBaselines3Stack``: a VecEnv with its wrappers and those in its sub-envs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from tdx.core.meter import Meter
from tdx.errors import ArgumentError, EnvError, Where
from tdx.stacks.gymnasium.calls import Call
from tdx.stacks.gymnasium.levels import Level
from tdx.stacks.gymnasium.snapshots import FLAGS
from tdx.stacks.gymnasium.stack import GymnasiumStack
from tdx.stacks.sb3.calls import VecCallRecorder
from tdx.stacks.sb3.levels import env_name, list_levels, list_notes
from tdx.stacks.sb3.measuring import measured_levels
from tdx.stacks.sb3.snapshots import DONE
from tdx.stacks.sb3.state import level_state
from tdx.stacks.sb3.traces import VecTraceBuilder
from tdx.stacks.stack import OnTrace
from tdx.stacks.tracer import StackTracer


class StableBaselines3Stack(GymnasiumStack):
    """A VecEnv of Stable-Baselines3; each wrapper of it and of its sub-envs is a stage.

    Values are batched, ``[N, ...]`` for N sub-envs. ``next`` of a step has the
    ``terminal_observation`` of the infos for the sub-envs whose episode ended.

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
    done_keys = (DONE,)

    def __init__(self, target: Any) -> None:
        # `hasattr` of a VecEnv wrapper also searches the VecEnvs inside.
        env = target if hasattr(type(target), "step_wait") else target.get_env()
        if env is None:
            raise ArgumentError(
                f"the {type(target).__name__} has no env",
                hint="pass env= to its constructor or load(), or call set_env(env)",
            )
        self.target = env
        self.levels = list_levels(env)
        self.name = env_name(self.levels)
        self._pending_seed = None
        self._builder = VecTraceBuilder(self.levels, self.name)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What the stack does not show, each a sentence."""
        return list_notes(self.levels)

    def _flags(self, level: Level) -> Sequence[str]:
        return FLAGS if level.in_rows else (DONE,)

    def tracer(self, policy: Any = None) -> StackTracer:
        """See :class:`~tdx.stacks.Stack`; the policy takes observations, or is an algorithm."""
        return StackTracer(self, self.driver(policy))

    def driver(self, policy: Any = None) -> Any:
        """See :class:`~tdx.stacks.Stack`; the policy takes observations, or is an algorithm."""
        return VecEnvDriver(self, policy)

    @contextmanager
    def attach(self, on_trace: OnTrace) -> Iterator[None]:
        """See :class:`~tdx.stacks.Stack`."""
        builder, top = self._builder, self.levels[-1].index

        def on_call(call: Call) -> None:
            if call.level == top:
                on_trace(builder.build(call))

        with VecCallRecorder(on_call).attached(self.levels):
            yield

    @contextmanager
    def measure(self, meter: Meter, *, all_stages: bool = False) -> Iterator[None]:
        """See :class:`~tdx.stacks.Stack`."""
        with measured_levels(self.levels, self.name, meter):
            yield

    def state(self) -> Mapping[int, Mapping[str, Tensor]]:
        """See :class:`~tdx.stacks.Stack`."""
        states = {level.index: level_state(level) for level in self.levels[1:]}
        return {index: state for index, state in states.items() if state}


class VecEnvDriver:
    """Resets and steps a VecEnv as the algorithms of Stable-Baselines3 do.

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
        self._stack = stack
        self._policy: Callable[[Any], Any] | None = policy
        self._name = "random"
        if policy is not None:
            self._name = str(getattr(policy, "__name__", type(policy).__name__))
        if hasattr(policy, "predict"):
            self._policy = lambda observation: policy.predict(observation)[0]
        self._observation: Any = None
        self._is_reset = False

    @property
    def reset_due(self) -> bool:
        """See :class:`~tdx.stacks.tracer.Driver`; a VecEnv resets its sub-envs itself."""
        return not self._is_reset

    def reset(self, seed: int | None) -> None:
        """See :class:`~tdx.stacks.tracer.Driver`."""
        env = self._stack.target
        pending = self._stack.take_seed()
        seed = pending if seed is None else seed
        if seed is not None:
            env.seed(seed)
        self._observation = env.reset()
        self._is_reset = True

    def step(self, action: Any = None) -> None:
        """See :class:`~tdx.stacks.tracer.Driver`."""
        env, builder = self._stack.target, self._stack._builder
        start = time.perf_counter_ns()
        builder.policy = "given"
        if action is None:
            builder.policy = self._name
            action = self._choose(env)
        builder.policy_ns = time.perf_counter_ns() - start
        try:
            result = env.step(action)
        finally:
            builder.policy, builder.policy_ns = "given", 0
        if not isinstance(result, tuple) or len(result) != 4:
            raise EnvError(
                f"step returned {_describe(result)} instead of 4 values",
                hint="return observation, reward, done, infos, as a VecEnv does",
                where=Where(env=self._stack.name),
            )
        self._observation = result[0]

    def _choose(self, env: Any) -> Any:
        if self._policy is not None:
            return self._policy(self._observation)
        return np.array([env.action_space.sample() for _ in range(env.num_envs)])


def _describe(result: Any) -> str:
    return f"{len(result)} values" if isinstance(result, tuple) else f"a {type(result).__name__}"
