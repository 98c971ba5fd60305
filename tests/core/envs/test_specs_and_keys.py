"""The specs of an env, their setters, and the keys that follow from them."""

from __future__ import annotations

import pytest
import torch

from tdx import (
    Categorical,
    Composite,
    EnvBase,
    EnvError,
    KeyNotFoundError,
    SpecError,
    Unbounded,
)
from tests.envs.mocks import CountingEnv, TwoGroupsEnv


def test_env_without_specs_has_the_defaults() -> None:
    env = EnvBase(batch_size=[2])
    assert env.reward_spec == Unbounded((2, 1))
    assert env.done_keys == ["done", "terminated", "truncated"]
    for leaf in env.full_done_spec.values():
        assert leaf == Categorical(2, shape=(2, 1), dtype=torch.bool)
    assert env.observation_keys == env.action_keys == env.state_keys == []


def test_the_keys_of_one_group() -> None:
    env = CountingEnv()
    assert env.action_key == "action"
    assert env.action_keys == ["action"]
    assert env.reward_key == "reward"
    assert env.reward_keys == ["reward"]
    assert env.done_keys == ["done", "terminated", "truncated"]
    with pytest.raises(KeyNotFoundError, match=r"3 done keys .*use done_keys"):
        env.done_key  # noqa: B018
    assert env.reset_keys == ["_reset"]
    assert env.observation_keys == ["observation"]


def test_the_keys_of_several_groups() -> None:
    env = TwoGroupsEnv()
    assert env.action_keys == [("a", "action"), ("b", "action")]
    assert env.reward_keys == [("a", "reward"), ("b", "reward")]
    assert env.reset_keys == [("a", "_reset"), ("b", "_reset")]
    assert env.done_keys_groups == [
        [("a", "done"), ("a", "terminated")],
        [("b", "done"), ("b", "terminated")],
    ]


@pytest.mark.parametrize(("kind", "count"), [("action", 2), ("reward", 2), ("done", 4)])
def test_singular_key_of_several_is_an_error(kind: str, count: int) -> None:
    with pytest.raises(KeyNotFoundError, match=rf"the env has {count} {kind} keys \(a\.{kind}"):
        getattr(TwoGroupsEnv(), f"{kind}_key")


def test_keys_follow_a_new_spec() -> None:
    env = CountingEnv()
    assert env.action_keys == ["action"]
    env.action_spec = Composite(left=Unbounded(1), right=Unbounded(1))
    assert env.action_keys == ["left", "right"]
    assert set(env.rand_action().keys()) == {"left", "right"}
    env.done_spec = Composite({"group": {"done": Categorical(2, (1,), dtype=torch.bool)}})
    assert env.done_key == ("group", "done")
    assert env.reset_keys == [("group", "_reset")]


def test_key_lists_are_copies() -> None:
    env = CountingEnv()
    env.done_keys.append("mine")
    env.reset_keys.append("mine")
    assert env.done_keys == ["done", "terminated", "truncated"]
    assert env.reset_keys == ["_reset"]


@pytest.mark.parametrize("part", ["action", "reward", "done", "observation", "state"])
def test_the_full_spec_is_always_a_composite(part: str) -> None:
    env = CountingEnv()
    full = getattr(env, f"full_{part}_spec")
    assert isinstance(full, Composite)
    setattr(env, f"full_{part}_spec", full)
    assert getattr(env, f"full_{part}_spec") == full
    side = env.input_spec if part in ("action", "state") else env.output_spec
    assert side[f"full_{part}_spec"] == full


def test_combined_specs_outlive_the_env() -> None:
    env = CountingEnv()
    specs = env.specs
    assert set(specs.keys()) == {"output_spec", "input_spec"}
    expected = env.action_spec.clone()
    del env
    assert specs["input_spec", "full_action_spec", "action"] == expected


def test_input_and_output_specs_are_read_only() -> None:
    env = CountingEnv()
    assert env.input_spec.is_locked
    assert env.output_spec.is_locked
    with pytest.raises(SpecError, match="locked"):
        env.output_spec["extra"] = Unbounded(1)
    with pytest.raises(AttributeError):
        env.output_spec = Composite()


def test_later_changes_of_an_assigned_spec_have_no_effect() -> None:
    env = CountingEnv()
    given = Composite(observation=Unbounded(1))
    env.observation_spec = given
    given.unlock_()
    given["later"] = Unbounded(1)
    assert env.observation_keys == ["observation"]


def test_setters_check_their_type() -> None:
    env = CountingEnv(batch_size=(2,))
    with pytest.raises(SpecError, match="full_action_spec takes a spec, got int"):
        env.action_spec = 3  # type: ignore[assignment]
    with pytest.raises(SpecError, match="takes a Composite, got UnboundedContinuous"):
        env.state_spec = Unbounded((2, 1))
    with pytest.raises(SpecError, match=r"\(3,\) must begin with the composite's \(2,\)"):
        env.reward_spec = Unbounded(3)
    with pytest.raises(SpecError, match=r"does not start with the env's batch size \(2,\)"):
        env.reward_spec = Composite(reward=Unbounded(3))


def test_the_shape_of_the_batch() -> None:
    env = CountingEnv(batch_size=(2, 3))
    assert env.batch_size == env.shape == torch.Size([2, 3])
    assert env.ndim == env.batch_dims == env.ndimension() == 2
    assert env.numel() == 6
    assert CountingEnv().numel() == 1
    assert env.batch_locked
    with pytest.raises(EnvError, match="batch_locked is a read-only property"):
        env.batch_locked = False


def test_the_fake_tensordict_is_like_a_step() -> None:
    for env in (CountingEnv(), CountingEnv(3, (2, 3)), TwoGroupsEnv()):
        fake, real = env.fake_tensordict(), env.rand_step(env.reset())
        assert set(fake.keys(True, True)) == set(real.keys(True, True))
        for key in fake.keys(True, True):
            assert fake[key].shape == real[key].shape, key
            assert fake[key].dtype == real[key].dtype, key
            assert fake[key].device == real[key].device, key
        assert fake.batch_size == real.batch_size
