"""openai/baselines#437: a scaled frame is float32, and its space still says uint8.

The class is ``ScaledFloatFrame`` of that report; replay buffers and placeholders took uint8.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tests.field.published import findings
from tests.field.test_gymnasium_415 import Image


class ScaledFloatFrame(gym.ObservationWrapper[Any, Any, Any]):
    """Scales to [0, 1]."""

    def observation(self, observation: Any) -> Any:
        return np.array(observation).astype(np.float32) / 255.0


class DeclaredFloatFrame(ScaledFloatFrame):
    """Declares what it returns."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        shape = env.observation_space.shape
        self.observation_space = spaces.Box(0.0, 1.0, shape, np.float32)


def test_scaled_frames_violate_their_space() -> None:
    env = gym.wrappers.ClipReward(ScaledFloatFrame(Image()), -1, 1)
    assert findings(env) == [("TDX401", 0, "ScaledFloatFrame", "observation")]


def test_declared_space_is_silent() -> None:
    assert findings(DeclaredFloatFrame(Image())) == []
