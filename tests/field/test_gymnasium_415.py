"""Farama-Foundation/Gymnasium#415: a normalization that keeps the space of the env inside.

Gymnasium 0.28 normalized images of uint8 to float64 and declared uint8, so a vector env could not
concatenate them. The class is that normalization; the current one declares its space.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import NormalizeObservation

from tests.field.published import findings


class Image(gym.Env[Any, Any]):
    """Random gray images."""

    observation_space = spaces.Box(0, 255, (8, 8), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, False, {}


class OldNormalizeObservation(gym.ObservationWrapper[Any, Any, Any]):
    """Normalizes and declares the space of the env inside."""

    def observation(self, observation: Any) -> Any:
        return (observation - 127.5) / 73.9


def test_normalized_images_violate_the_space_that_is_declared() -> None:
    env = OldNormalizeObservation(Image())
    assert findings(env) == [("TDX401", 0, "OldNormalizeObservation", "observation")]


def test_the_stage_is_named_inside_of_a_vector_env() -> None:
    env = NormalizeObservation(Image())
    assert findings(SyncVectorEnv([lambda: env])) == []


def test_declared_space_is_silent() -> None:
    assert findings(NormalizeObservation(Image())) == []
