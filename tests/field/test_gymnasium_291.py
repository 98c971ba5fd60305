"""Farama-Foundation/Gymnasium#291: a TimeLimit outside of the one of ``make`` has no effect."""

from __future__ import annotations

import gymnasium as gym
from gymnasium.wrappers import TimeLimit

from tests.field.published import suggestions


def test_longer_limit_is_never_reached() -> None:
    env = TimeLimit(gym.make("CartPole-v1", max_episode_steps=15), 10_000)
    assert suggestions(env) == [("TDX402", 3, "TimeLimit", "truncated")]


def test_limit_passed_to_make_is_silent() -> None:
    assert suggestions(gym.make("CartPole-v1", max_episode_steps=30)) == []
