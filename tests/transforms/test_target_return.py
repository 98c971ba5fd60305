"""``TargetReturn``: the remaining return."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from tdx import GymEnv, RenameTransform, StepCounter, TargetReturn, TransformedEnv, Unbounded
from tdx.foundation.errors import ArgumentError, KeyNotFoundError, UnknownNameError
from tests.transforms.envs import GroupsEnv, RowsEnv, flags_of_agents
from tests.transforms.fixed_rollouts import assert_same, fixed_rollout


def test_target_is_restored_in_each_episode() -> None:
    env = TransformedEnv(GymEnv("CartPole-v1"), StepCounter(3))
    env.append_transform(TargetReturn(5.0))
    rollout = env.rollout(6, break_when_any_done=False)
    assert rollout["target_return"].flatten().tolist() == [5.0, 4.0, 3.0] * 2
    assert rollout["next", "target_return"].flatten().tolist() == [4.0, 3.0, 2.0] * 2


def test_a_renamed_target_continues() -> None:
    env = TransformedEnv(GymEnv("CartPole-v1"), TargetReturn(5.0))
    env.append_transform(RenameTransform(["target_return"], ["goal"]))
    assert env.rollout(3)["goal"].flatten().tolist() == [5.0, 4.0, 3.0]


def test_each_group_has_its_target() -> None:
    env = TransformedEnv(GroupsEnv((2,)), TargetReturn(8))
    rollout = fixed_rollout(env, 5)
    for name, length in (("solo", 2), ("pair", 3)):
        before = rollout[name, "target_return"]
        assert before.shape == rollout["next", name, "reward"].shape
        starts = [step for step in range(5) if (before[:, step] == 8).all()]
        assert starts == list(range(0, 5, length))


def test_a_given_reset_key() -> None:
    keys: Any = {"in_keys": [("solo", "reward")], "out_keys": [("solo", "goal")]}
    env = TransformedEnv(GroupsEnv(), TargetReturn(8, reset_key=("solo", "_reset"), **keys))
    rollout = fixed_rollout(env, 5)
    assert (rollout["solo", "goal"][[0, 2, 4]] == 8).all()
    assert (rollout["solo", "goal"][[1, 3]] != 8).all()


def test_dtypes() -> None:
    transform = TargetReturn(2.5)
    counts = TensorDict(
        {"next": {"reward": torch.ones(3, 1, dtype=torch.int64), "done": torch.zeros(3, 1).bool()}},
        batch_size=[3],
    )
    assert transform(counts)["target_return"].flatten().tolist() == [2.5, 1.5, 0.5]
    spec = TransformedEnv(RowsEnv((2,)), TargetReturn(1)).observation_spec["target_return"]
    assert spec == Unbounded((2, 1))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"target_return": "a"}, ArgumentError, "target_return must be a number"),
        ({"target_return": None}, ArgumentError, "target_return must be a number"),
        ({"target_return": 1, "mode": "reduc"}, UnknownNameError, "unknown mode 'reduc'"),
        ({"target_return": 1, "in_keys": ["a", "b"]}, ArgumentError, "the same target_return"),
        ({"target_return": 1, "in_keys": ["a"], "out_keys": ["b", "c"]}, ArgumentError, "2 out"),
    ],
)
def test_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        TargetReturn(**arguments)


def test_missing_reward_is_reported() -> None:
    env = TransformedEnv(RowsEnv(), TargetReturn(1.0, in_keys=["rewards"]))
    with pytest.raises(KeyNotFoundError, match="rewards"):
        env.output_spec  # noqa: B018


def test_stored_rewards_of_a_row_follow_the_flags_of_its_agents() -> None:
    env = flags_of_agents(RowsEnv)
    stored = TargetReturn(10.0)(fixed_rollout(env((4,))))
    assert_same(stored, fixed_rollout(TransformedEnv(env((4,)), TargetReturn(10.0))))
