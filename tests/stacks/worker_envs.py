"""Envs whose sub-envs are in worker processes."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium import wrappers
from gymnasium.vector import AsyncVectorEnv
from stable_baselines3.common.vec_env import SubprocVecEnv, VecNormalize


class Failing(gym.Wrapper[Any, Any, Any, Any]):
    """Fails in a step.

    Args:
        env: The env.
        fails_at: Number of the step.
    """

    def __init__(self, env: gym.Env[Any, Any], fails_at: int = -1) -> None:
        super().__init__(env)
        self.fails_at, self.steps = fails_at, 0

    def step(self, action: Any) -> Any:
        """Step the env inside."""
        self.steps += 1
        if self.steps == self.fails_at:
            raise ValueError("no more steps")
        return self.env.step(action)


def make_row(fails_at: int = -1) -> Failing:
    """Return a Pendulum env with wrappers that keep state."""
    env = gym.make("Pendulum-v1", disable_env_checker=True, max_episode_steps=7)
    return Failing(wrappers.NormalizeObservation(env), fails_at)


def make_async() -> gym.vector.VectorWrapper:
    """Return an ``AsyncVectorEnv`` in a wrapper."""
    return wrappers.vector.ClipReward(AsyncVectorEnv([make_row] * 2), -1, 0)


def make_failing_async() -> AsyncVectorEnv:
    """Return an ``AsyncVectorEnv`` with a sub-env whose third step fails."""
    return AsyncVectorEnv([make_row, lambda: make_row(3)])


def make_subprocesses() -> VecNormalize:
    """Return a ``SubprocVecEnv`` in a wrapper."""
    return VecNormalize(SubprocVecEnv([make_row] * 2, start_method="fork"))


def make_failing_subprocesses() -> VecNormalize:
    """Return a ``SubprocVecEnv`` with one sub-env, whose third step fails.

    With ``fork``, other workers would keep the connection of the failed one open.
    """
    return VecNormalize(SubprocVecEnv([make_failing], start_method="fork"))


def make_failing() -> Failing:
    """Return an env whose third step fails."""
    return make_row(3)
