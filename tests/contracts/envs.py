"""Envs with wrappers that training and deployment create, in four libraries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces, wrappers
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize
from torchrl import envs as rl

import tdx


class Arm(gym.Env[Any, Any]):
    """Position and velocity of an arm as a ``Dict``, in float32."""

    action_space = spaces.Box(-2.0, 2.0, (2,), np.float32)

    def __init__(self, low: float = -10.0, names: Sequence[str] = ("position", "velocity")) -> None:
        box = spaces.Box(low, 10.0, (2,), np.float32)
        self.observation_space = spaces.Dict(dict.fromkeys(names, box))
        self.names = names

    def _observation(self) -> dict[str, Any]:
        draw = self.np_random.uniform(-3, 3, (len(self.names), 2)).astype(np.float32)
        return dict(zip(self.names, draw, strict=True))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        return self._observation(), float(np.sum(action)), False, False, {}


class Camera(gym.Env[Any, Any]):
    """RGB frames."""

    action_space = spaces.Discrete(3)

    def __init__(self, size: int = 40) -> None:
        self.observation_space = spaces.Box(0, 255, (size, size, 3), np.uint8)

    def _observation(self) -> Any:
        shape = self.observation_space.shape
        assert shape is not None
        return self.np_random.integers(0, 256, shape, np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        return self._observation(), 1.0, False, False, {}


class Pendulum64(gym.Env[Any, Any]):
    """A vector observation in a given dtype, and bounds of the torque."""

    def __init__(self, dtype: Any = np.float32, torque: float = 2.0) -> None:
        self.observation_space = spaces.Box(-8.0, 8.0, (3,), dtype)
        self.action_space = spaces.Box(-torque, torque, (1,), np.float32)

    def _observation(self) -> Any:
        return self.np_random.uniform(-8, 8, 3).astype(self.observation_space.dtype)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        return self._observation(), 0.0, False, False, {}


class Join(gym.ObservationWrapper[Any, Any, Any]):
    """Joins the entries of a ``Dict`` in an order that its arguments do not show."""

    def __init__(self, env: gym.Env[Any, Any], order: Sequence[str]) -> None:
        super().__init__(env)
        self.joined = list(order)
        self.observation_space = spaces.Box(-10.0, 10.0, (2 * len(self.joined),), np.float32)

    def observation(self, observation: Any) -> Any:
        return np.concatenate([observation[name] for name in self.joined])


class Normalized(gym.ObservationWrapper[Any, Any, Any]):
    """Normalizes by statistics that are loaded later; passes observations on before that."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.mean: Any = None
        self.var: Any = None

    def load(self, mean: Sequence[float], var: Sequence[float]) -> Normalized:
        self.mean, self.var = np.array(mean), np.array(var)
        return self

    def observation(self, observation: Any) -> Any:
        if self.mean is None:
            return observation
        return ((observation - self.mean) / np.sqrt(self.var)).astype(np.float32)


class Mapped(gym.ObservationWrapper[Any, Any, Any]):
    """Applies a function that its arguments do not show."""

    def __init__(self, env: gym.Env[Any, Any], apply: Callable[[Any], Any], **space: Any) -> None:
        super().__init__(env)
        self.function_of_observation = apply
        if space:
            self.observation_space = spaces.Box(**space)

    def observation(self, observation: Any) -> Any:
        return self.function_of_observation(observation)


class Factor(rl.Transform):  # type: ignore[misc]
    """Multiplies the observation by a number that is not an argument."""

    def __init__(self, factor: float) -> None:
        super().__init__(in_keys=["observation"], out_keys=["observation"])
        self.hidden = factor

    def _apply_transform(self, observation: torch.Tensor) -> torch.Tensor:
        return observation * self.hidden

    def _reset(self, tensordict: Any, tensordict_reset: Any) -> Any:
        return self._call(tensordict_reset)


