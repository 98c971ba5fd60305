"""Values and specs of ActionScaling."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from tdx import ActionScaling, Bounded, TransformedEnv
from tdx.foundation.errors import ArgumentError, ChainError
from tests.transforms.envs import RowsEnv

ACTIONS = torch.tensor([[-1.0, 0.0], [0.5, 1.0]])


def scaled(scaling: ActionScaling, actions: torch.Tensor) -> list[list[float]]:
    found: Any = scaling.inv(TensorDict(action=actions, batch_size=[len(actions)]))["action"]
    return found.tolist()


def test_the_range_of_the_env_becomes_minus_one_to_one() -> None:
    env = TransformedEnv(RowsEnv(), ActionScaling())  # from -2 to 4, and from 0.5 to 1
    assert env.action_spec == Bounded(-1.0, 1.0, shape=(2,))
    assert scaled(env.transform, ACTIONS) == [[-2.0, 0.75], [2.5, 1.0]]


def test_the_range_of_the_env_becomes_zero_to_one() -> None:
    env = TransformedEnv(RowsEnv(), ActionScaling(standard_normal=False))
    assert env.action_spec == Bounded(0.0, 1.0, shape=(2,))
    assert scaled(env.transform, ACTIONS.clamp(0.0)) == [[-2.0, 0.5], [1.0, 1.0]]


def test_given_loc_and_scale() -> None:
    assert scaled(ActionScaling(loc=1.0, scale=2.0), ACTIONS) == [[-1.0, 1.0], [2.0, 3.0]]


def test_stored_actions_are_mapped_to_those_of_the_policy() -> None:
    stored = TensorDict(action=torch.tensor([[-2.0, 0.75], [2.5, 1.0]]), batch_size=[2])
    env = TransformedEnv(RowsEnv(), ActionScaling())
    env.action_spec  # noqa: B018 - derives loc and scale
    assert torch.equal(env.transform(stored)["action"], ACTIONS)


def test_invalid_arguments() -> None:
    with pytest.raises(ArgumentError, match="only one of loc and scale"):
        ActionScaling(loc=0.0)
    with pytest.raises(ArgumentError, match="a single action"):
        ActionScaling(["action", "other"])
    with pytest.raises(ChainError, match="no loc and scale yet"):
        ActionScaling().inv(TensorDict(action=ACTIONS, batch_size=[2]))


def test_statistics_of_a_dataset() -> None:
    moments = {"action_mean": torch.tensor([1.0, 2.0]), "action_std": torch.tensor([2.0, 4.0])}
    metadata = SimpleNamespace(**moments, action_low=None, action_key=("robot", "action"))
    scaling = ActionScaling.from_metadata(metadata)
    assert scaling.in_keys_inv == [("robot", "action")]
    assert torch.equal(scaling.normalize(torch.tensor([3.0, 6.0])), torch.ones(2))
    stored_only = ActionScaling.from_metadata(metadata, in_keys_inv=[])
    assert (stored_only.in_keys_inv, stored_only.in_keys) == ([], [("robot", "action")])
    ends = SimpleNamespace(action_low=torch.tensor([0.0]), action_high=torch.tensor([10.0]))
    assert ActionScaling.from_metadata(ends).denormalize(torch.tensor([1.0])).tolist() == [10.0]
    with pytest.raises(ArgumentError, match="no statistics of the actions"):
        ActionScaling.from_metadata(SimpleNamespace(action_mean=torch.ones(2)))


def test_the_largest_number_is_not_a_range() -> None:
    base = RowsEnv()
    largest = torch.finfo(torch.float32).max
    base.action_spec = Bounded(-2.0, largest, shape=(2,))
    env = TransformedEnv(base, ActionScaling())
    with pytest.raises(ChainError, match="without a finite, non-empty range"):
        _ = env.action_spec
