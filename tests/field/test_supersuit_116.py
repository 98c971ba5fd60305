"""Farama-Foundation/SuperSuit#116: wrappers return their buffer, which the next step overwrites.

Stable-Baselines3 kept the last observation, and evaluated each action with the next one instead.
The env is a vector env with such a buffer; the remedy of that pull request returns a copy.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from tests.field.published import findings


class Concatenated(gym.vector.VectorWrapper):
    """Copies the observations of all sub-envs into one buffer."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        space = env.observation_space
        self.buffer = np.zeros(space.shape, space.dtype)

    def reset(self, **kwargs: Any) -> Any:
        observation, info = self.env.reset(**kwargs)
        return self.filled(observation), info

    def step(self, actions: Any) -> Any:
        observation, *rest = self.env.step(actions)
        return self.filled(observation), *rest

    def filled(self, observation: Any) -> Any:
        self.buffer[:] = observation / 2
        return self.buffer


class CopiedBuffer(Concatenated):
    """Returns a copy."""

    def filled(self, observation: Any) -> Any:
        return super().filled(observation).copy()


def make() -> Any:
    return SyncVectorEnv([lambda: gym.make("Pendulum-v1", max_episode_steps=20)] * 2)


def test_wrapper_that_returns_its_buffer_is_named_and_not_the_one_that_passes_it_on() -> None:
    env = RecordEpisodeStatistics(Concatenated(make()))
    assert findings(env) == [("TDX499", 4, "Concatenated", "observation")]


def test_copies_are_silent() -> None:
    assert findings(RecordEpisodeStatistics(CopiedBuffer(make()))) == []
