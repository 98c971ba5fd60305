"""``SuccessReward``, and ``DiscreteActionProjection``."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from tdx import (
    ArgumentError,
    ChainError,
    Compose,
    DiscreteActionProjection,
    GymEnv,
    KeyNotFoundError,
    RenameTransform,
    SpecError,
    SuccessReward,
    TransformedEnv,
)
from tdx.specs import Bounded, Composite, Unbounded
from tests.transforms.envs import RowsEnv


def test_success_is_rewarded_in_its_step() -> None:
    copied = RenameTransform(["done"], ["success"], create_copy=True)
    env = TransformedEnv(RowsEnv(), Compose(copied, SuccessReward(scale=5.0)))
    result = env.rollout(10)
    assert result["next", "reward"].flatten().tolist() == [0.0, 5.0]
    declared = env.reward_spec
    assert isinstance(declared, Bounded)
    assert (declared.low.item(), declared.high.item()) == (0.0, 5.0)


@pytest.mark.parametrize("report", [torch.tensor([True, False]), torch.tensor([2, 0])])
def test_reports_are_flags_or_numbers(report: torch.Tensor) -> None:
    result = SuccessReward(scale=-1.0)(TensorDict(success=report))["reward"]
    assert result.dtype is torch.float32
    assert result.tolist() == [-1.0, 0.0]


def test_a_missing_report_is_named() -> None:
    env = TransformedEnv(RowsEnv(), SuccessReward("finished"))
    with pytest.raises(KeyNotFoundError, match="finished"):
        env.rollout(1)


def test_the_shape_of_a_reward_without_an_env() -> None:
    before = Composite(reward=Unbounded((4, 1)), shape=(4,))
    assert SuccessReward().transform_reward_spec(before)["reward"].shape == (4, 1)
    with pytest.raises(SpecError, match="shape of the reward is not known"):
        SuccessReward().transform_reward_spec(Composite())


@pytest.mark.parametrize("scale", [float("nan"), "2", [1.0, 2.0]])
def test_invalid_scales(scale: object) -> None:
    with pytest.raises(ArgumentError, match="scale must be"):
        SuccessReward(scale=scale)  # type: ignore[arg-type]


def test_actions_that_the_env_lacks_become_others() -> None:
    project = DiscreteActionProjection(3, 8)
    given = TensorDict(action=torch.eye(8, dtype=torch.int64))
    assert project.inv(given)["action"].argmax(-1).tolist() == [0, 1, 2, 0, 1, 2, 0, 1]


def test_one_policy_for_envs_with_different_actions() -> None:
    env = TransformedEnv(GymEnv("CartPole-v1"), DiscreteActionProjection(2, 5))
    assert env.action_spec.shape == (5,)
    assert env.rollout(5)["action"].shape[-1] == 5


def test_stored_actions_get_the_categories_of_the_policy() -> None:
    stored = TensorDict(action=torch.eye(2))
    assert DiscreteActionProjection(2, 3)(stored.clone())["action"].shape == (2, 3)
    unchanged = DiscreteActionProjection(2, 3, include_forward=False)(stored)
    assert unchanged["action"].shape == (2, 2)


def test_actions_of_another_kind_are_refused() -> None:
    env = TransformedEnv(GymEnv("CartPole-v1"), DiscreteActionProjection(3, 5))
    with pytest.raises(ChainError, match=r"is OneHot\(2\), not OneHot\(3\)"):
        env.rollout(1)
    with pytest.raises(ChainError, match="is BoundedContinuous"):
        TransformedEnv(RowsEnv(), DiscreteActionProjection(3, 5)).rollout(1)
    with pytest.raises(ArgumentError, match="below num_actions_effective"):
        DiscreteActionProjection(3, 2)
    with pytest.raises(ArgumentError, match="not one-hot with 5 categories"):
        DiscreteActionProjection(3, 5).inv(TensorDict(action=torch.zeros(4)))
