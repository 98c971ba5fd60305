"""DLR-RM/stable-baselines3#1556: results of two evaluations differ because of ``VecNormalize``.

Rewards and observations were normalized in the env of the evaluation.
"""

from __future__ import annotations

from tests.field.published import findings, normalized_pendulum


def test_normalized_rewards_are_named() -> None:
    found = findings(normalized_pendulum(training=False), evaluation=True)
    assert found == [("TDX497", 5, "VecNormalize", "reward")]


def test_rewards_of_the_env_are_silent() -> None:
    assert findings(normalized_pendulum(training=False, norm_reward=False), evaluation=True) == []
