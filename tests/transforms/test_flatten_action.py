"""Values, specs and errors of ``FlattenAction``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from tdx import (
    FlattenAction,
    TransformedEnv,
)
from tdx.foundation.errors import ArgumentError, ChainError
from tdx.specs import Bounded, Unbounded
from tests.transforms.envs import MatrixRowsEnv

# Flat actions


@pytest.mark.parametrize("batch_size", [(), (4,), (2, 3)])
def test_a_flat_action_reaches_the_env_in_its_shape(batch_size: tuple[int, ...]) -> None:
    base = MatrixRowsEnv(batch_size)
    env = TransformedEnv(base, FlattenAction())
    low = torch.arange(-6.0, 0.0).expand(*batch_size, 6)
    assert env.action_spec == Bounded(low, torch.ones(*batch_size, 6))
    action = env.action_spec.rand()
    env.step(env.reset().set("action", action))
    assert base.given is not None
    torch.testing.assert_close(base.given, action.unflatten(-1, (2, 3)).mean(-1))


def test_dims_from_the_front_of_a_batched_env_fit_stored_data() -> None:
    flatten = FlattenAction(1, 2, allow_positive_dim=True)
    env = TransformedEnv(MatrixRowsEnv((4,)), flatten)
    assert env.action_spec.shape == (4, 6)
    stored = TensorDict(action=torch.zeros(4, 9, 2, 3), batch_size=[4, 9])
    assert flatten(stored)["action"].shape == (4, 9, 6)


def test_several_actions_under_new_names() -> None:
    flatten = FlattenAction(out_keys_inv=["flat"], in_keys=["action"], out_keys=["flat"])
    env = TransformedEnv(MatrixRowsEnv(), flatten)
    assert env.action_keys == ["flat"]
    stored = flatten(TensorDict(action=torch.zeros(5, 2, 3)))
    assert stored["flat"].shape == (5, 6)
    assert stored["action"].shape == (5, 2, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"first_dim": 0}, "count from the front"),
        ({"first_dim": -1, "last_dim": -2}, "comes after last_dim"),
        ({"action_shape": [6]}, "has 1 sizes, the dims -2 to -1 are 2"),
    ],
)
def test_bad_dims(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        FlattenAction(**arguments)


def test_inverse_without_an_env_is_refused() -> None:
    with pytest.raises(ChainError, match="pass action_shape"):
        FlattenAction().inv(TensorDict(action=torch.zeros(6)))


def test_unbounded_actions_stay_unbounded() -> None:
    base = MatrixRowsEnv()
    base.action_spec = Unbounded((2, 3))
    assert TransformedEnv(base, FlattenAction()).action_spec == Unbounded((6,))


def test_a_lone_tensor_is_restored_if_there_is_a_single_action() -> None:
    action = torch.arange(6.0)
    flatten = FlattenAction(action_shape=[2, 3])
    assert torch.equal(flatten._inv_apply_transform(action), action.reshape(2, 3))
    several = FlattenAction(in_keys_inv=["a", "b"], action_shape=[2, 3])
    with pytest.raises(ArgumentError, match="differ by key"):
        several._inv_apply_transform(action)
