"""Traps 1 to 6 of the reference: frame stacks, stored steps, state and masks over resets."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from tdx import (
    CatFrames,
    Compose,
    InitTracker,
    RenameTransform,
    RewardSum,
    StepCounter,
    TransformedEnv,
)
from tdx.foundation.errors import TdxError
from tdx.transforms import Transform
from tests.transforms.envs import GroupsEnv, RowsEnv
from tests.transforms.fixed_rollouts import FixedActions, assert_same, entries, fixed_rollout

# Stored steps do not change


def test_stored_steps_do_not_change_later() -> None:
    env = TransformedEnv(
        RowsEnv((4,)), Compose(CatFrames(2, -1, ["observation"]), RewardSum(), InitTracker())
    )
    current, policy, kept = env.reset(), FixedActions(env), []
    for _ in range(8):
        stepped = env.step(policy(current))
        kept.append((stepped, {key: value.clone() for key, value in entries(stepped).items()}))
        current = env.maybe_reset(env.step_mdp(stepped))
    for stepped, before in kept:
        for key, value in before.items():
            assert torch.equal(stepped[key], value), key


def test_a_partial_reset_leaves_next_as_it_was() -> None:
    env = TransformedEnv(RowsEnv((4,)), CatFrames(2, -1, ["observation"]))
    stepped = env.step(FixedActions(env)(env.reset()))
    before = stepped["next"].clone()
    stepped["_reset"] = torch.tensor([[True], [False], [True], [False]])
    after = env.reset(stepped)
    assert_same(after["next"], before)


# State of one row, one group


def expected_sums(rewards: Tensor, done: Tensor) -> Tensor:
    """Return sums of ``[T, 1]`` rewards that restart after each done flag."""
    total, sums = torch.zeros(1), []
    for reward, end in zip(rewards, done, strict=True):
        total = total + reward
        sums.append(total)
        total = torch.zeros(1) if end else total
    return torch.stack(sums)


def test_end_of_a_row_resets_only_its_state() -> None:
    env = TransformedEnv(RowsEnv((4,)), Compose(RewardSum(), StepCounter()))
    rollout = fixed_rollout(env, 12)
    for row in rollout:
        following, ones = row["next"], torch.ones(12, 1)
        done = following["done"]
        sums = expected_sums(following["reward"], done)
        counts = expected_sums(ones, done)
        assert torch.equal(following["episode_reward"], sums)
        assert torch.equal(following["step_count"], counts.long())


def test_every_reward_is_summed_until_its_own_group_ends() -> None:
    rollout = fixed_rollout(TransformedEnv(GroupsEnv(), Compose(RewardSum(), StepCounter())), 12)
    for group, agents in (("solo", [()]), ("pair", [(0,), (1,)])):
        following = rollout["next", group]
        for agent in agents:
            one = {key: value[(slice(None), *agent)] for key, value in following.items()}
            assert torch.equal(one["episode_reward"], expected_sums(one["reward"], one["done"]))
            counts = expected_sums(torch.ones(12, 1), one["done"])
            assert torch.equal(one["step_count"], counts.long())
    assert rollout["next", "solo", "step_count"].max() == 2
    assert rollout["next", "pair", "step_count"].max() == 3


# Reset masks and reset inputs


def test_the_reset_mask_has_the_shape_of_done_and_is_not_mutated() -> None:
    seen = []

    class Watching(Transform):
        def _reset(
            self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
        ) -> TensorDictBase:
            assert tensordict is not None
            seen.append(tensordict.get("_reset", None))
            return tensordict_reset

    env = TransformedEnv(RowsEnv((4,)), Compose(StepCounter(), Watching(), RewardSum()))
    mask = torch.tensor([[True], [False], [False], [True]])
    before, given = mask.clone(), env.rand_step(env.reset())
    env.reset(given.set("_reset", mask))
    assert torch.equal(mask, before)
    assert seen[-1].shape == env.full_done_spec["done"].shape
    with pytest.raises(TdxError, match="shape"):
        env.reset(given.set("_reset", torch.ones(4, dtype=torch.bool)))


def test_reset_inputs_pass_through_the_inverse_transforms() -> None:
    given: dict[str, Tensor] = {}

    class Listening(RowsEnv):
        def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
            if tensordict is not None:
                given.update(entries(tensordict))  # type: ignore[arg-type]
            return super()._reset(tensordict, **kwargs)

    class Goal(Transform):
        def _inv_apply_transform(self, tensor: Tensor) -> Tensor:
            return tensor * 10

    chain = Compose(RenameTransform([], [], ["target"], ["goal"]), Goal(in_keys_inv=["goal"]))
    chain.set_missing_tolerance()
    env = TransformedEnv(Listening(), chain)
    env.reset(TensorDict(goal=torch.ones(1)))
    assert given["target"].item() == 10
