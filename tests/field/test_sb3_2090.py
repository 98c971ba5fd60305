"""DLR-RM/stable-baselines3#2090: stacked images are flattened instead of given to a CNN.

Gymnasium's ``FrameStackObservation`` adds a dimension, and the space is no longer that of an image.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import FrameStackObservation

from tests.field.published import suggestions

pytest.importorskip("stable_baselines3")

from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack


class Image(gym.Env[Any, Any]):
    """Random images."""

    observation_space = gym.spaces.Box(0, 255, (3, 36, 40), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.integers(0, 256, (3, 36, 40), np.uint8), {}

    def step(self, action: Any) -> Any:
        return self.reset()[0], 0.0, False, False, {}


def test_frame_stack_that_adds_a_dimension_is_named() -> None:
    env = make_vec_env(lambda: FrameStackObservation(Image(), 2), n_envs=2)
    assert suggestions(env) == [("TDX408", 0, "FrameStackObservation", "observation")]


def test_frame_stack_of_the_vec_env_is_silent() -> None:
    assert suggestions(VecFrameStack(make_vec_env(Image, n_envs=2), 2)) == []
