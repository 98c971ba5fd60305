"""DLR-RM/stable-baselines3#2101: saved statistics are loaded into a normalized env.

The switches of the loaded ``VecNormalize`` are those of an evaluation, and the one inside keeps
normalizing. The remedy of that report loads them into a new env.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stable_baselines3.common.vec_env import VecNormalize

from tests.field.published import findings, vec_pendulum
from tests.programs import exhaustive


def load(env: Any, folder: Path) -> Any:
    """Return the env of an evaluation, with saved statistics."""
    trained = VecNormalize(vec_pendulum())
    trained.reset()
    trained.save(str(folder / "statistics"))
    trained.close()
    loaded = VecNormalize.load(str(folder / "statistics"), env)
    loaded.training = loaded.norm_reward = False
    return loaded


@exhaustive
def test_normalizer_inside_of_the_loaded_one_is_named(tmp_path: Path) -> None:
    found = findings(load(VecNormalize(vec_pendulum()), tmp_path), evaluation=True)
    assert [each[:3] for each in found] == [
        ("TDX404", 5, "VecNormalize"),
        ("TDX497", 5, "VecNormalize"),
        ("TDX480", 6, "VecNormalize"),
    ]


def test_statistics_in_a_new_env_are_silent(tmp_path: Path) -> None:
    assert findings(load(vec_pendulum(), tmp_path), evaluation=True) == []
