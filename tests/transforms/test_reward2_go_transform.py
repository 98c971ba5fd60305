"""Values, specs and errors of ``Reward2GoTransform`` and ``BinarizeReward``."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from tdx import BinarizeReward, Compose, GymEnv, Reward2GoTransform, StepCounter, TransformedEnv
from tdx.foundation.errors import ArgumentError, ChainError, KeyNotFoundError
from tdx.specs import Binary
from tdx.transforms import Transform
from tests.transforms.envs import GroupsEnv, RowsEnv


def stored(reward: torch.Tensor, done: torch.Tensor) -> TensorDict:
    return TensorDict({"next": {"reward": reward, "done": done}}, batch_size=reward.shape[:-1])


def by_hand(reward: torch.Tensor, done: torch.Tensor, gamma: float) -> torch.Tensor:
    """Return the returns of one row, ``[T, 1]``, computed backwards."""
    result, total = torch.zeros_like(reward), torch.zeros(1)
    for step in reversed(range(len(reward))):
        total = reward[step] + (0.0 if done[step] else gamma) * total
        result[step] = total
    return result


@given(st.integers(1, 30), st.floats(0, 1), st.integers(0, 2**31), st.floats(0.01, 0.9))
def test_returns_by_hand(length: int, gamma: float, seed: int, ends: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    reward = torch.randn(2, length, 1, generator=generator)
    done = torch.rand(2, length, 1, generator=generator) < ends
    done[:, -1] = True
    found = Reward2GoTransform(gamma).inv(stored(reward, done))["next", "reward"]
    expected = torch.stack([by_hand(*row, gamma) for row in zip(reward, done, strict=True)])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_rollout_over_several_episodes() -> None:
    rollout = RowsEnv((4,)).rollout(12, break_when_any_done=False)
    result = Reward2GoTransform(0.5, out_keys=[("returns", "discounted")]).inv(rollout)
    found = result["returns", "discounted"]
    for row in range(4):
        expected = by_hand(rollout["next", "reward"][row], rollout["next", "done"][row], 0.5)
        torch.testing.assert_close(found[row], expected)
    assert "returns" not in rollout.keys()
    assert torch.equal(result["next", "reward"], rollout["next", "reward"])


def test_end_of_the_data_ends_the_episode() -> None:
    done = torch.tensor([[False], [True], [False], [False]])
    found = Reward2GoTransform(0.5).inv(stored(torch.ones(4, 1), done))["next", "reward"]
    assert found.flatten().tolist() == [1.5, 1.0, 1.5, 1.0]


def test_several_rewards_and_a_discount_for_each_element() -> None:
    reward = torch.ones(3, 2)
    data = stored(reward, torch.tensor([[False], [False], [True]]))
    data["next", "bonus"] = torch.tensor([1, 2, 4])
    gamma = torch.tensor([1.0, 0.0])
    found = Reward2GoTransform(gamma).inv(data)["next", "reward"]
    assert found.tolist() == [[3.0, 1.0], [2.0, 1.0], [1.0, 1.0]]
    keys: Any = [("next", "reward"), ("next", "bonus")]
    both = Reward2GoTransform(1.0, keys, ["a", "b"]).inv(data)
    assert both["b"].tolist() == [7.0, 6.0, 4.0]
    assert both["a"].shape == (3, 2)


def test_a_flag_of_a_group() -> None:
    rollout = GroupsEnv((2,)).rollout(6, break_when_any_done=False)
    key: Any = ("next", "solo", "reward")
    found = Reward2GoTransform(0.9, [key], ["returns"], ("solo", "done")).inv(rollout)
    reward, done = rollout[key], rollout["next", "solo", "done"]
    torch.testing.assert_close(found["returns"][0], by_hand(reward[0], done[0], 0.9))
    full = Reward2GoTransform(0.9, [key], ["returns"], ("next", "solo", "done")).inv(rollout)
    assert torch.equal(full["returns"], found["returns"])


def test_later_samples_do_not_change_earlier_ones() -> None:
    data = stored(torch.ones(3, 1), torch.tensor([[False], [False], [True]]))
    returns = Reward2GoTransform(0.5)
    kept = returns.inv(data)
    assert torch.equal(returns(kept.clone())["next", "reward"], kept["next", "reward"])


def refused(place: Any) -> None:
    with pytest.raises(ChainError, match=r"needs whole episodes.*replay buffer"):
        place()


def test_env_is_refused() -> None:
    env = GymEnv("Pendulum-v1")
    refused(lambda: TransformedEnv(env, Reward2GoTransform()))
    refused(lambda: TransformedEnv(env, Compose(StepCounter(), Reward2GoTransform())))
    chained = TransformedEnv(env, StepCounter())
    returns = Reward2GoTransform()
    refused(lambda: chained.append_transform(returns))
    assert chained.rollout(3).shape == (3,)
    longer = TransformedEnv(env, Compose(StepCounter()))
    refused(lambda: longer.append_transform(returns))
    assert [type(stage) for stage in longer.stages] == [StepCounter]
    assert longer.rollout(3).shape == (3,)
    assert isinstance(Compose(returns)[0], Reward2GoTransform)


@pytest.mark.parametrize("gamma", [1.5, -0.1, float("nan"), cast(Any, "high")])
def test_invalid_discounts(gamma: float) -> None:
    with pytest.raises(ArgumentError, match="gamma must be"):
        Reward2GoTransform(gamma)


def test_invalid_data() -> None:
    whole = stored(torch.ones(3, 1), torch.tensor([[False], [False], [True]]))
    transform: Transform = Reward2GoTransform()
    with pytest.raises(ArgumentError, match="no episode ends"):
        transform.inv(stored(torch.ones(3, 1), torch.zeros(3, 1, dtype=torch.bool)))
    with pytest.raises(KeyNotFoundError, match=r"'next\.reward'"):
        transform.inv(whole.exclude(("next", "reward")))
    with pytest.raises(KeyNotFoundError, match=r"keep 'next\.done' in the data"):
        transform.inv(whole.exclude(("next", "done")))
    with pytest.raises(ArgumentError, match="need a time dim"):
        transform.inv(whole[0])


# Binary rewards


@pytest.mark.parametrize("shape", [(1,), (), (2, 3)])
def test_positive_rewards_become_one(shape: tuple[int, ...]) -> None:
    reward = torch.tensor([-1.0, 0.0, 0.1, float("nan")]).reshape(4, *(1 for _ in shape))
    reward = reward.expand(4, *shape)
    found = BinarizeReward()(TensorDict(reward=reward, batch_size=[4]))["reward"]
    assert found.shape == reward.shape
    assert found.reshape(4, -1)[:, 0].tolist() == [0, 0, 1, 0]


def test_binary_rewards_have_a_binary_spec() -> None:
    env = TransformedEnv(RowsEnv((2,)), BinarizeReward())
    assert env.reward_spec == Binary(shape=(2, 1))
