"""Farama-Foundation/Gymnasium#1451: a vector NormalizeReward learns from automatic resets.

After an episode, a vector env returns the reward 0 of a reset; the wrapper of that report counted
it. The class counts every reward; the current one skips the rows that are being reset.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers.utils import RunningMeanStd
from gymnasium.wrappers.vector import NormalizeReward

from tests.field.published import findings
from tests.programs import exhaustive


class OldNormalizeReward(gym.vector.VectorWrapper):
    """Normalizes by the statistics of all rewards."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.return_rms = RunningMeanStd(shape=())
        self.accumulated_reward = np.zeros(env.num_envs, np.float32)

    def step(self, actions: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(actions)
        self.accumulated_reward = self.accumulated_reward * 0.99 * (1 - terminated) + reward
        self.return_rms.update(self.accumulated_reward)
        scaled = reward / np.sqrt(self.return_rms.var + 1e-8)
        return observation, scaled, terminated, truncated, info


def make() -> Any:
    def row() -> Any:
        return gym.make("Pendulum-v1", max_episode_steps=5)

    return SyncVectorEnv([row, row])


def test_rewards_of_resets_are_counted() -> None:
    assert findings(OldNormalizeReward(make())) == [("TDX410", 4, "OldNormalizeReward", "reward")]


@exhaustive
def test_current_wrapper_is_silent() -> None:
    assert findings(NormalizeReward(make())) == []
