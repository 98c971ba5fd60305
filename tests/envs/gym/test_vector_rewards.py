"""Envs with several rewards, as those of mo-gymnasium, single and in batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tdx import EnvBase, ParallelEnv, RewardScaling, RewardSum, SerialEnv, TransformedEnv
from tdx.core.spec_check import check_env_specs
from tdx.envs.gym import GymEnv, GymWrapper
from tdx.foundation.errors import EnvError
from tdx.pipeline import Pipeline
from tdx.pipeline.model import EnvConfig
from tdx.rollouts import open_dump, verify
from tdx.rollouts.recording.rollout import record_dump
from tests.envs.gym.mocks import SpaceEnv


class TwoRewardsEnv(SpaceEnv):
    """Env whose two rewards are the number of the step and its negative."""

    reward_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def __init__(self, length: int = 3) -> None:
        super().__init__(length=length)

    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return (observation, np.array([self.count, -self.count], np.float32), *rest)


def make() -> GymWrapper:
    return GymWrapper(TwoRewardsEnv())


@pytest.fixture(autouse=True)
def registered(register_env: Callable[[str, Any], None]) -> None:
    register_env("TwoRewards-v0", TwoRewardsEnv)


MAKERS: dict[str, Any] = {
    "single": partial(GymEnv, "TwoRewards-v0"),
    "sync": partial(GymEnv, "TwoRewards-v0", num_envs=2),
    "async": partial(GymEnv, "TwoRewards-v0", num_envs=2, vectorization_mode="async"),
    "serial": partial(SerialEnv, 2, make),
    "parallel": partial(ParallelEnv, 2, make),
    "made": lambda: GymWrapper(_made_vector_env()),
}


def _made_vector_env() -> Any:
    from tdx.envs.gym.vector import make_vector_env

    return make_vector_env([TwoRewardsEnv, TwoRewardsEnv], "sync")


@pytest.mark.parametrize("planned", [True, False], ids=["planned", "eager"])
@pytest.mark.parametrize("kind", MAKERS)
def test_rewards_of_two_parts(kind: str, planned: bool) -> None:
    env: EnvBase = MAKERS[kind]()
    env.planned = planned
    assert env.reward_spec.shape == (*env.batch_size, 2)
    with TransformedEnv(env, RewardSum()) as chain:
        rollout = chain.rollout(5, break_when_any_done=False)
        reward = rollout["next", "reward"].reshape(-1, 5, 2)
        assert reward.dtype == torch.float32
        for row in reward:
            assert row.tolist() == [[1, -1], [2, -2], [3, -3], [1, -1], [2, -2]]
        total = rollout["next", "episode_reward"].reshape(-1, 5, 2)[0]
        assert total.tolist() == [[1, -1], [3, -3], [6, -6], [1, -1], [3, -3]]
        check_env_specs(chain)


@pytest.mark.parametrize("num_envs", [None, 2])
def test_vector_rewards_in_a_dump(num_envs: int | None, tmp_path: Path) -> None:
    config = EnvConfig("TwoRewards-v0", num_envs=num_envs)
    record_dump(Pipeline(config), tmp_path / "dump", steps=7, seed=0)
    assert verify(tmp_path / "dump").is_fine
    reward = open_dump(tmp_path / "dump").data["next", "reward"]
    assert reward.shape == (*(() if num_envs is None else (2,)), 7, 2)


def test_a_reward_of_another_shape_names_the_reward_space() -> None:
    class OneReward(TwoRewardsEnv):
        def step(self, action: Any) -> Any:
            observation, _, *rest = super().step(action)
            return (observation, 1.0, *rest)

    with pytest.raises(EnvError, match=r"key 'reward': step returned .*reward_space") as caught:
        GymWrapper(OneReward()).rollout(2)
    assert caught.value.where.step == 0


def test_rewards_are_scaled_by_a_chain() -> None:
    env = TransformedEnv(GymEnv("TwoRewards-v0", num_envs=2), RewardScaling(0.0, 2.0))
    assert env.rollout(2)["next", "reward"][0].tolist() == [[2, -2], [4, -4]]
