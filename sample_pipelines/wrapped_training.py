"""A Gymnasium env with the wrappers of a training script; `tdx init --from` converts it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import wrappers


def make() -> gym.Env[Any, Any]:
    """Pendulum with scaled actions and rewards, stacked and normalized observations."""
    env: gym.Env[Any, Any] = gym.make("Pendulum-v1", max_episode_steps=100)
    env = wrappers.RescaleAction(env, np.float32(-1), np.float32(1))
    env = wrappers.FrameStackObservation(env, 3, padding_type="zero")
    env = wrappers.NormalizeObservation(env)
    env = wrappers.FlattenObservation(env)
    env = wrappers.TransformReward(env, lambda reward: 0.1 * float(reward))
    return wrappers.RecordEpisodeStatistics(env)
