"""Wrappers of Gymnasium around an env."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import wrappers

from tests.explanations.mutations.edits import Layout
from tests.explanations.mutations.envs import make_env
from tests.explanations.mutations.model import STATEFUL, Array, Chain, Operation, Stage

GRAY = (0.2125, 0.7154, 0.0721)
"""The weights of GrayscaleObservation."""
LAYOUT = Layout(
    library="gymnasium",
    channels_first=False,
    new_axis=True,
    padding="same",
    kernel="area",
    gray=GRAY,
    offset=0,
    renames=False,
)

Env = gymnasium.Env[Any, Any]


class Custom(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper of a user, which has state.

    Args:
        env: The env.
        stage: What it does.
    """

    def __init__(self, env: Env, stage: Stage) -> None:
        super().__init__(env)
        self.operation = Operation(stage)
        self.observation_space = space_after(env.observation_space, stage)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        value, info = self.env.reset(seed=seed, options=options)
        return self.operation(value, True), info

    def step(self, action: Any) -> tuple[Array, Any, bool, bool, dict[str, Any]]:
        value, reward, terminated, truncated, info = self.env.step(action)
        return self.operation(value, False), reward, terminated, truncated, info


def space_after(space: Any, stage: Stage) -> gymnasium.spaces.Box:
    """Return the space of what a stage returns."""
    value = Operation(stage)(np.zeros(space.shape, space.dtype), True)
    low, high = (0, 255) if value.dtype == np.uint8 else (-np.inf, np.inf)
    return gymnasium.spaces.Box(low, high, value.shape, value.dtype.type)


def wrap(env: Env, stage: Stage) -> Env:
    """Return an env in Gymnasium's wrapper for a stage, or a custom one if there is none."""
    arguments: Any = stage.arguments
    match stage.operation:
        case "running":
            normalized = wrappers.NormalizeObservation(env)
            statistics: Any = normalized.obs_rms
            statistics.mean, statistics.var = arguments["mean"], arguments["variance"]
            statistics.count = arguments["count"]
            normalized.update_running_mean = arguments["update"]
            return normalized
        case "history" if not {"order", "start", "spacing"} & set(arguments):
            padding = "reset" if arguments["padding"] == "same" else "zero"
            return wrappers.FrameStackObservation(env, arguments["length"], padding_type=padding)
        case "resize" if arguments["kernel"] == "area" and env.observation_space.dtype == np.uint8:
            return wrappers.ResizeObservation(env, (arguments["height"], arguments["width"]))
        case "gray" if arguments["weights"] == GRAY and env.observation_space.dtype == np.uint8:
            return wrappers.GrayscaleObservation(env, keep_dim=True)
    if stage.operation in STATEFUL:
        return Custom(env, stage)
    operation, space = Operation(stage), space_after(env.observation_space, stage)
    return wrappers.TransformObservation(env, lambda value: operation(value, False), space)


def build(chain: Chain) -> object:
    """Return a new env of Gymnasium with a chain."""
    env = make_env(chain.base)
    for stage in chain.stages:
        env = wrap(env, stage)
    return env
