"""isaac-sim/IsaacLab#2635: the script that plays a policy starts with new statistics.

Its ``VecNormalize`` loads none and keeps learning; the remedy loads those of the training, without
``training`` and ``norm_reward``.
"""

from __future__ import annotations

from pathlib import Path

from stable_baselines3.common.vec_env import VecNormalize

from tests.field.published import findings, vec_pendulum
from tests.programs import exhaustive


@exhaustive
def test_normalizer_that_starts_from_scratch_is_named() -> None:
    found = findings(VecNormalize(vec_pendulum()), evaluation=True)
    assert [each[:3] for each in found] == [
        ("TDX404", 5, "VecNormalize"),
        ("TDX497", 5, "VecNormalize"),
    ]


@exhaustive
def test_loaded_statistics_are_silent(tmp_path: Path) -> None:
    trained = VecNormalize(vec_pendulum())
    trained.reset()
    trained.save(str(tmp_path / "statistics"))
    trained.close()
    env = VecNormalize.load(str(tmp_path / "statistics"), vec_pendulum())
    env.training = env.norm_reward = False
    assert findings(env, evaluation=True) == []
