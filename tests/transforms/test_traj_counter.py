"""Numbers of episodes."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from tdx import EnvCreator, ParallelEnv, RenameTransform, SerialEnv, TrajCounter, TransformedEnv
from tdx.core.envs import EnvBase
from tdx.foundation.errors import ChainError, KeyNotFoundError
from tests.transforms.envs import GroupsEnv, RowsEnv


def counted() -> EnvBase:
    return TransformedEnv(RowsEnv(), TrajCounter())


def test_every_row_has_its_own_number() -> None:
    env = TransformedEnv(RowsEnv((3,)), TrajCounter())
    rollout = env.rollout(6, break_when_any_done=False)
    assert rollout["traj_count"][:, 0].flatten().tolist() == [0, 1, 2]
    assert rollout["traj_count"].flatten(0, 1).unique().tolist() == list(range(7))
    assert torch.equal(rollout["traj_count"], rollout["next", "traj_count"])
    assert env.rollout(1)["traj_count"].flatten().tolist() == [7, 8, 9]


def test_the_count_is_state() -> None:
    env = TransformedEnv(RowsEnv((3,)), TrajCounter())
    env.reset()
    other = TransformedEnv(RowsEnv((3,)), TrajCounter())
    other.load_state_dict(env.state_dict())
    assert other.reset()["traj_count"].flatten().tolist() == [3, 4, 5]


def test_clones_share_the_count() -> None:
    counter = TrajCounter()
    envs = [TransformedEnv(RowsEnv(), counter.clone()) for _ in range(2)]
    assert [env.reset()["traj_count"].item() for env in envs * 2] == [0, 1, 2, 3]


def test_envs_of_a_creator_share_the_count() -> None:
    batch = SerialEnv(2, EnvCreator(counted))
    first = batch.reset()["traj_count"]
    second = batch.reset()["traj_count"]
    assert torch.cat((first, second)).unique().numel() == 4


@pytest.mark.timeout(120)
def test_worker_processes_share_the_count() -> None:
    batch = ParallelEnv(2, EnvCreator(counted))
    try:
        numbers = batch.rollout(6, break_when_any_done=False)["traj_count"]
        assert not set(numbers[0].flatten().tolist()) & set(numbers[1].flatten().tolist())
    finally:
        batch.close()


def test_a_renamed_number_continues() -> None:
    env = TransformedEnv(RowsEnv(), TrajCounter())
    env.append_transform(RenameTransform(["traj_count"], ["episode"]))
    rollout = env.rollout(4, break_when_any_done=False)
    assert rollout["episode"].flatten().tolist() == [0, 0, 1, 1]


def test_the_number_is_next_to_its_done_flags() -> None:
    env = TransformedEnv(GroupsEnv(), TrajCounter(("pair", "episode")))
    rollout = env.rollout(7, break_when_any_done=False)
    assert rollout["pair", "episode"][..., 0, 0].tolist() == [0, 0, 0, 2, 2, 2, 4]
    with pytest.raises(KeyNotFoundError, match="has no key 'done'"):
        TransformedEnv(GroupsEnv(), TrajCounter()).output_spec  # noqa: B018


def test_step_before_a_reset_is_refused() -> None:
    env = TransformedEnv(RowsEnv(), TrajCounter())
    with pytest.raises(ChainError, match="was not reset"):
        env.step(TensorDict(action=torch.zeros(2)))
