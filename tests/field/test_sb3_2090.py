"""DLR-RM/stable-baselines3#2090: stacked images are flattened instead of given to a CNN.

Gymnasium's ``FrameStackObservation`` adds a dimension, so the space is not one of images any more.
"""

from __future__ import annotations

from gymnasium.wrappers import FrameStackObservation
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack

from tests.field.published import ImageEnv, suggestions


def test_frame_stack_that_adds_a_dimension_is_named() -> None:
    env = make_vec_env(lambda: FrameStackObservation(ImageEnv(), 2), n_envs=2)
    assert suggestions(env) == [("TDX408", 0, "FrameStackObservation", "observation")]


def test_frame_stack_of_the_vec_env_is_silent() -> None:
    assert suggestions(VecFrameStack(make_vec_env(ImageEnv, n_envs=2), 2)) == []
