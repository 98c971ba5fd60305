"""Traps 8 and 11 of the reference: renamings and casts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tdx import (
    Compose,
    InitTracker,
    RenameTransform,
    RewardSum,
    StepCounter,
    TensorDictPrimer,
    Transform,
    TransformedEnv,
    Unbounded,
    check_env_specs,
)
from tdx.foundation.errors import ArgumentError, ChainError, KeyNotFoundError, TdxError
from tests.transforms.envs import RowsEnv
from tests.transforms.fixed_rollouts import fixed_rollout

# Renaming


@pytest.mark.parametrize("create_copy", [False, True])
def test_specs_follow_a_renaming_and_the_base_env_keeps_its_own(create_copy: bool) -> None:
    base = RowsEnv((4,))
    output_spec, input_spec = base.output_spec.clone(), base.input_spec.clone()
    rename = RenameTransform(
        ["observation"], ["seen"], ["action"], ["move"], create_copy=create_copy
    )
    env = TransformedEnv(base, rename)
    assert ("observation" in env.observation_keys, "seen" in env.observation_keys) == (
        create_copy,
        True,
    )
    assert env.action_keys == (["action", "move"] if create_copy else ["move"])
    check_env_specs(env)
    assert base.output_spec == output_spec
    assert base.input_spec == input_spec


@pytest.mark.parametrize(
    ("stage", "key"),
    [
        (lambda: StepCounter(3), "step_count"),
        (lambda: RewardSum(["reward"]), "episode_reward"),
        (lambda: TensorDictPrimer(hidden=Unbounded((4, 2)), expand_specs=False), "hidden"),
    ],
)
@pytest.mark.parametrize("create_copy", [False, True])
@pytest.mark.parametrize("both_ways", [False, True])
def test_a_running_value_continues_under_another_key(
    stage: Callable[[], Transform], key: str, create_copy: bool, both_ways: bool
) -> None:
    inverse = {"in_keys_inv": [key], "out_keys_inv": ["renamed"]} if both_ways else {}
    rename = RenameTransform([key], ["renamed"], **inverse, create_copy=create_copy)
    env = TransformedEnv(RowsEnv((4,)), Compose(stage(), rename))
    check_env_specs(env)
    assert ("renamed" in env.state_keys) == both_ways
    plain = TransformedEnv(RowsEnv((4,)), stage())
    renamed, expected = (
        fixed_rollout(each)["next", name] for each, name in ((env, "renamed"), (plain, key))
    )
    assert torch.equal(renamed, expected)


def test_three_renamings_in_a_row() -> None:
    chain = Compose(
        RenameTransform(["observation"], ["third"], ["action"], ["move"]),
        RenameTransform(["precise"], ["observation"], ["move"], [("moves", "now")]),
        RenameTransform(["third"], ["precise"], [("moves", "now")], ["action"]),
    )
    plain, env = RowsEnv((4,)), TransformedEnv(RowsEnv((4,)), chain)
    check_env_specs(env)
    expected, swapped = fixed_rollout(plain), fixed_rollout(env)
    for place in ((), ("next",)):
        assert torch.equal(swapped[(*place, "precise")], expected[(*place, "observation")])
        assert torch.equal(swapped[(*place, "observation")], expected[(*place, "precise")])
    assert torch.equal(swapped["action"], expected["action"])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((["observation"], ["pixels"]), ChainError, "'pixels', which already exists"),
        ((["observation"], ["reward"]), ChainError, "'reward', which already exists"),
        ((["obervation"], ["x"]), KeyNotFoundError, "existing keys: observation"),
        ((["done"], [("a", "done")]), ChainError, "keep the flag in its group"),
        (([], [], ["act"], ["x"]), KeyNotFoundError, "existing keys: action"),
    ],
)
def test_impossible_renaming_is_detected_from_the_specs(
    arguments: Any, error: type[TdxError], message: str
) -> None:
    env = TransformedEnv(RowsEnv(), Compose(InitTracker(), RenameTransform(*arguments)))
    with pytest.raises(error, match=f"stage 1 .RenameTransform.*{message}"):
        env.output_spec  # noqa: B018


@pytest.mark.parametrize(
    "arguments", [(["a"], ["b", "c"]), (["a", "b"], ["b", "a"]), (["a", "b"], ["c", "c"])]
)
def test_ambiguous_renaming(arguments: Any) -> None:
    with pytest.raises(ArgumentError):
        RenameTransform(*arguments)
