"""Sums, counts, stacks and marks of stored rollouts are those of the steps themselves."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from tdx import (
    CatFrames,
    Compose,
    InitTracker,
    LazyTensorStorage,
    ReplayBuffer,
    RewardSum,
    SliceSampler,
    StepCounter,
    TerminateTransform,
    TransformedEnv,
)
from tdx.foundation.errors import ArgumentError, KeyNotFoundError, StoredDataError
from tdx.transforms import NoopResetEnv, TrajCounter, Transform
from tests.transforms.envs import GroupsEnv, RowsEnv
from tests.transforms.fixed_rollouts import assert_same, fixed_rollout

BATCHES = [(), (4,), (2, 3)]


def in_steps(batch_size: tuple[int, ...], *stages: Transform) -> TensorDictBase:
    return fixed_rollout(TransformedEnv(RowsEnv(batch_size), Compose(*stages)))


@pytest.mark.parametrize("batch_size", BATCHES)
def test_rewards_in_next_are_summed_from_the_first_on(batch_size: tuple[int, ...]) -> None:
    explicit = RewardSum(in_keys=[("next", "reward")], out_keys=[("next", "episode_reward")])
    found = explicit(fixed_rollout(RowsEnv(batch_size)))
    wanted = in_steps(batch_size, RewardSum())
    assert torch.equal(found["next", "episode_reward"], wanted["next", "episode_reward"])
    assert "episode_reward" not in found.keys()


def test_rewards_in_next_can_be_summed_under_any_key() -> None:
    found = RewardSum(in_keys=[("next", "reward")], out_keys=["total"])(
        fixed_rollout(RowsEnv((4,)))
    )
    wanted = in_steps((4,), RewardSum())
    assert torch.equal(found["total"], wanted["next", "episode_reward"])


@pytest.mark.parametrize("batch_size", BATCHES)
def test_frames_in_next_are_stacked(batch_size: tuple[int, ...]) -> None:
    explicit = CatFrames(3, -1, in_keys=[("next", "observation")])
    found = explicit(fixed_rollout(RowsEnv(batch_size)))
    wanted = in_steps(batch_size, CatFrames(3, -1, in_keys=["observation"]))
    assert torch.equal(found["next", "observation"], wanted["next", "observation"])


def test_frames_in_next_have_their_own_out_key() -> None:
    both = CatFrames(
        *(2, -1),
        in_keys=["observation", ("next", "observation")],
        out_keys=["observation", ("next", "stack")],
    )
    stored = fixed_rollout(RowsEnv((4,)))
    found = both(stored.clone())
    wanted = in_steps((4,), CatFrames(2, -1, in_keys=["observation"]))
    assert torch.equal(found["observation"], wanted["observation"])
    assert torch.equal(found["next", "stack"], wanted["next", "observation"])
    assert torch.equal(found["next", "observation"], stored["next", "observation"])


def test_frames_in_next_need_those_at_the_root() -> None:
    stored = fixed_rollout(RowsEnv()).exclude("observation")
    with pytest.raises(KeyNotFoundError, match=r"keep 'observation'") as caught:
        CatFrames(3, -1, in_keys=[("next", "observation")])(stored)
    assert caught.value.hint


@pytest.mark.parametrize("batch_size", BATCHES)
def test_sums_counts_stacks_and_marks_together(batch_size: tuple[int, ...]) -> None:
    def stages() -> list[Transform]:
        frames = CatFrames(3, -1, in_keys=["observation"], out_keys=["stack"])
        return [RewardSum(), StepCounter(), InitTracker("first"), frames]

    found = Compose(*stages())(fixed_rollout(RowsEnv(batch_size)))
    assert_same(found, in_steps(batch_size, *stages()))
    again = Compose(*stages())(found.clone())
    assert_same(again, found)


def test_groups_of_done_flags_are_counted_separately() -> None:
    rewards = [("solo", "reward"), ("pair", "reward")]
    found = Compose(RewardSum(rewards), StepCounter(), InitTracker())(
        fixed_rollout(GroupsEnv((2,)))
    )
    chain = Compose(RewardSum(), StepCounter(), InitTracker())
    assert_same(found, fixed_rollout(TransformedEnv(GroupsEnv((2,)), chain)))


def test_members_of_a_group_that_end_at_different_steps() -> None:
    done = torch.tensor([[[0], [1]], [[0], [0]], [[1], [0]], [[0], [0]]]).bool()
    agents = {"done": done, "reward": torch.ones(4, 2, 1)}
    stored = TensorDict({"next": {"agents": agents}}, batch_size=[4])
    found = Compose(RewardSum([("agents", "reward")]), StepCounter())(stored)
    counts = found["next", "agents", "step_count"].squeeze(-1)
    assert counts.tolist() == [[1, 1], [2, 1], [3, 2], [1, 3]]
    assert torch.equal(found["next", "agents", "episode_reward"].squeeze(-1), counts.float())


def test_an_episode_of_exactly_max_steps_is_truncated() -> None:
    stored = fixed_rollout(RowsEnv())
    assert stored["next", "done"].flatten().tolist() == [False, True] * 4
    stored = stored.exclude("truncated", ("next", "truncated"))
    found = StepCounter(max_steps=2)(stored)
    assert found["next", "truncated"].flatten().tolist() == [False, True] * 4
    assert not found["truncated"].any()


def test_an_episode_of_more_than_max_steps_is_refused() -> None:
    with pytest.raises(ArgumentError, match="max_steps=2") as caught:
        StepCounter(max_steps=2)(fixed_rollout(RowsEnv((4,))))
    assert caught.value.hint


@pytest.mark.parametrize("transform", [StepCounter(), InitTracker(), RewardSum()])
def test_steps_without_episode_marks_are_refused(transform: Transform) -> None:
    stored = fixed_rollout(RowsEnv()).select("observation", ("next", "reward"))
    with pytest.raises(KeyNotFoundError, match="neither a done flag nor is_init"):
        transform(stored)


def test_unordered_steps_are_refused() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(20), batch_size=4)
    buffer.extend(fixed_rollout(RowsEnv()))
    buffer.append_transform(StepCounter())
    with pytest.raises(ArgumentError, match="order is random"):
        buffer.sample()


def test_slices_of_a_replay_buffer() -> None:
    sampler = SliceSampler(slice_len=2)
    buffer = ReplayBuffer(storage=LazyTensorStorage(20), sampler=sampler, batch_size=4)
    buffer.extend(fixed_rollout(RowsEnv()))
    rewards = RewardSum(in_keys=[("next", "reward")], out_keys=[("next", "episode_reward")])
    buffer.append_transform(Compose(rewards, StepCounter()))
    batch = buffer.sample()
    assert batch["next", "step_count"].flatten().tolist() == [1, 2, 1, 2]
    reward = batch["next", "reward"].reshape(2, 2)
    assert torch.equal(batch["next", "episode_reward"].reshape(2, 2), reward.cumsum(-1))


def test_stored_data_contains_the_results_of_noops() -> None:
    stored = fixed_rollout(RowsEnv())
    assert_same(NoopResetEnv(3)(stored.clone()), stored)


@pytest.mark.parametrize("kind", [StoredDataError, NotImplementedError, ValueError, RuntimeError])
def test_refusal_of_stored_data_is_an_error_of_several_kinds(kind: type[Exception]) -> None:
    with pytest.raises(kind, match="stored data has none"):
        TrajCounter()(fixed_rollout(RowsEnv()))


def test_data_without_flags_cannot_be_marked() -> None:
    stop = TerminateTransform(lambda td: td["observation"][..., 0] > 1)
    with pytest.raises(KeyNotFoundError, match="terminated"):
        stop(TensorDict(observation=torch.ones(3, 2), batch_size=[3]))
