"""Farama-Foundation/Gymnasium#351: RecordEpisodeStatistics inside TimeLimit misses truncations."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit

from tests.field.published import findings


def bare() -> Any:
    return gym.make("Pendulum-v1").unwrapped


def test_statistics_inside_of_the_limit() -> None:
    env = TimeLimit(RecordEpisodeStatistics(bare()), 5)
    key = ("info", "episode")
    assert findings(env) == [("TDX407", 0, "RecordEpisodeStatistics", key)]


def test_statistics_outside_of_the_limit_are_silent() -> None:
    assert findings(RecordEpisodeStatistics(TimeLimit(bare(), 5))) == []
