"""Flags of InitTracker."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from tdx import Compose, InitTracker, StepCounter, TransformedEnv
from tests.transforms.envs import GroupsEnv, RowsEnv


@pytest.mark.parametrize("planned", [False, True])
def test_only_the_step_after_a_reset_is_marked(planned: bool) -> None:
    chain = Compose(StepCounter(max_steps=2), InitTracker())
    env = TransformedEnv(RowsEnv(endless=True), chain, planned=planned)
    rollout = env.rollout(5, break_when_any_done=False)
    assert rollout["is_init"].flatten().tolist() == [True, False, True, False, True]
    assert not rollout["next", "is_init"].any()


def test_a_partial_reset_marks_its_rows() -> None:
    env = TransformedEnv(RowsEnv((3,)), InitTracker("first"))
    mask = torch.tensor([[True], [False], [True]])
    root = env.step_mdp(env.rand_step(env.reset()))
    after = env.reset(root.set("_reset", mask))
    assert torch.equal(after["first"], mask)


def test_each_group_of_done_flags_has_a_flag_of_its_shape() -> None:
    env = TransformedEnv(GroupsEnv(), InitTracker())
    first = env.reset()
    for group in ("solo", "pair"):
        assert first[group, "is_init"].shape == env.full_done_spec[group, "done"].shape
        assert first[group, "is_init"].all()


def test_first_steps_of_stored_episodes_are_marked() -> None:
    done = torch.tensor([False, True, False, False]).unsqueeze(-1)
    marked = InitTracker()(TensorDict({"next": {"done": done}}, batch_size=[4]))
    assert marked["is_init"].flatten().tolist() == [True, False, True, False]
    assert not marked["next", "is_init"].any()
