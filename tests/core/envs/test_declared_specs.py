"""Specs that a class declares, or that a constructor sets, changes and completes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from tdx import (
    Bounded,
    Categorical,
    Composite,
    EnvBase,
    GymEnv,
    SpecError,
    StepCounter,
    TransformedEnv,
    Unbounded,
    check_env_specs,
)


class Counter(EnvBase):
    """Env that ends after three steps and writes only ``done``."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.count = 0

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.count = 0
        return TensorDict(observation=torch.zeros(1))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.count += 1
        return TensorDict(
            observation=torch.full((1,), float(self.count)),
            reward=torch.ones(1),
            done=torch.tensor([self.count > 2]),
        )

    def _set_seed(self, seed: int | None) -> None:
        return None


class DeclaresInNew(Counter):
    """Env with specs as class attributes, and arguments of ``__new__``."""

    _output_spec: Composite
    _input_spec: Composite

    def __new__(cls, *args: Any, width: int = 1, **kwargs: Any) -> DeclaresInNew:
        cls._output_spec = Composite(full_observation_spec=Composite(observation=Unbounded(1)))
        cls._input_spec = Composite(full_action_spec=Unbounded(width))
        return super().__new__(cls, *args, **kwargs)

    def __init__(self, *, width: int = 1) -> None:
        super().__init__()


class SetsSpecsFirst(Counter):
    def __init__(self) -> None:
        self.observation_spec = Composite(observation=Unbounded(1))
        self.action_spec = Unbounded(1)
        self.done_spec = Categorical(2, (1,), dtype=torch.bool)
        super().__init__()


class ChangesSpecs(Counter):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_spec["observation"] = Unbounded(1)
        self.action_spec = Unbounded(2)
        self.full_action_spec["action"] = Unbounded(1)
        self.done_spec = Categorical(2, (1,), dtype=torch.bool)
        self.full_done_spec["truncated"] = self.full_done_spec["terminated"].clone()


@pytest.mark.parametrize("make", [DeclaresInNew, SetsSpecsFirst, ChangesSpecs])
def test_specs_may_be_set_anywhere_in_the_construction(make: type[Counter]) -> None:
    env = make()
    check_env_specs(env)
    env.check_env_specs(seed=0)
    rollout = TransformedEnv(env, StepCounter()).rollout(10)
    assert rollout["next", "observation"].flatten().tolist() == [1.0, 2.0, 3.0]
    assert rollout["next", "terminated"].flatten().tolist() == [False, False, True]


def test_arguments_of_new_reach_the_declared_specs() -> None:
    small, large = DeclaresInNew(), DeclaresInNew(width=4)
    assert (small.action_spec.shape, large.action_spec.shape) == ((1,), (4,))


def test_specs_are_locked_after_the_construction() -> None:
    env = ChangesSpecs()
    assert env.is_spec_locked
    assert env.output_spec.is_locked
    with pytest.raises(SpecError, match="locked"):
        env.observation_spec["more"] = Unbounded(1)
    open_env = ChangesSpecs(spec_locked=False)
    open_env.observation_spec["more"] = Unbounded(1)
    assert open_env.observation_keys == ["observation", "more"]
    env.set_spec_lock_(False)
    env.observation_spec["more"] = Unbounded(1)
    env.set_spec_lock_()
    assert env.observation_keys == ["observation", "more"]


def test_envs_with_unlocked_specs_step_as_others() -> None:
    rollouts = []
    for lock in (True, False):
        torch.manual_seed(0)
        env = GymEnv("CartPole-v1", spec_locked=lock, seed=0)
        chain = TransformedEnv(env, StepCounter()).set_spec_lock_(lock)
        rollouts.append((env.rollout(5), chain.rollout(5), chain.maybe_reset(chain.reset())))
    locked, unlocked = rollouts
    assert all((one == other).all() for one, other in zip(locked, unlocked, strict=True))


def test_a_chain_follows_specs_that_are_unlocked() -> None:
    env = ChangesSpecs()
    chain = TransformedEnv(env, StepCounter())
    assert chain.observation_keys == ["observation", "step_count"]
    chain.set_spec_lock_(False)
    env.observation_spec["more"] = Unbounded(1)
    assert set(chain.observation_keys) == {"observation", "more", "step_count"}
    chain.set_spec_lock_()
    assert set(chain.observation_keys) == {"observation", "more", "step_count"}


