"""DLR-RM/rl-baselines3-zoo#275: the statistics of ``VecNormalize`` change during an evaluation.

The env for evaluation was created with ``norm_reward=False``, but without ``training=False``.
"""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from tests.field.published import findings
from tests.programs import exhaustive


def make(**options: Any) -> Any:
    env = make_vec_env("Pendulum-v1", n_envs=2, env_kwargs={"max_episode_steps": 20})
    normalized: Any = VecNormalize(env, norm_reward=False, **options)
    # Statistics of a training.
    normalized.obs_rms.count = 1000.0
    return normalized


@exhaustive
def test_normalizer_that_learns_in_evaluation_is_named() -> None:
    assert findings(make(), evaluation=True) == [("TDX404", 5, "VecNormalize", "observation")]
    assert findings(make()) == []


@exhaustive
def test_training_false_is_silent() -> None:
    assert findings(make(training=False), evaluation=True) == []
