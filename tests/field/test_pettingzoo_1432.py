"""Farama-Foundation/PettingZoo#1432: ``scale_actions`` of SuperSuit scales actions twice.

It multiplied the bounds of the space by the scale, and each action as well, so that actions of its
own space are out of the bounds of the env inside. The wrapper is that one for a Gymnasium env; the
remedy of that pull request divides the action.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium import spaces

from tests.field.published import findings


class ScaleActions(gym.ActionWrapper[Any, Any, Any]):
    """Multiplies bounds and actions."""

    def __init__(self, env: Any, scale: float) -> None:
        super().__init__(env)
        self.scale = scale
        inner = env.action_space
        self.action_space = spaces.Box(inner.low * scale, inner.high * scale, dtype=inner.dtype)

    def action(self, action: Any) -> Any:
        return action * self.scale


class InverseScaleActions(ScaleActions):
    """Divides the action."""

    def action(self, action: Any) -> Any:
        return action / self.scale


def make(kind: Any) -> Any:
    return kind(gym.make("Pendulum-v1", max_episode_steps=20), 2.0)


def test_wrapper_that_passes_on_actions_outside_of_the_space_is_named() -> None:
    assert findings(make(ScaleActions)) == [("TDX401", 3, "ScaleActions", "action")]


def test_divided_actions_are_silent() -> None:
    assert findings(make(InverseScaleActions)) == []
