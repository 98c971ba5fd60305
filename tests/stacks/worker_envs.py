"""Envs of the tests of worker processes, which import this module."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium import wrappers
from gymnasium.vector import AsyncVectorEnv

from tdx.stacks.gymnasium.hooks import is_attached


class Slow(gym.RewardWrapper[Any, Any]):
    """Doubles the reward, slowly.

    Args:
        env: The env.
        seconds: Time that it takes.
        key: A function that no other process can load.
    """

    def __init__(self, env: Any, seconds: float = 0.0, key: Callable[..., Any] = abs) -> None:
        super().__init__(env)
        self.seconds, self.key = seconds, key

    def reward(self, reward: Any) -> Any:
        """Return the doubled reward."""
        time.sleep(self.seconds)
        return reward * 2


class Outer(gym.Wrapper[Any, Any, Any, Any]):
    """Tells which methods of its wrappers are replaced, and fails in a step."""

    fails_at = -1
    steps = 0

    def step(self, action: Any) -> Any:
        """Make a step, and remove an info that cannot be sent."""
        self.steps += 1
        if self.steps == self.fails_at:
            raise ValueError("no more steps")
        return self.env.step(action)

    def list_traces(self) -> list[str]:
        """Return what is attached to the wrappers."""
        found, env = [], self
        while isinstance(env, gym.Wrapper):
            names = [name for name in vars(env) if name.startswith("tdx")]
            found += [*names, *(["step"] if is_attached(env) else [])]
            env = env.env  # type: ignore[assignment]
        return found


def make_row(limit: int = 7, seconds: float = 0.0) -> Any:
    """Return a Pendulum env with wrappers that keep state."""
    env = gym.make("Pendulum-v1", disable_env_checker=True, max_episode_steps=limit)
    env = Slow(wrappers.NormalizeObservation(env), seconds, key=lambda each: each)
    return Outer(env)


def make_long() -> Any:
    """Return an env with long episodes."""
    return make_row(50)


def make_slow() -> Any:
    """Return an env with a wrapper that takes a step's time."""
    return make_row(50, seconds=0.01)


def make_failing() -> Any:
    """Return an env whose third step fails."""
    env = make_row()
    env.fails_at = 3
    return env


def make_failing_rows() -> Any:
    """Return an ``AsyncVectorEnv`` with a sub-env whose third step fails."""
    return AsyncVectorEnv([make_row, make_failing])


def make_failing_subprocesses() -> Any:
    """Return a ``SubprocVecEnv`` with a sub-env whose third step fails.

    With ``fork``, its other workers keep the connection of the failed one open.
    """
    from stable_baselines3.common.vec_env import SubprocVecEnv, VecNormalize

    return VecNormalize(SubprocVecEnv([make_row, make_failing], start_method="spawn"))


def make_without_tdx() -> Any:
    """Return an env whose worker cannot import tdx."""
    env = make_row()
    if multiprocessing.parent_process() is not None:
        sys.modules["tdx.stacks.gymnasium.worker_agent"] = None  # type: ignore[assignment]
    return env
