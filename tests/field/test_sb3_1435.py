"""DLR-RM/stable-baselines3#1435: ``VecFrameStack`` returns the same dict in every step.

The observation and the next observation in a replay buffer were equal. The class stacks as the
wrapper of that report; the current one returns a new dict.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnvWrapper, VecFrameStack

from tests.field.published import findings
from tests.field.test_sb3_1441 import Position

KEY = "position"


class OldVecFrameStack(VecEnvWrapper):
    """Stacks the positions, and keeps them in the dict that it returns."""

    def __init__(self, venv: Any, n_stack: int) -> None:
        box = venv.observation_space[KEY]
        low, high = (np.repeat(bound, n_stack) for bound in (box.low, box.high))
        super().__init__(venv, spaces.Dict({KEY: spaces.Box(low, high, dtype=np.float32)}))
        self.stacked = {KEY: np.zeros((venv.num_envs, n_stack), np.float32)}

    def reset(self) -> Any:
        observation: Any = self.venv.reset()
        self.stacked[KEY][:] = 0
        self.stacked[KEY][:, -1:] = observation[KEY]
        return self.stacked

    def step_wait(self) -> Any:
        observation, reward, done, infos = self.venv.step_wait()
        shifted = np.roll(self.stacked[KEY], -1, axis=1)
        for row in np.flatnonzero(done):
            last = infos[row]["terminal_observation"][KEY]
            infos[row]["terminal_observation"] = {KEY: np.append(shifted[row, :-1], last)}
            shifted[row] = 0
        shifted[:, -1:] = observation[KEY]  # type: ignore[call-overload]
        self.stacked[KEY] = shifted
        return self.stacked, reward, done, infos


def make() -> Any:
    return make_vec_env(Position, n_envs=2)


def test_wrapper_that_returns_the_same_dict_is_named() -> None:
    env = OldVecFrameStack(make(), 3)
    assert findings(env) == [("TDX499", 2, "OldVecFrameStack", ("observation", KEY))]


def test_current_wrapper_is_silent() -> None:
    assert findings(VecFrameStack(make(), 3)) == []
