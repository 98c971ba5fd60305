"""DLR-RM/stable-baselines3#1556: results of two evaluations differ because of ``VecNormalize``.

Rewards and observations were normalized in the env of the evaluation.
"""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from tests.field.published import findings


def make(**options: Any) -> Any:
    env = make_vec_env("Pendulum-v1", n_envs=2, env_kwargs={"max_episode_steps": 20})
    normalized: Any = VecNormalize(env, training=False, **options)
    # Statistics of a training.
    normalized.obs_rms.count = 1000.0
    return normalized


def test_normalized_rewards_are_named() -> None:
    assert findings(make(), evaluation=True) == [("TDX497", 5, "VecNormalize", "reward")]


def test_rewards_of_the_env_are_silent() -> None:
    assert findings(make(norm_reward=False), evaluation=True) == []