def test_terminated_is_added_to_a_lone_done_flag_during_construction_only() -> None:
    env = SetsSpecsFirst()
    assert env.done_keys == ["done", "terminated"]
    assert env.done_spec == Categorical(2, (1,), dtype=torch.bool)
    env.done_spec = Categorical(2, (1,), dtype=torch.bool)
    assert env.done_keys == ["done"]
    env.add_truncated_keys()
    assert env.done_keys == ["done", "truncated"]


class Incomplete(SetsSpecsFirst):
    auto_complete_done_specs = False


def test_a_class_may_keep_its_lone_flag() -> None:
    assert Incomplete().done_keys == ["done"]


class TwoGroups(Counter):
    """Env that declares flags at the root and in a group, and writes those at the root."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded(1))
        flag = Categorical(2, (1,), dtype=torch.bool)
        self.done_spec = Composite(done=flag, agents=Composite(done=flag.clone()))
        self.action_spec = Unbounded(1)


def test_a_group_without_flags_is_not_done() -> None:
    env = TwoGroups()
    rollout = env.rollout(10)
    assert rollout["next", "done"].any()
    assert not rollout["next", "agents", "done"].any()
    assert ("agents", "terminated") in env.done_keys


def test_a_lone_observation_is_named_observation() -> None:
    env = SetsSpecsFirst()
    env.observation_spec = Unbounded(1)
    assert env.observation_keys == ["observation"]


def test_specs_of_a_single_env() -> None:
    env = Counter(batch_size=[3, 2])
    env.action_spec = Bounded(-1.0, 1.0, shape=(3, 2, 4))
    assert env.action_spec_unbatched.shape == (4,)
    assert env.full_action_spec_unbatched.shape == ()
    assert env.output_spec_unbatched["full_reward_spec", "reward"].shape == (1,)
    env.action_spec_unbatched = Unbounded(5)
    assert env.action_spec.shape == (3, 2, 5)


def test_specs_are_inferred_from_steps() -> None:
    env = Counter()
    env.action_spec = Unbounded(1)

    def act(tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.set("action", torch.ones(1))

    assert env.auto_specs_(act) is env
    assert env.observation_keys == ["observation"]
    assert set(env.done_keys) == {"done", "terminated", "truncated"}
    assert env.full_reward_spec["reward"].shape == (1,)
    check_env_specs(env)
    with pytest.raises(SpecError, match="'observation', which has no part"):
        Counter().auto_specs_(act, observation_key="pixels")


class WrongDtype(SetsSpecsFirst):
    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return super()._step(tensordict).set("reward", torch.ones(1, dtype=torch.float64))


def test_type_checks_of_steps() -> None:
    env = WrongDtype()
    env.rand_step(env.reset())
    env.run_type_checks = True
    with pytest.raises(SpecError, match="reward"):
        env.rand_step(env.reset())


class DoneAfterReset(SetsSpecsFirst):
    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return super()._reset(tensordict).set("done", torch.ones(1, dtype=torch.bool))


def test_env_may_declare_to_be_done_after_a_reset() -> None:
    env = DoneAfterReset()
    with pytest.raises(AssertionError, match="done right after a reset"):
        check_env_specs(env)
    env.allow_done_after_reset = True
    check_env_specs(env)
    check_env_specs(TransformedEnv(env, StepCounter()))


def test_rollouts_of_given_actions() -> None:
    env = SetsSpecsFirst()
    played = [torch.full((1,), float(number)) for number in range(2)]
    assert env.rollout(10, actions=played)["action"].flatten().tolist() == [0.0, 1.0]
    assert env.rollout(2, actions=iter(played)).shape == (2,)
    with pytest.raises(ValueError, match="policy and actions"):
        env.rollout(2, env.rand_action, actions=played)
    assert env.rollout(2, storing_device="meta").device == torch.device("meta")


def test_a_policy_may_return_only_its_action() -> None:
    env = TransformedEnv(SetsSpecsFirst(), StepCounter())

    def act(tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.empty().set("action", torch.ones(1))

    for planned in (True, False):
        env.planned = planned
        assert env.rollout(10, act)["step_count"].flatten().tolist() == [0, 1, 2]


def test_chain_is_not_nested_if_unwrapped() -> None:
    base = SetsSpecsFirst()
    inner = TransformedEnv(base, StepCounter())
    outer = TransformedEnv(
        base_env=inner, transform=StepCounter(step_count_key="n"), auto_unwrap=True
    )
    assert outer.base_env is base
    assert [type(stage).__name__ for stage in outer.stages] == ["StepCounter", "StepCounter"]
    assert outer.rollout(2)["next", "n"].flatten().tolist() == [1, 2]
