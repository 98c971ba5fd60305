"""Helpers of the tests that reproduce published problems."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

import tdx
from tdx.inspection.stack_check import CHECK_STEPS

Found = tuple[str, int | None, str | None, Any]
"""Code, stage, class name and key of a finding."""


def findings(env: Any, *, steps: int = CHECK_STEPS, evaluation: bool = False) -> list[Found]:
    """Return the findings in an env that count as a failure, and close it."""
    report = tdx.check(env, seed=0, steps=steps, evaluation=evaluation)
    env.close()
    return [
        (each.code, each.where.stage, each.where.transform, each.where.key)
        for each in report.findings
        if each.severity != "suggestion"
    ]


def suggestions(env: Any) -> list[Found]:
    """Return the suggestions for an env, and close it."""
    report = tdx.check(env, seed=0)
    env.close()
    return [
        (each.code, each.where.stage, each.where.transform, each.where.key)
        for each in report.findings
        if each.severity == "suggestion"
    ]


def vec_pendulum() -> Any:
    return make_vec_env("Pendulum-v1", n_envs=2, env_kwargs={"max_episode_steps": 20})


def normalized_pendulum(**options: Any) -> Any:
    """Return a ``VecNormalize`` with the statistics of a training."""
    env: Any = VecNormalize(vec_pendulum(), **options)
    env.obs_rms.count = 1000.0
    return env


class ImageEnv(gym.Env[Any, Any]):
    """Random images with the channels first."""

    observation_space = gym.spaces.Box(0, 255, (3, 36, 40), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.integers(0, 256, (3, 36, 40), np.uint8), {}

    def step(self, action: Any) -> Any:
        return self.reset()[0], 0.0, False, False, {}
