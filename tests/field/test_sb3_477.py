"""DLR-RM/stable-baselines3#477: ``Monitor`` does not see the limit of a ``TimeLimit`` around it.

``evaluate_policy`` waits for the episode statistics of the monitor and never returns.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.wrappers import TimeLimit
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from tests.field.published import findings


def make() -> Any:
    return gym.make("Pendulum-v1", disable_env_checker=True).unwrapped


def test_monitor_inside_of_the_limit_is_named() -> None:
    env = DummyVecEnv([lambda: TimeLimit(Monitor(make()), 10)] * 2)
    assert findings(env) == [("TDX407", 0, "Monitor", ("info", "episode"))]


def test_monitor_outside_of_the_limit_is_silent() -> None:
    assert findings(DummyVecEnv([lambda: Monitor(TimeLimit(make(), 10))] * 2)) == []
