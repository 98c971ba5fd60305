"""Wrappers of Stable-Baselines3 around two envs."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecNormalize,
)

from tests.explanations.mutations.edits import GRAY_601, Layout
from tests.explanations.mutations.envs import make_env
from tests.explanations.mutations.gymnasium_wrappers import space_after
from tests.explanations.mutations.model import Array, Chain, Operation, Stage

LAYOUT = Layout(
    library="sb3",
    channels_first=False,
    new_axis=False,
    padding="zeros",
    kernel="area",
    gray=GRAY_601,
    offset=1,  # DummyVecEnv
    renames=False,
)
ENVS = 2


class Custom(VecEnvWrapper):
    """A wrapper of a user, which may have state per env.

    Args:
        venv: The envs.
        stage: What it does.
    """

    def __init__(self, venv: VecEnv, stage: Stage) -> None:
        super().__init__(venv, space_after(venv.observation_space, stage))
        self.operations = [Operation(stage) for _ in range(venv.num_envs)]

    def reset(self) -> Array:
        return self._apply(self.venv.reset(), np.ones(self.num_envs, bool))

    def step_wait(self) -> tuple[Array, Array, Array, list[dict[str, Any]]]:
        values, rewards, dones, infos = self.venv.step_wait()
        for operation, done, info in zip(self.operations, dones, infos, strict=True):
            if done:
                last = info["terminal_observation"]
                info["terminal_observation"] = copy.deepcopy(operation)(last, False)
        return self._apply(values, dones), rewards, dones, infos

    def _apply(self, values: Any, first: Array) -> Array:
        rows = zip(self.operations, values, first, strict=True)
        return np.stack([operation(value, bool(start)) for operation, value, start in rows])


def wrap(envs: VecEnv, stage: Stage) -> VecEnv:
    """Return envs in the wrapper of SB3 for a stage, or a custom one if there is none."""
    arguments: Any = stage.arguments
    match stage.operation:
        case "running":
            normalized = VecNormalize(
                envs, training=arguments["update"], norm_reward=False, clip_obs=1e9
            )
            statistics: Any = normalized.obs_rms
            statistics.mean = np.asarray(arguments["mean"], np.float64)
            statistics.var = np.asarray(arguments["variance"], np.float64)
            statistics.count = arguments["count"]
            return normalized
        case "history" if not {"order", "start", "spacing"} & set(arguments):
            if arguments["padding"] == "zeros":
                return VecFrameStack(envs, arguments["length"], channels_order="last")
    return Custom(envs, stage)


def build(chain: Chain) -> object:
    """Return new envs of SB3 with a chain."""
    envs: VecEnv = DummyVecEnv([partial(make_env, chain.base)] * ENVS)
    for stage in chain.stages:
        envs = wrap(envs, stage)
    return envs
