"""DLR-RM/rl-baselines3-zoo#275: the statistics of ``VecNormalize`` change during an evaluation.

The env for evaluation was created with ``norm_reward=False``, but without ``training=False``.
"""

from __future__ import annotations

from tests.field.published import findings, normalized_pendulum
from tests.programs import exhaustive


@exhaustive
def test_normalizer_that_learns_in_evaluation_is_named() -> None:
    found = findings(normalized_pendulum(norm_reward=False), evaluation=True)
    assert found == [("TDX404", 5, "VecNormalize", "observation")]
    assert findings(normalized_pendulum(norm_reward=False)) == []


@exhaustive
def test_training_false_is_silent() -> None:
    assert findings(normalized_pendulum(norm_reward=False, training=False), evaluation=True) == []
