"""DLR-RM/stable-baselines3#1441: ``VecExtractDictObs`` does not handle the terminal observation.

The class is that of the report; the current one extracts the key from the infos as well. The same
question about a custom wrapper is DLR-RM/stable-baselines3#1308.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnvWrapper, VecExtractDictObs

from tests.field.published import findings


class OldVecExtractDictObs(VecEnvWrapper):
    """Leaves the infos unchanged."""

    def __init__(self, venv: Any, key: str) -> None:
        self.key = key
        super().__init__(venv, observation_space=venv.observation_space.spaces[key])

    def reset(self) -> Any:
        observation: Any = self.venv.reset()
        return observation[self.key]

    def step_wait(self) -> Any:
        observation, reward, done, infos = self.venv.step_wait()
        return observation[self.key], reward, done, infos  # type: ignore[call-overload]


class Position(gym.Env[Any, Any]):
    """A position as a dict."""

    observation_space = gym.spaces.Dict({"position": gym.spaces.Box(-9.0, 9.0, (1,), np.float32)})
    action_space = gym.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return {"position": np.zeros(1, np.float32)}, {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        observation = {"position": np.full(1, self.steps, np.float32)}
        return observation, 1.0, self.steps == 5, False, {}


def test_wrapper_that_forgets_the_terminal_observation_is_named() -> None:
    env = OldVecExtractDictObs(make_vec_env(Position, n_envs=2), "position")
    key = ("info", "terminal_observation")
    assert findings(env) == [("TDX496", 2, "OldVecExtractDictObs", key)]


def test_current_wrapper_is_silent() -> None:
    assert findings(VecExtractDictObs(make_vec_env(Position, n_envs=2), "position")) == []
