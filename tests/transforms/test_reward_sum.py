"""Sums of RewardSum. Sums of narrow dtypes are in ``test_sum_dtypes.py``."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from tdx import Compose, RewardSum, StepCounter, TransformedEnv, check_env_specs
from tdx.foundation.errors import ArgumentError, KeyNotFoundError
from tests.transforms.envs import RowsEnv, flags_of_agents
from tests.transforms.fixed_rollouts import fixed_rollout


@pytest.mark.parametrize("planned", [False, True])
def test_sums_restart_after_each_reset(planned: bool) -> None:
    chain = Compose(StepCounter(max_steps=2), RewardSum())
    env = TransformedEnv(RowsEnv(endless=True), chain, planned=planned)
    rollout = env.rollout(4, break_when_any_done=False)
    reward = rollout["next", "reward"].flatten()
    expected = [reward[0], reward[0] + reward[1], reward[2], reward[2] + reward[3]]
    assert rollout["next", "episode_reward"].flatten().tolist() == expected
    assert rollout["episode_reward"].flatten().tolist() == [0.0, expected[0], 0.0, expected[2]]


def test_stored_rewards_are_summed_per_episode() -> None:
    following = {
        "reward": torch.tensor([1.0, 2.0, 4.0, 8.0]).unsqueeze(-1),
        "done": torch.tensor([False, True, False, False]).unsqueeze(-1),
    }
    stored = TensorDict({"next": following}, batch_size=[4])
    summed = RewardSum(out_keys=["return"])(stored)
    assert summed["next", "return"].flatten().tolist() == [1.0, 3.0, 4.0, 12.0]
    assert summed["return"].flatten().tolist() == [0.0, 1.0, 0.0, 4.0]


def test_names_of_sums() -> None:
    assert RewardSum(["reward", ("agents", "reward")]).out_keys == [
        "episode_reward",
        ("agents", "episode_reward"),
    ]


def test_invalid_keys() -> None:
    unpaired = RewardSum(["reward"], reset_keys=["_reset", "_reset"])
    with pytest.raises(ArgumentError, match="2 reset_keys for 1 rewards"):
        unpaired._reset(None, TensorDict())
    # The rewards of the second are known with its env.
    for summed in (unpaired, RewardSum(reset_keys=["_reset", "_reset"])):
        with pytest.raises(ArgumentError, match="2 reset_keys for 1 rewards"):
            TransformedEnv(RowsEnv(), summed).output_spec  # noqa: B018
    env = TransformedEnv(RowsEnv(), RewardSum(["score"]))
    with pytest.raises(KeyNotFoundError, match="the reward spec has no key 'score'"):
        env.output_spec  # noqa: B018


def test_next_rewards_without_flags_are_one_episode() -> None:
    stored = TensorDict({("next", "reward"): torch.ones(2, 3)}, batch_size=[2, 3])
    total = RewardSum(in_keys=[("next", "reward")], out_keys=["total"])
    assert total(stored.clone())["total"].tolist() == [[1, 2, 3], [1, 2, 3]]
    with pytest.raises(KeyNotFoundError, match="neither a done flag nor is_init"):
        RewardSum()(stored)


@pytest.mark.parametrize("planned", [True, False])
def test_sums_declared_as_rewards_can_be_in_a_group(planned: bool) -> None:
    total = RewardSum(["reward"], [("some", "total")], reward_spec=True)
    env = TransformedEnv(RowsEnv((3,)), total, planned=planned)
    check_env_specs(env)
    rollout = env.rollout(3)
    assert "some" not in rollout.keys()
    expected = rollout["next", "reward"].cumsum(1)
    torch.testing.assert_close(rollout["next", "some", "total"], expected)


def test_stored_rewards_of_a_row_follow_the_flags_of_its_agents() -> None:
    env = flags_of_agents(RowsEnv)
    steps, key = fixed_rollout(env((4,))), ("next", "reward")
    total = RewardSum(in_keys=[key], out_keys=["total"])(steps.clone())["total"]
    sums = fixed_rollout(TransformedEnv(env((4,)), RewardSum()))
    assert torch.equal(total, sums["next", "episode_reward"])
    assert torch.equal(RewardSum()(steps)["episode_reward"], sums["episode_reward"])
