"""Values, specs and errors of ``ExcludeTransform`` and ``SelectTransform``."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from tensordict import TensorDict

from tdx import (
    Compose,
    ExcludeTransform,
    GymEnv,
    RewardSum,
    SelectTransform,
    StepCounter,
    TransformedEnv,
    check_env_specs,
)
from tdx.foundation.errors import ArgumentError, ChainError, KeyNotFoundError
from tdx.foundation.keys import normalize_key
from tdx.transforms import Transform
from tests.transforms.envs import GroupsEnv, RowsEnv

FLAGS = {"done", "terminated", "truncated"}


def keys_of(tensordict: Any) -> set[Any]:
    return {normalize_key(key) for key in tensordict.keys(True, True)}


def test_excluded_keys_are_removed_everywhere() -> None:
    env = TransformedEnv(RowsEnv((2,)), ExcludeTransform("pixels", "image"))
    check_env_specs(env)
    assert keys_of(env.observation_spec) == {"observation", "precise"}
    rollout = env.rollout(3)
    assert keys_of(rollout["next"]) == {"observation", "precise", "reward", *FLAGS}
    assert not keys_of(env.reset()) & {"pixels", "image"}


def test_selected_keys_rewards_and_flags_are_kept() -> None:
    env = TransformedEnv(RowsEnv((2,)), SelectTransform("precise"))
    check_env_specs(env)
    assert keys_of(env.rollout(3)["next"]) == {"precise", "reward", *FLAGS}
    assert keys_of(env.rollout(3)) >= {"precise", "action"}


@pytest.mark.parametrize(
    "drop", [ExcludeTransform("step_count", "episode_reward"), SelectTransform("observation")]
)
def test_an_upstream_scan_continues_after_its_key_is_dropped(drop: Transform) -> None:
    counter = StepCounter(max_steps=4)
    env = TransformedEnv(GymEnv("Pendulum-v1"), Compose(counter, RewardSum(), drop))
    rollout = env.rollout(10)
    assert rollout.shape == (4,)
    assert keys_of(rollout["next"]) == {"observation", "reward", *FLAGS}
    check_env_specs(env)


def test_nested_keys_and_groups() -> None:
    env = TransformedEnv(GroupsEnv(), SelectTransform(("solo", "observation"), "pair"))
    check_env_specs(env)
    flags = {("solo", flag) for flag in FLAGS}
    following = env.rollout(2)["next"]
    solo = {key for key in keys_of(following) if key[0] == "solo"}
    assert solo == {("solo", "observation"), ("solo", "reward"), *flags}
    assert ("pair", "pixels") in keys_of(following)
    without = TransformedEnv(GroupsEnv(), ExcludeTransform(("solo", "pixels")))
    assert keys_of(env.full_done_spec) == keys_of(without.full_done_spec)
    assert ("solo", "pixels") not in keys_of(without.rollout(2)["next"])


def test_rewards_and_some_flags_can_be_dropped() -> None:
    env = TransformedEnv(
        RowsEnv(), SelectTransform("observation", "done", keep_rewards=False, keep_dones=False)
    )
    check_env_specs(env)
    assert keys_of(env.rollout(2)["next"]) == {"observation", "done"}
    plain = TransformedEnv(RowsEnv(), ExcludeTransform("reward", "truncated"))
    assert not keys_of(plain.rollout(2)["next"]) & {"reward", "truncated"}


@pytest.mark.parametrize(
    ("base", "transform"),
    [
        (RowsEnv(), SelectTransform("observation", keep_dones=False)),
        (RowsEnv(), ExcludeTransform("done", "terminated", "truncated")),
        (GroupsEnv(), SelectTransform(("pair", "done"), keep_dones=False)),
        (GroupsEnv(), ExcludeTransform("solo")),
    ],
)
def test_dropping_all_done_flags_is_refused(base: Any, transform: Transform) -> None:
    env = TransformedEnv(base, Compose(StepCounter(), transform))
    with pytest.raises(ChainError, match=r"drops all done flags .*keep at least") as caught:
        env.output_spec  # noqa: B018
    assert caught.value.where.stage == 1


@pytest.mark.parametrize("make", [ExcludeTransform, SelectTransform])
def test_unknown_key(make: Any) -> None:
    env = TransformedEnv(RowsEnv(), make("observaton"))
    with pytest.raises(KeyNotFoundError, match="existing keys: observation"):
        env.output_spec  # noqa: B018
    tolerant = make("observaton")
    tolerant.set_missing_tolerance(True)
    assert TransformedEnv(RowsEnv(), tolerant).rollout(2).shape == (2,)


@pytest.mark.parametrize("make", [ExcludeTransform, SelectTransform])
def test_invalid_key(make: Any) -> None:
    with pytest.raises(ArgumentError, match="a key must be a string or a tuple of strings"):
        make("a", 3)


def test_inverse_is_a_bool() -> None:
    with pytest.raises(ArgumentError, match="inverse must be a bool, got 'a'"):
        ExcludeTransform(inverse=cast(Any, "a"))


def test_inverse() -> None:
    class Picky(RowsEnv):
        def _step(self, tensordict: Any) -> Any:
            assert "note" not in tensordict.keys()
            return super()._step(tensordict)

    env = TransformedEnv(Picky(), ExcludeTransform("note", inverse=True))
    check_env_specs(env)
    stepped = env.step(env.rand_action(env.reset()).set("note", torch.ones(1)))
    assert "note" in stepped.keys()
    stored = TensorDict(note=torch.ones(2), reward=torch.ones(2))
    drop = ExcludeTransform("note", inverse=True)
    assert keys_of(drop.inv(stored)) == {"reward"}
    assert keys_of(drop(stored)) == {"note", "reward"}


def test_required_inputs_are_not_dropped() -> None:
    env = TransformedEnv(RowsEnv(), ExcludeTransform("action", inverse=True))
    with pytest.raises(ChainError, match="which the env needs as input"):
        env.input_spec  # noqa: B018


def test_stored_data() -> None:
    stored = RowsEnv((2,)).rollout(3, break_when_any_done=False)
    kept = SelectTransform("observation", "action")(stored.clone())
    following = {("next", name) for name in ("observation", "reward", *FLAGS)}
    assert keys_of(kept) == {"observation", "action", *FLAGS, *following}
    assert kept.shape == (2, 3)
    dropped = ExcludeTransform("pixels", ("next", "pixels"), "nowhere")(stored.clone())
    assert keys_of(stored) - keys_of(dropped) == {"pixels", ("next", "pixels")}
    bare = SelectTransform(keep_rewards=False, keep_dones=False)(stored.clone())
    assert not keys_of(bare)
