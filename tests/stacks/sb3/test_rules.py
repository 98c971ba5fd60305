"""Lint rules on VecEnvs that have no example of their own."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import TimeLimit, TransformReward
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecCheckNan, VecNormalize

import tdx
from tests.programs import exhaustive


def codes(env: Any) -> list[tuple[str, str | None]]:
    return [(each.code, each.where.transform) for each in tdx.check(env, seed=0).findings]


def scaled(env: Any) -> Any:
    return TransformReward(env, lambda reward: 0.1 * float(reward))


def make(**options: Any) -> Any:
    limit = {"max_episode_steps": 20}
    return make_vec_env("Pendulum-v1", n_envs=2, env_kwargs=limit, **options)


@exhaustive
def test_reward_scaled_in_the_sub_envs_and_by_vec_normalize() -> None:
    assert codes(VecNormalize(make(wrapper_class=scaled))) == [("TDX405", "VecNormalize")]
    assert codes(VecNormalize(make(wrapper_class=scaled), norm_reward=False)) == []


@exhaustive
def test_vec_check_nan_is_not_reported_as_a_wrapper_without_effect() -> None:
    assert codes(VecCheckNan(make())) == []


@exhaustive
def test_statistics_of_the_reward_alone() -> None:
    env = make_vec_env("MountainCarContinuous-v0", n_envs=2, env_kwargs={"max_episode_steps": 9})
    assert codes(VecNormalize(env, norm_obs=False)) == []


class Growing(gym.Env[Any, Any]):
    """Returns its state, which it changes in place."""

    observation_space = gym.spaces.Box(0, 1_000, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.state = np.zeros(1, np.float32)
        return self.state, {}

    def step(self, action: Any) -> Any:
        self.state += 1
        return self.state, 0.0, False, False, {}


@exhaustive
def test_state_that_an_env_changes_in_place_is_reported_unless_a_vec_env_copies_it() -> None:
    assert codes(TimeLimit(Growing(), 20)) == [("TDX499", None)]
    assert codes(make_vec_env(Growing, n_envs=2)) == []
