"""Factories of envs of other libraries, for the app."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


def make() -> gymnasium.Env[Any, Any]:
    """Pendulum with an action wrapper and two observation wrappers."""
    env: Any = gymnasium.make("Pendulum-v1", disable_env_checker=True)
    env = gymnasium.wrappers.RescaleAction(env, np.float32(-1), np.float32(1))
    env = gymnasium.wrappers.NormalizeObservation(env)
    return gymnasium.wrappers.FrameStackObservation(env, 4)


def make_vector() -> Any:
    """Three envs with autoreset."""
    return gymnasium.make_vec("CartPole-v1", num_envs=3)


def make_vec_normalize() -> Any:
    """Two CartPoles of Stable-Baselines3 with normalized observations."""
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    return VecNormalize(DummyVecEnv([lambda: gymnasium.make("CartPole-v1")] * 2))


class _Untrue(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Wrapper that violates its space, or has none if ``broken``."""

    def __init__(self, env: gymnasium.Env[Any, Any], broken: bool = False) -> None:
        super().__init__(env)
        box: Any = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.observation_space = "a text" if broken else box  # type: ignore[assignment]

    def observation(self, observation: Any) -> Any:
        return observation * 100


def make_untrue() -> gymnasium.Env[Any, Any]:
    """An env whose last wrapper violates its space."""
    return _Untrue(gymnasium.make("Pendulum-v1", disable_env_checker=True))


def make_without_space() -> gymnasium.Env[Any, Any]:
    """An env whose last wrapper has no space."""
    return _Untrue(gymnasium.make("Pendulum-v1", disable_env_checker=True), broken=True)


def make_native() -> Any:
    """Native env with a stage."""
    from tdx import PendulumEnv, StepCounter, TransformedEnv

    return TransformedEnv(PendulumEnv(), StepCounter(5))


def always_zero(observation: Any) -> Any:
    """A policy that takes an observation."""
    return np.zeros(1, np.float32)


def fail() -> Any:
    """A factory that raises."""
    raise ValueError("no display")


def forget() -> None:
    """A factory that returns nothing."""


def make_torchrl() -> Any:
    """Pendulum of TorchRL with two transforms."""
    from torchrl.envs import Compose, GymEnv, RewardScaling, StepCounter, TransformedEnv

    chain = Compose(RewardScaling(loc=0.0, scale=0.1), StepCounter(max_steps=20))
    return TransformedEnv(GymEnv("Pendulum-v1"), chain)


class _Failing(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wrapper that raises in its fourth step."""

    count = 0

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.count == 4:
            raise RuntimeError("sensor lost")
        return super().step(action)


def make_failing() -> gymnasium.Env[Any, Any]:
    """An env whose last wrapper raises."""
    return _Failing(gymnasium.make("Pendulum-v1", disable_env_checker=True))


class _Varying(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wrapper whose observations change their length after the first step."""

    def step(self, action: Any) -> Any:
        observation, *others = super().step(action)
        return (np.append(observation, np.float32(0)), *others)


def make_varying() -> gymnasium.Env[Any, Any]:
    """An env whose observations change their length."""
    return _Varying(gymnasium.make("Pendulum-v1", disable_env_checker=True))


class _Words(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Wrapper that adds a text to the observation."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        spaces: Any = gymnasium.spaces
        self.observation_space = spaces.Dict(state=env.observation_space, word=spaces.Text(5))

    def observation(self, observation: Any) -> Any:
        return {"state": observation, "word": "up"}


def make_words() -> gymnasium.Env[Any, Any]:
    """An env whose observation has a text."""
    return _Words(gymnasium.make("Pendulum-v1", disable_env_checker=True))


class _Mission(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Wrapper that adds a text to the observation."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        text = gymnasium.spaces.Text(20)
        self.observation_space = gymnasium.spaces.Dict(
            {"mission": text, "state": env.observation_space}
        )

    def observation(self, observation: Any) -> Any:
        return {"mission": "swing up", "state": observation}


def make_mission() -> gymnasium.Env[Any, Any]:
    """An env whose observation has a text."""
    return _Mission(gymnasium.make("Pendulum-v1", disable_env_checker=True))


def make_long() -> gymnasium.Env[Any, Any]:
    """Pendulum with ten wrappers, as a training script creates it."""
    wrappers: Any = gymnasium.wrappers
    env: Any = wrappers.RecordEpisodeStatistics(gymnasium.make("Pendulum-v1"))
    env = wrappers.ClipAction(wrappers.RescaleAction(env, np.float32(-1), np.float32(1)))
    env = wrappers.NormalizeObservation(env)
    env = wrappers.TransformObservation(env, np.abs, env.observation_space)
    return wrappers.TransformReward(wrappers.NormalizeReward(env), float)
