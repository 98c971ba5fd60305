"""Farama-Foundation/Gymnasium#671: the time that is added to an observation changes its dtype.

The class is the wrapper of that report: it declares float32 for an env of float64.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeAwareObservation

from tests.field.published import findings


class OldTimeAware(gym.Wrapper[Any, Any, Any, Any]):
    """Appends the step and declares float32."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        low = np.append(env.observation_space.low, 0.0).astype(np.float32)
        high = np.append(env.observation_space.high, np.inf).astype(np.float32)
        self.observation_space = spaces.Box(low, high, dtype=np.float32)
        self.time = 0.0

    def reset(self, **kwargs: Any) -> Any:
        observation, info = self.env.reset(**kwargs)
        self.time = 0.0
        return np.append(observation, self.time), info

    def step(self, action: Any) -> Any:
        observation, *rest = self.env.step(action)
        self.time += 1.0
        return np.append(observation, self.time), *rest


def make() -> Any:
    pytest.importorskip("mujoco")
    return gym.make("InvertedPendulum-v5", max_episode_steps=20)


def test_dtype_differs_from_the_space() -> None:
    assert findings(OldTimeAware(make()), steps=5) == [("TDX401", 3, "OldTimeAware", "observation")]


def test_current_wrapper_is_silent() -> None:
    assert findings(TimeAwareObservation(make()), steps=5) == []
