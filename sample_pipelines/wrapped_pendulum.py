"""A Gymnasium env with wrappers, as a training script creates it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import wrappers


def make(frames: int = 3) -> gym.Env[Any, Any]:
    """Pendulum with scaled actions, stacked observations and running normalization."""
    env: gym.Env[Any, Any] = gym.make("Pendulum-v1", max_episode_steps=100)
    env = wrappers.RescaleAction(env, np.float32(-1), np.float32(1))
    env = wrappers.FrameStackObservation(env, frames, padding_type="zero")
    env = wrappers.NormalizeObservation(env)
    env = wrappers.TransformReward(env, lambda reward: 0.1 * float(reward))
    return wrappers.NormalizeReward(env)
