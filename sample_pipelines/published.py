"""Envs with problems that users of other libraries reported; docs/gallery.md has the threads."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces, wrappers
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecNormalize

Env = gym.Env[Any, Any]


def make_pendulums() -> VecEnv:
    """Two Pendulums, as in a training script."""
    return make_vec_env("Pendulum-v1", n_envs=2, env_kwargs={"max_episode_steps": 20})


def normalized_before_stacking() -> VecEnv:
    """Stack frames that were normalized with different statistics."""
    return VecFrameStack(VecNormalize(make_pendulums()), 2)


def normalizer_that_learns() -> VecEnv:
    """An env for evaluation, without ``training=False``."""
    env = VecNormalize(make_pendulums(), norm_reward=False)
    assert not isinstance(env.obs_rms, dict)
    # Statistics of a training.
    env.obs_rms.count = 1000.0
    return env


def normalized_rewards() -> VecEnv:
    """An env for evaluation, without ``norm_reward=False``."""
    env = VecNormalize(make_pendulums(), training=False)
    assert not isinstance(env.obs_rms, dict)
    env.obs_rms.count = 1000.0
    return env


def fresh_statistics() -> VecEnv:
    """The env of a script that plays a policy and loads no statistics."""
    return VecNormalize(make_pendulums(), training=False, norm_reward=False)


class ImageEnv(gym.Env[Any, Any]):
    """Random images with the channels first."""

    observation_space = spaces.Box(0, 255, (3, 36, 40), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Return the first image."""
        super().reset(seed=seed)
        return self.np_random.integers(0, 256, (3, 36, 40), np.uint8), {}

    def step(self, action: Any) -> Any:
        """Return the next image."""
        return self.reset()[0], 0.0, False, False, {}


def stacked_along_the_width() -> VecEnv:
    """Stack images ``[C, H, W]`` along their last dimension."""
    return VecFrameStack(make_vec_env(ImageEnv, n_envs=2), 4, channels_order="last")


def stacked_in_a_new_dimension() -> VecEnv:
    """Stack images along a new dimension, which a CNN does not accept."""
    return make_vec_env(lambda: wrappers.FrameStackObservation(ImageEnv(), 2), n_envs=2)


def monitor_inside_the_limit() -> VecEnv:
    """Count episodes inside the wrapper that ends them."""
    bare = gym.make("Pendulum-v1", disable_env_checker=True).unwrapped
    return DummyVecEnv([lambda: wrappers.TimeLimit(Monitor(bare), 10)])


def limit_without_effect() -> Env:
    """Allow more steps than ``make`` does."""
    return wrappers.TimeLimit(gym.make("CartPole-v1", max_episode_steps=15), 10_000)


class Uncast(gym.Env[Any, Any]):
    """Declares float32 and returns what NumPy computes."""

    observation_space = spaces.Box(-1.2, 0.6, (2,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Return the first state."""
        super().reset(seed=seed)
        return np.array([-0.5, 0.0]), {}

    def step(self, action: Any) -> Any:
        """Return the next state."""
        return np.array([-0.5, 0.01]), 0.0, False, False, {}


def undeclared_dtype() -> Env:
    """An env whose observations have another dtype than its space."""
    return wrappers.TimeLimit(Uncast(), 10)


class ScaleActions(gym.ActionWrapper[Any, Any, Any]):
    """Multiplies the bounds by 2, and the actions too."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        inner: Any = env.action_space
        self.action_space = spaces.Box(inner.low * 2, inner.high * 2, dtype=inner.dtype)

    def action(self, action: Any) -> Any:
        """Return the action of the env inside; dividing would be right."""
        return action * 2


def actions_scaled_twice() -> Env:
    """An env that gets actions outside of its space."""
    return ScaleActions(gym.make("Pendulum-v1", max_episode_steps=20))
