"""Baselines without tdx and TorchRL: loops over Gymnasium's ``env.step``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import (
    FrameStackObservation,
    RecordEpisodeStatistics,
    TransformObservation,
    TransformReward,
)
from numpy.typing import NDArray
from torch import Tensor

Env = gymnasium.Env[Any, Any]
Loop = Callable[[], int]


def make_env(name: str = "Pendulum-v1", **options: Any) -> Env:
    """Create an env without Gymnasium's checks of each step, like ``GymEnv`` by default."""
    return gymnasium.make(name, disable_env_checker=True, **options)


def pendulum_actions(count: int) -> list[NDArray[np.float32]]:
    """Return sampled actions of Pendulum-v1, each ``[1]``."""
    drawn = np.random.default_rng(0).uniform(-2, 2, (count, 1)).astype(np.float32)
    return list(drawn)


def played(env: Env, actions: Sequence[Any]) -> Loop:
    """Return a loop over one env, which returns its number of steps."""
    env.reset(seed=0)

    def loop() -> int:
        step, made = env.step, 0
        for made, action in enumerate(actions, 1):  # noqa: B007 - read after the loop
            _, _, terminated, truncated, _ = step(action)
            if terminated or truncated:
                env.reset()
        return made

    return loop


def played_in_turns(envs: Sequence[Env], actions: Sequence[Any]) -> Loop:
    """Return a loop over several envs, one after the other, with the same actions."""
    for env in envs:
        env.reset(seed=0)
    steps = [(env, env.step) for env in envs]

    def loop() -> int:
        for action in actions:
            for env, step in steps:
                _, _, terminated, truncated, _ = step(action)
                if terminated or truncated:
                    env.reset()
        return len(actions) * len(steps)

    return loop


def played_with_policy(env: Env, policy: Callable[[Tensor], Tensor], inputs: Tensor) -> Loop:
    """Return a loop that calls a policy for each action.

    Args:
        env: Env to step.
        policy: Function from an input to an action.
        inputs: Inputs of the policy, ``[T, ...]``, computed before the loop.
    """
    env.reset(seed=0)
    rows = list(inputs.unbind(0))

    def loop() -> int:
        step = env.step
        for row in rows:
            _, _, terminated, truncated, _ = step(policy(row).detach().numpy())
            if terminated or truncated:
                env.reset()
        return len(rows)

    return loop


def played_at_once(env: Any, actions: Sequence[Any]) -> Loop:
    """Return a loop over a vector env."""
    env.reset(seed=0)

    def loop() -> int:
        step = env.step
        for action in actions:
            step(action)
        return len(actions) * int(env.num_envs)

    return loop


def wrapped_env(name: str = "Pendulum-v1") -> Env:
    """Return an env with the Gymnasium wrappers closest to the six transforms."""
    env: Any = make_env(name)
    scale, loc = np.float32(2.0), np.float32(0.1)
    env = TransformObservation(env, lambda seen: seen * scale + loc, env.observation_space)
    env = TransformReward(env, lambda reward: float(reward) * 0.1)
    env = TransformReward(env, lambda reward: min(max(float(reward), -1.0), 1.0))
    return FrameStackObservation(RecordEpisodeStatistics(env), 4)
