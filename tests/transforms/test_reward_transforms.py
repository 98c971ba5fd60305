"""Values and specs of transforms of rewards."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from tdx import BinarizeReward, Bounded, RewardClipping, RewardScaling, TransformedEnv, Unbounded
from tdx.foundation.errors import ArgumentError, ChainError
from tdx.specs import TensorSpec
from tdx.specs.bounded import clamp_spec
from tdx.transforms import ObservationTransform, Transform
from tests.transforms.envs import RowsEnv

REWARDS = [-3.0, -0.5, 0.0, 0.5, 3.0]


def apply(transform: Transform, values: Any, dtype: torch.dtype = torch.float32) -> Tensor:
    result: Tensor = transform(TensorDict(reward=torch.tensor(values, dtype=dtype)))["reward"]
    return result


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ((-1.0, 1.0), [-1.0, -0.5, 0.0, 0.5, 1.0]),
        ((None, 0.25), [-3.0, -0.5, 0.0, 0.25, 0.25]),
        ((0.0, None), [0.0, 0.0, 0.0, 0.5, 3.0]),
        ((None, None), REWARDS),
    ],
)
def test_clipped_rewards(bounds: tuple[Any, Any], expected: list[float]) -> None:
    assert apply(RewardClipping(*bounds), REWARDS).tolist() == expected


def test_clipping_keeps_the_dtype_of_integers() -> None:
    clipped = apply(RewardClipping(-1, 1), [-3, 0, 3], torch.int32)
    assert clipped.dtype is torch.int32
    assert clipped.tolist() == [-1, 0, 1]


def test_assigned_and_loaded_bounds_apply_to_values_and_specs() -> None:
    clipping: Any = RewardClipping(-1.0, 1.0)
    env: Any = TransformedEnv(RowsEnv(), clipping)
    assert env.reward_spec.high.item() <= 1
    clipping.clamp_max = 0.5
    assert apply(clipping.clone(), [3.0]).item() == 0.5
    assert env.reward_spec.high.item() <= 0.5
    other = RewardClipping(-9.0, 9.0)
    other.load_state_dict(clipping.state_dict())
    assert apply(other, [-3.0, 3.0]).tolist() == [-1.0, 0.5]


def test_casting_does_not_round_the_bounds() -> None:
    assert apply(RewardClipping(0.1, None).half(), [0.0], torch.float64).item() == 0.1


@pytest.mark.parametrize(
    ("spec", "low", "high"),
    [
        (Unbounded((1,)), -1.0, 2.0),
        (Bounded(-0.5, 5.0, shape=(1,)), -0.5, 2.0),
        (Bounded(3.0, 5.0, shape=(1,)), 2.0, 2.0),
        (Unbounded((1,), dtype=torch.int8), -1, 2),
    ],
)
def test_clamped_bounds(spec: TensorSpec, low: float, high: float) -> None:
    clamped = clamp_spec(spec, -1, 2)
    assert isinstance(clamped, Bounded)
    assert (clamped.low.item(), clamped.high.item()) == (low, high)
    assert clamped.dtype is spec.dtype


@pytest.mark.parametrize("bounds", [(2.0, 1.0), (math.nan, 1.0), ("1", None), (True, None)])
def test_invalid_bounds(bounds: tuple[Any, Any]) -> None:
    with pytest.raises(ArgumentError, match="clamp_min"):
        RewardClipping(*bounds)


def test_unreachable_bounds() -> None:
    class ByteRewards(RowsEnv):
        def __init__(self) -> None:
            super().__init__()
            self.reward_spec = Unbounded((1,), dtype=torch.uint8)

    with pytest.raises(ChainError, match=r"no value of torch\.uint8 is within the bounds"):
        TransformedEnv(ByteRewards(), RewardClipping(300, 400)).output_spec  # noqa: B018


def test_scaled_rewards() -> None:
    assert apply(RewardScaling(1.0, 0.5), REWARDS).tolist() == [-0.5, 0.75, 1.0, 1.25, 2.5]
    standard = RewardScaling(1.0, 0.5, standard_normal=True)
    assert apply(standard, REWARDS).tolist() == [-8.0, -3.0, -2.0, -1.0, 4.0]


def test_binarized_rewards() -> None:
    binary = apply(BinarizeReward(), REWARDS)
    assert binary.dtype is torch.int8
    assert binary.tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    "transform", [RewardClipping(), RewardScaling(0.0, 1.0), BinarizeReward()], ids=repr
)
def test_a_reward_transform_is_not_an_observation_transform(transform: Transform) -> None:
    assert transform.in_keys == ["reward"]
    assert not isinstance(transform, ObservationTransform)
