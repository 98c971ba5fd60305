"""Weighted sums of rewards with several objectives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from tdx import Bounded, Composite, LineariseRewards, Unbounded
from tdx.foundation.errors import ArgumentError


def test_bounds_of_a_weight_of_zero() -> None:
    spec = Composite(reward=Bounded(torch.tensor([0.0, float("-inf")]), torch.tensor([1.0, 2.0])))
    total = LineariseRewards(["reward"], weights=[-2.0, 0.0])
    assert total.transform_reward_spec(spec)["reward"] == Bounded(-2.0, 0.0, (1,))
    unbounded = Composite(reward=Unbounded((2,), dtype=torch.int32))
    counts = LineariseRewards(["reward"]).transform_reward_spec(unbounded)["reward"]
    assert counts == Unbounded((1,), dtype=torch.int64)


def test_every_value_is_within_the_bounds() -> None:
    low, high = torch.full((50,), 0.1), torch.full((50,), 0.7)
    total = LineariseRewards(["reward"], weights=torch.linspace(-3.0, 3.0, 50))
    spec = total.transform_reward_spec(Composite(reward=Bounded(low, high)))["reward"]
    weights = total.weights
    assert weights is not None
    for reward in (torch.where(weights > 0, high, low), torch.where(weights > 0, low, high)):
        assert spec.is_in(total(TensorDict(reward=reward))["reward"])


def test_weights_are_state() -> None:
    total = LineariseRewards(["reward"], weights=[1.0, 2.0])
    other = LineariseRewards(["reward"], weights=[0.0, 0.0])
    other.load_state_dict(total.state_dict())
    assert other(TensorDict(reward=torch.ones(2)))["reward"].tolist() == [3.0]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([[1.0]], "weights has 2 dims"),
        ([1.0, float("nan")], "weights must be finite"),
        ("12", "weights must be a number or a tensor"),
    ],
)
def test_weights(weights: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        LineariseRewards(["reward"], weights=weights)


def test_the_number_of_weights() -> None:
    total = LineariseRewards(["reward"], weights=[1.0, 2.0])
    with pytest.raises(ArgumentError, match="2 weights for 3 objectives"):
        total(TensorDict(reward=torch.ones(4, 3)))
    with pytest.raises(ArgumentError, match="scalar without dims"):
        LineariseRewards(["reward"])(TensorDict(reward=torch.tensor(1.0)))
