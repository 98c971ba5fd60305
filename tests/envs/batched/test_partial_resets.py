"""Partial resets."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from tdx.envs.batched import SerialEnv
from tdx.foundation.errors import EnvError
from tests.envs.batched.conftest import MakeBatch
from tests.envs.mocks import CountingEnv, TwoGroupsEnv

LONG = partial(CountingEnv, stop=100)


def after_two_steps(env: CountingEnv) -> TensorDictBase:
    first = env.step_mdp(env.rand_step(env.reset()))
    return env.step_mdp(env.rand_step(first))


def test_only_the_masked_rows_are_reset(make_batch: MakeBatch) -> None:
    env = make_batch(3, LONG)
    current = after_two_steps(env)
    mask = torch.tensor([[False], [True], [False]])
    after = env.reset(current.clone().set("_reset", mask))
    assert after["observation"].tolist() == [[2], [0], [2]]
    assert "_reset" not in after.keys()
    assert mask.tolist() == [[False], [True], [False]]
    assert env.resets == [1, 2, 1]
    following = env.rand_step(after)
    assert following["next", "observation"].tolist() == [[3], [1], [3]]


def test_rows_that_are_not_reset_keep_their_inputs(make_batch: MakeBatch) -> None:
    env = make_batch(2, LONG)
    current = after_two_steps(env)
    current["observation"] = torch.tensor([[50], [60]])
    current["_reset"] = torch.tensor([[True], [False]])
    assert env.reset(current)["observation"].tolist() == [[0], [60]]


def test_rows_that_are_not_reset_hold_their_last_observation(make_batch: MakeBatch) -> None:
    env = make_batch(2, LONG)
    after_two_steps(env)
    mask = TensorDict({"_reset": torch.tensor([[True], [False]])}, batch_size=[2])
    assert env.reset(mask)["observation"].tolist() == [[0], [2]]


def test_all_false_mask_resets_no_row(make_batch: MakeBatch) -> None:
    env = make_batch(2, LONG)
    current = after_two_steps(env)
    current["_reset"] = torch.zeros(2, 1, dtype=torch.bool)
    assert env.reset(current)["observation"].tolist() == [[2], [2]]
    assert env.resets == [1, 1]


def test_partial_reset_does_not_change_the_previous_step(make_batch: MakeBatch) -> None:
    env = make_batch(2, CountingEnv, create_env_kwargs=[{"stop": 1}, {"stop": 2}])
    step, following = env.step_and_maybe_reset(env.rand_action(env.reset()))
    assert step["next", "observation"].tolist() == [[1], [1]]
    assert step["next", "done"].tolist() == [[True], [False]]
    assert following["observation"].tolist() == [[0], [1]]
    assert following["done"].tolist() == [[False], [False]]


def test_each_group_resets_by_its_mask(make_batch: MakeBatch) -> None:
    env = make_batch(2, TwoGroupsEnv)
    result = env.rollout(6, break_when_any_done=False)
    assert result["next", "a", "observation"][0].flatten().tolist() == [1, 2, 1, 2, 1, 2]
    assert result["next", "b", "observation"][1, :, 0, 0].tolist() == [1, 2, 3, 1, 2, 3]


def test_envs_that_are_batches_get_their_part_of_the_mask(make_batch: MakeBatch) -> None:
    env = make_batch(2, partial(CountingEnv, stop=100, batch_size=(3,)))
    current = after_two_steps(env)
    mask = torch.zeros(2, 3, 1, dtype=torch.bool)
    mask[1, 2] = True
    after = env.reset(current.set("_reset", mask))
    assert after["observation"].squeeze(-1).tolist() == [[2, 2, 2], [2, 2, 0]]
    assert env.resets == [1, 2]
    following = env.rand_step(after)["next", "observation"]
    assert following.squeeze(-1).tolist() == [[3, 3, 3], [3, 3, 1]]


def test_nested_batches_reset_single_rows(make_batch: MakeBatch) -> None:
    env = make_batch(2, lambda: SerialEnv(2, LONG))
    current = after_two_steps(env)
    mask = torch.zeros(2, 2, 1, dtype=torch.bool)
    mask[0, 1] = True
    after = env.reset(current.set("_reset", mask))
    assert after["observation"].squeeze(-1).tolist() == [[2, 0], [2, 2]]
    assert env.resets == [[1, 2], [1, 1]]


@pytest.mark.parametrize(
    "mask", [torch.ones(2, dtype=torch.bool), torch.ones(2, 1), torch.ones(2, 2, dtype=torch.bool)]
)
def test_invalid_mask_is_rejected(make_batch: MakeBatch, mask: torch.Tensor) -> None:
    env = make_batch(2, LONG)
    current = env.reset()
    current["_reset"] = mask
    with pytest.raises(EnvError, match="mask"):
        env.reset(current)
