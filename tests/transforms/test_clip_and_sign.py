"""Clipping entries, and their signs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from tdx import Bounded, ClipTransform, GymEnv, SignTransform, TransformedEnv, Unbounded
from tdx.foundation.errors import ArgumentError
from tests.transforms.envs import RowsEnv


def test_bounds_of_the_spec() -> None:
    env = TransformedEnv(GymEnv("Pendulum-v1"), ClipTransform(["observation", "reward"], low=-0.5))
    spec = env.observation_spec["observation"]
    assert isinstance(spec, Bounded)
    assert spec.low.tolist() == [-0.5, -0.5, -0.5]
    assert spec.high.tolist() == [1.0, 1.0, 8.0]
    assert isinstance(env.reward_spec, Bounded)
    assert env.reward_spec.high.item() == float("inf")


@pytest.mark.parametrize(
    ("transform", "taken"),
    [
        (ClipTransform(in_keys_inv=["action"], low=-1.0, high=0.75), [-1.0, 0.75]),
        (SignTransform(in_keys_inv=["action"]), [-1.0, 1.0]),
    ],
    ids=["clip", "sign"],
)
def test_actions(transform: Any, taken: list[float]) -> None:
    base = RowsEnv()
    env = TransformedEnv(base, transform)
    assert env.action_spec == base.action_spec
    env.step(env.reset().set("action", torch.tensor([-2.0, 1.0])))
    assert base.given is not None
    assert base.given.tolist() == taken


def test_the_bounds_are_state_and_not_cast() -> None:
    clip = ClipTransform(["a"], low=-0.1, high=3)
    clip.half()
    assert clip(a=torch.tensor([-9.0, 9.0])).tolist() == pytest.approx([-0.1, 3.0])
    other = ClipTransform(["a"], low=0, high=1)
    other.load_state_dict(clip.state_dict())
    assert other(a=torch.tensor([-9.0, 9.0])).tolist() == pytest.approx([-0.1, 3.0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"low": 0.0}, "needs in_keys or in_keys_inv"),
        ({"in_keys": ["a"]}, "needs low or high"),
        ({"in_keys": ["a"], "low": 1, "high": 0}, "is above high"),
        ({"in_keys": ["a"], "low": 1, "high": 1.0}, "both 1"),
        ({"in_keys": ["a"], "low": "1"}, "low must be a number"),
        ({"in_keys": ["a"], "high": torch.ones(2)}, "high must be a number"),
    ],
)
def test_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        ClipTransform(**arguments)


def test_a_range_that_a_dtype_lacks() -> None:
    env = TransformedEnv(GymEnv("Pendulum-v1"), ClipTransform(["observation"], low=20.0))
    assert env.reset()["observation"].tolist() == [20.0] * 3
    assert env.observation_spec.is_in(env.reset().select("observation"))


def test_specs_of_signs() -> None:
    env = TransformedEnv(RowsEnv(), SignTransform(["observation", "pixels", "reward"]))
    assert env.observation_spec["observation"] == Bounded(-1.0, 1.0, (3,))
    assert env.observation_spec["pixels"].low.max() == 0
    assert env.observation_spec["pixels"].high.min() == 1
    assert env.reward_spec == Bounded(-1.0, 1.0, (1,))
    counts = Unbounded((2,), dtype=torch.uint8)
    assert SignTransform(["a"])._transform_spec(counts) == Bounded(0, 1, (2,), dtype=torch.uint8)
    with pytest.raises(ArgumentError, match="needs in_keys"):
        SignTransform()


def test_signs_keep_the_dtype() -> None:
    signs = SignTransform(["a"])(TensorDict(a=torch.tensor([-3, 0, 9])))
    assert signs["a"].tolist() == [-1, 0, 1]
    assert signs["a"].dtype is torch.int64
