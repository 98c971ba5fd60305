"""Values, shapes and errors of ``TerminateTransform``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx import (
    TerminateTransform,
    TransformedEnv,
    check_env_specs,
)
from tdx.foundation.errors import ArgumentError
from tdx.specs import Categorical
from tests.envs.mocks import CountingEnv
from tests.transforms.envs import GroupsEnv, RowsEnv

# TerminateTransform


def at_two(tensordict: TensorDictBase) -> Tensor:
    reached: Tensor = tensordict["observation"] >= 2
    return reached


def test_episode_ends_if_the_condition_holds() -> None:
    env = TransformedEnv(CountingEnv(stop=100), TerminateTransform(at_two))
    rollout = env.rollout(10)
    assert rollout["next", "terminated"].flatten().tolist() == [False, True]
    assert rollout["next", "done"].flatten().tolist() == [False, True]
    assert not rollout["next", "truncated"].any()
    check_env_specs(env)


def test_flags_of_the_env_are_kept() -> None:
    env = TransformedEnv(CountingEnv(stop=1), TerminateTransform(lambda td: False))
    assert env.rollout(10)["next", "terminated"].flatten().tolist() == [True]


def test_done_can_be_kept() -> None:
    stop = TerminateTransform(at_two, write_done=False)
    rollout = TransformedEnv(CountingEnv(stop=4), stop).rollout(10)["next"]
    assert rollout["terminated"].flatten().tolist() == [False, True, True, True]
    assert rollout["done"].flatten().tolist() == [False, False, False, True]


@pytest.mark.parametrize(
    "stop",
    [
        lambda td: td["observation"][..., 0] > 12,
        lambda td: td["observation"][..., :1] > 12,
        lambda td: (td["observation"][..., 0] > 12).float(),
        lambda td: (td["observation"][..., 0] > 12).numpy(),
    ],
    ids=["rows", "flags", "floats", "array"],
)
def test_rows_end_independently(stop: Callable[[TensorDictBase], Any]) -> None:
    env = TransformedEnv(RowsEnv((2, 3), endless=True), TerminateTransform(stop))
    flags = env.step(env.rand_action(env.reset()))["next", "done"]
    assert flags.flatten().tolist() == [False, False, True, True, True, True]


def test_single_result_applies_to_all_rows_and_groups() -> None:
    env = TransformedEnv(GroupsEnv((2,)), TerminateTransform(lambda td: True))
    following = env.rand_step(env.reset())["next"]
    assert following["solo", "terminated"].all()
    assert following["pair", "done"].shape == (2, 2, 1)
    assert following["pair", "done"].all()


def test_an_env_with_done_alone_gets_terminated() -> None:
    base = CountingEnv(stop=100)
    base.done_spec = Categorical(2, shape=(1,), dtype=torch.bool)
    env = TransformedEnv(base, TerminateTransform(at_two))
    assert "terminated" in env.done_keys
    assert env.rollout(5)["next", "terminated"].flatten().tolist() == [False, True]
    check_env_specs(env)


def test_stored_data_is_marked() -> None:
    stored = CountingEnv(stop=100).rollout(4)
    marked = TerminateTransform(at_two)(stored)
    assert marked["next", "done"].flatten().tolist() == [False, True, True, True]
    assert not marked["done"].any()


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        (lambda td: None, "stop returned NoneType"),
        (lambda td: torch.ones(3, dtype=torch.bool), r"shape \(3,\), the done flag has \(2, 1\)"),
    ],
)
def test_invalid_result(stop: Callable[[TensorDictBase], Any], message: str) -> None:
    env = TransformedEnv(RowsEnv((2,)), TerminateTransform(stop))
    with pytest.raises(ArgumentError, match=message):
        env.rand_step(env.reset())


def test_condition_is_not_a_function() -> None:
    with pytest.raises(ArgumentError, match="stop must be a function"):
        TerminateTransform(True)  # type: ignore[arg-type]
