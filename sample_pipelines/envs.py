"""Small envs for the sample pipelines: a goal to reach, a matrix of actions, masked actions."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict
from tensordict import TensorDictBase
from torch import Tensor

from tdx import GymEnv, default_info_dict_reader

REACHED = 0.2
"""Distance at which the goal counts as reached."""


class Reach(gymnasium.Env[dict[str, Any], Any]):
    """A point on a plane, pushed towards a goal; observations as in Gymnasium's goal envs."""

    def __init__(self) -> None:
        place = Box(-5.0, 5.0, (2,), np.float32)
        self.observation_space = Dict(observation=place, achieved_goal=place, desired_goal=place)
        self.action_space = Box(-1.0, 1.0, (2,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.point = np.zeros(2, np.float32)
        self.goal = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)
        return self._observed(), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.point = np.clip(self.point + 0.1 * action, -5.0, 5.0).astype(np.float32)
        near = float(np.linalg.norm(self.point - self.goal)) < REACHED
        return self._observed(), float(near), False, False, {}

    def _observed(self) -> dict[str, Any]:
        point = self.point
        return {"observation": point, "achieved_goal": point.copy(), "desired_goal": self.goal}


class TwoArms(gymnasium.Env[Any, Any]):
    """Two arms of three joints that should come to rest at zero."""

    def __init__(self) -> None:
        reach = np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]], np.float32)
        self.observation_space = Box(-10.0, 10.0, (6,), np.float32)
        self.action_space = Box(-reach, reach)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.angles = self.np_random.uniform(-1.0, 1.0, 6).astype(np.float32)
        return self.angles.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        moved = self.angles + 0.1 * np.asarray(action, np.float32).reshape(6)
        self.angles = np.clip(moved, -10.0, 10.0).astype(np.float32)
        return self.angles.copy(), -float(np.square(self.angles).sum()), False, False, {}


def reach() -> Reach:
    """Create the env of ``goal_observation.yaml``."""
    return Reach()


def at_goal(tensordict: TensorDictBase) -> Tensor:
    """Return whether the goal is reached, bool ``[*B]``; used by ``goal_observation.yaml``."""
    distance: Tensor = tensordict["goal", "reached"] - tensordict["goal", "wanted"]
    near: Tensor = distance.norm(dim=-1) < REACHED
    return near


def two_arms() -> TwoArms:
    """Create the env of ``discretized_actions.yaml``."""
    return TwoArms()


def taxi() -> Any:
    """Create the env of ``masked_actions.yaml``: Gymnasium's taxi with an observed mask."""
    env = GymEnv("Taxi-v4", categorical_action_encoding=True)
    return env.set_info_dict_reader(default_info_dict_reader(["action_mask"]))
