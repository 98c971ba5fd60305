"""openai/gym#2336: an env declares float32 and returns float64.

The class is the env of that report, MountainCarContinuous, whose current version casts its results.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from tests.field.published import findings


class Uncast(gym.Env[Any, Any]):
    """Returns the state as NumPy computes it."""

    observation_space = gym.spaces.Box(-1.2, 0.6, (2,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    dtype: Any = np.float64

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.array([-0.5, 0.0], self.dtype), {}

    def step(self, action: Any) -> Any:
        return np.array([-0.5, 0.01], self.dtype), 0.0, False, False, {}


class Cast(Uncast):
    dtype = np.float32


def limited(env: Any) -> Any:
    return gym.wrappers.TimeLimit(gym.wrappers.ClipAction(env), 10)


def test_env_is_named_and_not_its_wrappers() -> None:
    assert findings(limited(Uncast())) == [("TDX401", None, None, "observation")]


def test_cast_results_are_silent() -> None:
    assert findings(limited(Cast())) == []
