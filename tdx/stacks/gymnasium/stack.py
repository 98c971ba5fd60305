"""``GymnasiumStack``: a Gymnasium env or vector env with its wrappers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from tdx.core import StageSpecs
from tdx.core.meter import Meter
from tdx.errors import ArgumentError, EnvError, SpecError, Where, get_first_line
from tdx.specs import Binary, Composite
from tdx.stacks.gymnasium.calls import Call, CallRecorder
from tdx.stacks.gymnasium.levels import Level, env_name, hidden_reason, list_levels
from tdx.stacks.gymnasium.measuring import measured_levels
from tdx.stacks.gymnasium.snapshots import (
    ACTION,
    FLAGS,
    INFO,
    OBSERVATION,
    reward_specs,
    space_specs,
)
from tdx.stacks.gymnasium.state import level_state
from tdx.stacks.gymnasium.traces import TraceBuilder
from tdx.stacks.stack import OnTrace, StageInfo
from tdx.stacks.tracer import StackTracer

if TYPE_CHECKING:
    from tdx.envs import EnvBase
    from tdx.stacks.conversion import ConvertedStack
    from tdx.stacks.gymnasium.converted import GymnasiumReference


class GymnasiumStack:
    """A Gymnasium env with its wrappers; each wrapper is a stage.

    Specs are those of the spaces, and values those that the wrappers return: an action of a
    ``Discrete`` space is its index, a reward a number.

    Args:
        target: The outermost wrapper, or an env without wrappers.

    Example:
        >>> import gymnasium
        >>> env = gymnasium.wrappers.NormalizeObservation(gymnasium.make("Pendulum-v1"))
        >>> stack = GymnasiumStack(env)
        >>> stack.stages[-1].call, stack.specs()[-1].input_spec["full_action_spec", "action"].shape
        ('NormalizeObservation(epsilon=1e-08)', torch.Size([1]))
    """

    kind = "gymnasium"
    free_keys = (INFO,)
    batch_locked = True
    done_keys: tuple[str, ...] = ("done", *FLAGS)

    def __init__(self, target: Any) -> None:
        self.target = target
        self.levels = list_levels(target)
        self.name = env_name(self.levels)
        self._pending_seed: int | None = None
        self._builder = TraceBuilder(self.levels, self.name)

    @cached_property
    def stages(self) -> Sequence[StageInfo]:
        """See :class:`~tdx.stacks.Stack`."""
        return tuple(level.info() for level in self.levels[1:])

    @property
    def num_envs(self) -> int | None:
        """Number of sub-envs; ``None`` for a single env."""
        return self.levels[-1].num_envs

    @property
    def notes(self) -> tuple[str, ...]:
        """What the stack does not show, each a sentence."""
        reason = hidden_reason(self.target)
        return () if reason is None else (reason,)

    def specs(self) -> Sequence[StageSpecs]:
        """See :class:`~tdx.stacks.Stack`.

        Raises:
            SpecError: A wrapper has a space that cannot be read; the error names the stage.
        """
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
        done = Composite(
            {name: Binary(shape=shape, dtype=torch.bool) for name in self._flags(level)},
            shape=shape,
        )
        inputs = {"full_action_spec": action, "full_state_spec": Composite(shape=shape)}
        outputs = {
            "full_observation_spec": observation,
            "full_reward_spec": reward_specs(level.num_envs),
            "full_done_spec": done,
        }
        return StageSpecs(
            level.index,
            level.name if level.index >= 0 else self.name,
            None,
            Composite(inputs, shape=shape),
            Composite(outputs, shape=shape),
        )

    def _flags(self, level: Level) -> Sequence[str]:
        """Return the names of the flags that a level returns."""
        return FLAGS

    def tracer(self, policy: Any = None) -> StackTracer:
        """See :class:`~tdx.stacks.Stack`; the policy takes an observation."""
        return StackTracer(self, self.driver(policy))

    def driver(self, policy: Any = None) -> GymnasiumDriver:
        """See :class:`~tdx.stacks.Stack`; the policy takes an observation."""
        return GymnasiumDriver(self, policy)

    @contextmanager
    def attach(self, on_trace: OnTrace) -> Iterator[None]:
        """See :class:`~tdx.stacks.Stack`."""
        builder, top = self._builder, self.levels[-1].index

        def on_call(call: Call) -> None:
            if call.level == top:
                on_trace(builder.build(call))

        with CallRecorder(on_call).attached(self.levels):
            yield

    @contextmanager
    def measure(self, meter: Meter, *, all_stages: bool = False) -> Iterator[None]:
        """See :class:`~tdx.stacks.Stack`."""
        with measured_levels(self.levels, self.name, meter, all_stages=all_stages):
            yield

    def state(self) -> Mapping[int, Mapping[str, Tensor]]:
        """See :class:`~tdx.stacks.Stack`."""
        states = {level.index: level_state(level) for level in self.levels[1:]}
        return {index: state for index, state in states.items() if state}

    @contextmanager
    def seeded(self, seed: int | None) -> Iterator[None]:
        """See :class:`~tdx.stacks.Stack`; the env gets the seed in the next reset."""
        state = np.random.get_state()
        if seed is not None:
            self._pending_seed = seed
            self.target.action_space.seed(seed)
            np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            np.random.set_state(state)

    def take_seed(self) -> int | None:
        """Return the seed for the next reset, once."""
        seed, self._pending_seed = self._pending_seed, None
        return seed

    def convert(self) -> ConvertedStack:
        """See :class:`~tdx.stacks.conversion.Convertible`."""
        from tdx.stacks.gymnasium.converted import convert_levels

        return convert_levels(self.levels)

    def reference(self, last: int, key: str | None, seed: int) -> GymnasiumReference:
        """See :class:`~tdx.stacks.conversion.Convertible`."""
        from tdx.stacks.gymnasium.converted import GymnasiumReference

        return GymnasiumReference(self.levels[last + 1].owner, key, seed)

    def base_env(self, last: int, key: str | None) -> EnvBase:
        """See :class:`~tdx.stacks.conversion.Convertible`."""
        from tdx.stacks.gymnasium.converted import wrap_level

        return wrap_level(self.levels[last + 1].owner, key)

    def close(self) -> None:
        """See :class:`~tdx.stacks.Stack`."""
        self.target.close()


class GymnasiumDriver:
    """Resets and steps the env of a stack as a training loop does.

    Args:
        stack: The stack.
        policy: Takes an observation and returns an action. ``None``: random actions.

    Raises:
        ArgumentError: The policy cannot be called.
    """

    def __init__(self, stack: GymnasiumStack, policy: Callable[[Any], Any] | None) -> None:
        if policy is not None and not callable(policy):
            raise ArgumentError(
                f"the policy must be callable, got {type(policy).__name__}",
                hint="pass a function that takes an observation and returns an action",
            )
        self._stack, self._policy = stack, policy
        self._observation: Any = None
        self._reset_due = True
        env = stack.target
        self._is_vector = isinstance(env, VectorEnv)
        mode = getattr(env, "metadata", {}).get("autoreset_mode") if self._is_vector else None
        self._resets_itself = self._is_vector and mode != AutoresetMode.DISABLED
        self._ended: Any = None

    @property
    def reset_due(self) -> bool:
        """See :class:`~tdx.stacks.tracer.Driver`."""
        return self._reset_due

    def reset(self, seed: int | None) -> None:
        """See :class:`~tdx.stacks.tracer.Driver`."""
        env: Any = self._stack.target
        pending = self._stack.take_seed()
        seed = pending if seed is None else seed
        if self._ended is not None:
            self._observation, _ = env.reset(options={"reset_mask": self._ended})
            self._ended = None
        else:
            self._observation = _unpack(env.reset(seed=seed), 2, "reset", self._stack.name)[0]
        self._reset_due = False

    def step(self, action: Any = None) -> None:
        """See :class:`~tdx.stacks.tracer.Driver`."""
        env: Any = self._stack.target
        policy = self._policy
        builder = self._stack._builder
        start = time.perf_counter_ns()
        builder.policy = "given"
        if action is None:
            builder.policy = "random" if policy is None else _name(policy)
            action = env.action_space.sample() if policy is None else policy(self._observation)
        builder.policy_ns = time.perf_counter_ns() - start
        try:
            result = _unpack(env.step(action), 5, "step", self._stack.name)
        finally:
            builder.policy, builder.policy_ns = "given", 0
        self._observation, _, terminated, truncated, _ = result
        if self._is_vector:
            ended = np.logical_or(terminated, truncated)
            if not self._resets_itself and ended.any():
                self._reset_due, self._ended = True, ended
        else:
            self._reset_due = bool(terminated) or bool(truncated)


def _name(policy: Callable[[Any], Any]) -> str:
    return str(getattr(policy, "__name__", type(policy).__name__))


def _unpack(result: Any, length: int, method: str, name: str) -> Any:
    if isinstance(result, tuple) and len(result) == length:
        return result
    what = f"{len(result)} values" if isinstance(result, tuple) else f"a {type(result).__name__}"
    wanted = "observation, info"
    if length == 5:
        wanted = "observation, reward, terminated, truncated, info"
    raise EnvError(
        f"{method} returned {what} instead of {length}",
        hint=f"return {wanted}, as Gymnasium's API says",
        where=Where(env=name),
    )
