"""Envs that raise or hang in the middle of a rollout."""

from __future__ import annotations

import time

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from tdx import GymWrapper

Reply = tuple[NDArray[np.float32], float, bool, bool, dict[str, object]]


class Failing(gym.Env[NDArray[np.float32], NDArray[np.float32]]):
    """Env that raises at its 65th step."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self) -> None:
        self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, object]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: NDArray[np.float32]) -> Reply:
        self.steps += 1
        if self.steps > 65:
            raise ValueError("the gripper is stuck")
        return np.zeros(2, np.float32), 0.0, False, False, {}


class Hanging(Failing):
    """Env whose 65th step never returns."""

    def step(self, action: NDArray[np.float32]) -> Reply:
        if self.steps == 64:
            time.sleep(1000)
        return super().step(action)


def make(hangs: bool = False) -> GymWrapper:
    """Create the env."""
    return GymWrapper(Hanging() if hangs else Failing())
