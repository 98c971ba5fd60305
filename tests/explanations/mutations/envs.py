"""Small envs of the chains: control with vectors, and colored images without symmetry."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv, PendulumEnv

from tests.explanations.mutations.model import Array

HEIGHT, WIDTH = 48, 64
IMAGE = "picture"
VECTORS = ("pendulum", "cartpole", *(["cheetah"] if find_spec("mujoco") else []))
EPISODE = 12
"""Steps of an episode of the pictures, and of the recorded observations."""


class PictureEnv(gymnasium.Env[Array, Array]):
    """A noisy colored picture, a moving square and a bar; nothing is symmetric."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self._place, self._count = np.zeros(2), 0
        self._picture = np.zeros((HEIGHT, WIDTH, 3), np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._count = self.np_random.uniform(8, 30, 2), 0
        rows, columns = np.mgrid[:HEIGHT, :WIDTH]
        colors = np.stack([rows * 3, columns * 2 + rows, 160 - columns - rows // 2], -1)
        noise = self.np_random.integers(0, 60, colors.shape)
        self._picture = np.clip(colors + noise, 0, 255).astype(np.uint8)
        return self._draw(), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self._count += 1
        self._place = np.clip(self._place + 3 * np.asarray(action) + (1, 1.5), 0, 40)
        return self._draw(), float(self._place.sum()), self._count >= EPISODE, False, {}

    def _draw(self) -> Array:
        picture = self._picture.copy()
        top, left = self._place.astype(int)
        picture[top : top + 7, left : left + 9] = (250, 20, 90)
        picture[3 * self._count : 3 * self._count + 2, :20] = (10, 240, 30)
        return picture


def make_env(base: str) -> gymnasium.Env[Any, Any]:
    """Return the env of a base, without wrappers."""
    if base == "pendulum":
        return PendulumEnv()
    if base == "cartpole":
        return CartPoleEnv()
    if base == "cheetah":
        from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv

        return HalfCheetahEnv()
    return PictureEnv()


def key_of(base: str) -> str:
    """Return the key of the observations of a base in tdx and TorchRL."""
    return "pixels" if base == IMAGE else "observation"


@cache
def record(base: str, seed: int = 0) -> tuple[tuple[Array, bool], ...]:
    """Return observations of two short episodes, with marks of their starts."""
    env = make_env(base)
    env.action_space.seed(seed)
    frames: list[tuple[Array, bool]] = []
    for episode in range(2):
        frames.append((env.reset(seed=seed + episode)[0], True))
        for _ in range(EPISODE - 1):
            observation, _, terminated, _, _ = env.step(env.action_space.sample())
            frames.append((observation, False))
            if terminated:
                break
    env.close()
    return tuple(frames)
