"""Counters and flags of StepCounter."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from tdx import StepCounter, TransformedEnv
from tests.transforms.envs import GroupsEnv, RowsEnv
from tests.transforms.fixed_rollouts import fixed_rollout


@pytest.mark.parametrize("planned", [False, True])
def test_counts_start_at_zero_and_truncate_at_max_steps(planned: bool) -> None:
    env = TransformedEnv(RowsEnv(endless=True), StepCounter(max_steps=3), planned=planned)
    rollout = env.rollout(5, break_when_any_done=False)
    assert rollout["step_count"].flatten().tolist() == [0, 1, 2, 0, 1]
    assert rollout["next", "step_count"].flatten().tolist() == [1, 2, 3, 1, 2]
    for flag in ("truncated", "done"):
        assert rollout["next", flag].flatten().tolist() == [False, False, True, False, False]


def test_without_update_done_the_episode_continues() -> None:
    counter = StepCounter(max_steps=2, truncated_key="late", update_done=False)
    rollout = TransformedEnv(RowsEnv(endless=True), counter).rollout(3)
    assert rollout["next", "late"].flatten().tolist() == [False, True, True]
    assert not rollout["next", "done"].any()


def test_stored_steps_are_counted_from_each_done_flag() -> None:
    done = torch.tensor([False, True, False, False]).unsqueeze(-1)
    stored = TensorDict({"next": {"done": done}}, batch_size=[4])
    counted = StepCounter(step_count_key="count")(stored)
    assert counted["count"].flatten().tolist() == [0, 1, 0, 1]
    assert counted["next", "count"].flatten().tolist() == [1, 2, 1, 2]


def test_flags_of_every_group_are_set_in_their_shape() -> None:
    env = TransformedEnv(GroupsEnv((2,)), StepCounter(max_steps=1))
    following = fixed_rollout(env, 3)["next"]
    for group, shape in (("solo", (2, 3, 1)), ("pair", (2, 3, 2, 1))):
        for name in ("truncated", "done"):
            assert following[group, name].shape == shape
            assert following[group, name].all()
        assert not following[group, "terminated"].any()


def test_truncation_by_the_env_is_kept() -> None:
    plain = fixed_rollout(RowsEnv((3,)), 12)["next"]
    env = TransformedEnv(RowsEnv((3,)), StepCounter(max_steps=4))
    following = fixed_rollout(env, 12)["next"]
    assert torch.equal(following["truncated"], plain["truncated"] | (following["step_count"] >= 4))
    assert (following["truncated"] & following["terminated"]).any()
    assert torch.equal(following["done"], following["truncated"] | following["terminated"])
