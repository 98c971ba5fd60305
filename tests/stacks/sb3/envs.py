"""VecEnvs of the tests."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize, VecTransposeImage


class Images(gym.Env[Any, Any]):
    """Random images, and numbers; an episode has 7 steps.

    Args:
        shape: Shape of an image.
    """

    def __init__(self, shape: tuple[int, ...] = (36, 40, 3)) -> None:
        self.observation_space = spaces.Dict(
            {
                "image": spaces.Box(0, 255, shape, np.uint8),
                "speed": spaces.Box(-1.0, 1.0, (2,), np.float32),
            }
        )
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.steps = 0

    def _observe(self) -> dict[str, Any]:
        shape = self.observation_space["image"].shape  # type: ignore[index]
        speed = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return {"image": self.np_random.integers(0, 256, shape, np.uint8), "speed": speed}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {"first": True}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._observe(), float(action.sum()), self.steps == 7, False, {"speed": 0.5}


def make_classic(limit: int = 20) -> Any:
    env = make_vec_env("CartPole-v1", n_envs=2, env_kwargs={"max_episode_steps": limit})
    return VecFrameStack(VecNormalize(env, clip_obs=5.0), 4)


def make_images() -> Any:
    env = VecTransposeImage(make_vec_env(Images, n_envs=2))
    return VecNormalize(VecFrameStack(env, 2), norm_obs_keys=["speed"])


def run(env: Any, steps: int, seed: int = 0) -> list[Any]:
    """Return the results of random steps."""
    env.seed(seed)
    env.action_space.seed(seed)
    results: list[Any] = [(env.reset(),)]
    for _ in range(steps):
        actions = np.array([env.action_space.sample() for _ in range(env.num_envs)])
        results.append(env.step(actions))
    return results


def assert_equal(one: Any, other: Any, path: str = "") -> None:
    """Compare results bit by bit; the clock of the episode statistics differs."""
    assert type(one) is type(other), path
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype, path
        assert one.shape == other.shape, path
        assert one.tobytes() == other.tobytes(), path
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for name in one:
            if name != "t":
                assert_equal(one[name], other[name], f"{path}.{name}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), path
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_equal(left, right, f"{path}.{index}")
    else:
        assert one == other, path


def replaced_methods(stack: Any) -> list[str]:
    """Return the methods of the levels of a stack that are replaced."""
    names = {"reset", "step", "step_async", "step_wait"}
    owners = [owner for level in stack.levels for owner in level.owners]
    return [name for owner in owners for name in names & owner.__dict__.keys()]
