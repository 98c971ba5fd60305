"""DLR-RM/stable-baselines3#213: ``VecFrameStack`` stacked images ``[C, H, W]`` along the width.

Since then it looks for the channels; ``channels_order="last"`` is what it did before.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tests.field.published import findings

pytest.importorskip("stable_baselines3")

from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack


class Image(gym.Env[Any, Any]):
    """Random images with the channels first."""

    observation_space = gym.spaces.Box(0, 255, (3, 36, 40), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.integers(0, 256, (3, 36, 40), np.uint8), {}

    def step(self, action: Any) -> Any:
        return self.reset()[0], 0.0, False, False, {}


def test_stack_along_the_width_is_named() -> None:
    env = VecFrameStack(make_vec_env(Image, n_envs=2), 4, channels_order="last")
    assert findings(env) == [("TDX498", 2, "VecFrameStack", "observation")]


def test_stack_along_the_channels_is_silent() -> None:
    assert findings(VecFrameStack(make_vec_env(Image, n_envs=2), 4)) == []