class Shift(rl.Transform):  # type: ignore[misc]
    """Subtracts a mean that is loaded later."""

    def __init__(self, mean: Sequence[float] | None = None) -> None:
        super().__init__(in_keys=["observation"], out_keys=["observation"])
        if mean is not None:
            self.register_buffer("running_mean", torch.tensor(mean))

    def _apply_transform(self, observation: torch.Tensor) -> torch.Tensor:
        return observation - getattr(self, "running_mean", 0.0)

    def _reset(self, tensordict: Any, tensordict_reset: Any) -> Any:
        return self._call(tensordict_reset)


MEAN, VAR = [0.3, -0.2, 1.5], [0.5, 0.4, 9.0]


def pendulum(**kwargs: Any) -> Any:
    return gym.make("Pendulum-v1", **kwargs)


# Gymnasium


def rescaled(low: float = -1.0, high: float = 1.0) -> Any:
    return wrappers.RescaleAction(pendulum(), np.float32(low), np.float32(high))


def gym_normalized(count: float = 1000.0, *, learning: bool = False, env: Any = None) -> Any:
    """Return an env with statistics of a training; fresh ones for ``count=0``."""
    found = wrappers.NormalizeObservation(pendulum() if env is None else env)
    if count:
        shape = found.obs_rms.mean.shape
        found.obs_rms.mean = np.broadcast_to(np.array(MEAN), shape).copy()
        found.obs_rms.var = np.broadcast_to(np.array(VAR), shape).copy()
        found.obs_rms.count = count
    found.update_running_mean = learning
    return found


# Stable-Baselines3


def sb3_normalized(
    count: float = 1000.0,
    *,
    learning: bool = False,
    n_envs: int = 2,
    env: Any = None,
    **kwargs: Any,
) -> Any:
    inner = make_vec_env("Pendulum-v1", n_envs=n_envs) if env is None else env
    found: Any = VecNormalize(inner, training=learning, **kwargs)
    if count:
        found.obs_rms.mean, found.obs_rms.var = np.array(MEAN), np.array(VAR)
        found.obs_rms.count = count
    return found


def sb3_stacked(n_stack: int, **kwargs: Any) -> Any:
    return VecFrameStack(sb3_normalized(**kwargs), n_stack)


# tdx


def chain(*stages: Any, env: Any = None) -> Any:
    return tdx.TransformedEnv(
        tdx.GymEnv("Pendulum-v1") if env is None else env, tdx.Compose(*stages)
    )


def fixed_norm(scale: float = 1.0) -> Any:
    return tdx.ObservationNorm(
        torch.tensor(MEAN), torch.tensor(VAR).sqrt() * scale, ["observation"], standard_normal=True
    )


def tdx_normalized(steps: int = 50, *, learning: bool = False) -> Any:
    norm = tdx.VecNorm(["observation"], decay=1.0)
    env = chain(norm)
    env.set_seed(0)
    torch.manual_seed(0)
    if steps:
        env.rollout(steps)
    if not learning:
        norm.freeze()
    return env


# TorchRL


def rl_chain(*stages: Any, env: Any = None) -> Any:
    base = rl.GymEnv("Pendulum-v1") if env is None else env
    return rl.TransformedEnv(base, rl.Compose(*stages))


def rl_fixed_norm(scale: float = 1.0) -> Any:
    return rl.ObservationNorm(
        loc=torch.tensor(MEAN),
        scale=torch.tensor(VAR).sqrt() * scale,
        in_keys=["observation"],
        standard_normal=True,
    )


def rl_normalized(steps: int = 50, *, learning: bool = False) -> Any:
    norm = rl.VecNormV2(in_keys=["observation"], decay=0.99)
    env = rl_chain(norm)
    torch.manual_seed(0)
    if steps:
        env.set_seed(0)
        env.rollout(steps)
    if not learning:
        norm.freeze()
    return env


def arm(**kwargs: Any) -> Any:
    return Arm(**kwargs)


def tdx_arm() -> Any:
    return tdx.GymWrapper(Arm())
