"""DLR-RM/stable-baselines3#213: ``VecFrameStack`` stacked images ``[C, H, W]`` along the width.

Since then it looks for the channels; ``channels_order="last"`` is what it did before.
"""

from __future__ import annotations

from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack

from tests.field.published import ImageEnv, findings


def test_stack_along_the_width_is_named() -> None:
    env = VecFrameStack(make_vec_env(ImageEnv, n_envs=2), 4, channels_order="last")
    assert findings(env) == [("TDX498", 2, "VecFrameStack", "observation")]


def test_stack_along_the_channels_is_silent() -> None:
    assert findings(VecFrameStack(make_vec_env(ImageEnv, n_envs=2), 4)) == []
