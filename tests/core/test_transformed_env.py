"""``TransformedEnv``: building, changing and nesting chains."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from tdx import (
    ArgumentError,
    ChainError,
    Compose,
    GymEnv,
    InitTracker,
    RenameTransform,
    RewardClipping,
    RewardScaling,
    RewardSum,
    StepCounter,
    TransformedEnv,
    Unbounded,
)
from tdx.core import stage_specs
from tests.core.stages import Adds, add_square, names, zero_action
from tests.envs.mocks import CountingEnv


def rewards(env: TransformedEnv) -> list[float]:
    return env.rollout(1, zero_action)["next", "reward"].flatten().tolist()


def test_the_documented_example_of_a_chain() -> None:
    env = GymEnv("Pendulum-v1")
    transforms = Compose(RewardScaling(1.0, 1.0), RewardClipping(-2.0, 2.0))
    transformed = TransformedEnv(env, transforms)
    rollout = transformed.rollout(10)
    assert rollout["next", "reward"].abs().max() <= 2
    assert transformed.base_env is env
    assert transformed.transform is transforms
    env.close()


def test_stages_run_in_order() -> None:
    env = TransformedEnv(CountingEnv(), Compose(Adds(1.0), RewardScaling(0.0, 10.0)))
    assert rewards(env) == [10.0]
    env = TransformedEnv(CountingEnv(), Compose(RewardScaling(0.0, 10.0), Adds(1.0)))
    assert rewards(env) == [1.0]


def test_without_a_transform_the_env_is_unchanged() -> None:
    env = TransformedEnv(CountingEnv())
    assert env.stages == ()
    assert env.output_spec == env.base_env.output_spec
    assert env.rollout(5).shape == (3,)


def test_a_function_is_a_transform() -> None:
    env = TransformedEnv(CountingEnv(), add_square)
    rollout = env.rollout(3)
    assert rollout["square"].flatten().tolist() == [0, 1, 4]
    assert rollout["next", "square"].flatten().tolist() == [1, 4, 9]


def test_append_and_insert() -> None:
    env = TransformedEnv(CountingEnv(), StepCounter())
    assert env.append_transform(RewardSum()) is env
    assert env.insert_transform(0, InitTracker()) is env
    env.insert_transform(-1, add_square)
    assert names(env) == ["InitTracker", "StepCounter", "CallableTransform", "RewardSum"]
    rollout = env.rollout(2)
    assert {"is_init", "step_count", "square", "episode_reward"} <= set(rollout.keys())
    assert isinstance(env.transform, Compose)
    assert isinstance(env.transform[0], InitTracker)
    assert isinstance(env.transform[-1], RewardSum)
    with pytest.raises(IndexError, match="index 9 is outside a chain of 4 stages"):
        env.insert_transform(9, InitTracker())


def test_append_transform_does_not_change_the_env() -> None:
    env = CountingEnv()
    transformed = env.append_transform(StepCounter())
    assert isinstance(transformed, TransformedEnv)
    assert transformed.base_env is env
    assert "step_count" not in env.observation_spec.keys()


def test_added_stage_changes_the_specs() -> None:
    env = TransformedEnv(CountingEnv(), Compose())
    assert "step_count" not in env.observation_spec.keys()
    env.append_transform(StepCounter())
    assert "step_count" in env.observation_spec.keys()
    assert isinstance(env.transform, Compose)
    env.transform.append(RewardSum())
    assert "episode_reward" in env.observation_spec.keys()
    assert "episode_reward" in env.rollout(1).keys()
    env.transform.pop()
    assert "episode_reward" not in env.observation_spec.keys()
    assert "episode_reward" not in env.rollout(1).keys()


def test_chain_can_be_replaced() -> None:
    first = StepCounter()
    env = TransformedEnv(CountingEnv(), first)
    env.rollout(1)
    env.transform = RewardSum()
    assert "episode_reward" in env.rollout(1).keys()
    assert "step_count" not in env.rollout(1).keys()
    assert env.transform.container is env
    assert first.container is None
    TransformedEnv(CountingEnv(), first)


def test_slice_of_a_chain_works_in_another_env() -> None:
    env = TransformedEnv(CountingEnv(), Compose(StepCounter(2), RewardSum(), InitTracker()))
    assert isinstance(env.transform, Compose)
    part = TransformedEnv(CountingEnv(), env.transform[:2])
    assert names(part) == ["StepCounter", "RewardSum"]
    assert part.rollout(9).shape == (2,)
    assert names(env) == ["StepCounter", "RewardSum", "InitTracker"]


@pytest.mark.parametrize("second", [TransformedEnv, lambda env, stage: Compose(stage)])
def test_one_instance_in_two_chains_is_an_error(second: Any) -> None:
    stage = StepCounter()
    env = TransformedEnv(CountingEnv(), Compose(stage))
    with pytest.raises(ChainError, match="StepCounter is already part of a chain") as caught:
        second(CountingEnv(), stage)
    assert caught.value.hint == "put transform.clone() into the second place"
    second(CountingEnv(), stage.clone())
    assert stage.container is env


def test_one_instance_twice_in_a_chain_is_an_error() -> None:
    stage = RewardSum()
    with pytest.raises(ChainError, match="already part of a chain"):
        Compose(stage, stage)
    env = TransformedEnv(CountingEnv(), stage)
    with pytest.raises(ChainError, match="already part of a chain"):
        env.append_transform(stage)
    assert names(env) == ["RewardSum"]


def test_invalid_env_or_transform_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="env must be an env, got int"):
        TransformedEnv(3, StepCounter())  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="a chain takes transforms and functions, got int"):
        TransformedEnv(CountingEnv(), 3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"StepCounter is a class.*StepCounter\(\.\.\.\)"):
        TransformedEnv(CountingEnv(), StepCounter)


# Container and parent


def test_the_parent_is_the_env_before_the_stage() -> None:
    env = TransformedEnv(CountingEnv(), Compose(StepCounter(), RewardSum(), InitTracker()))
    seen = []
    for stage in env.stages:
        parent = stage.parent
        assert isinstance(parent, TransformedEnv)
        assert parent.base_env is env.base_env
        seen.append(names(parent))
        assert stage.container is env
    assert seen == [[], ["StepCounter"], ["StepCounter", "RewardSum"]]
    assert env.transform.container is env


def test_the_parents_specs_are_those_that_the_stage_sees() -> None:
    env = TransformedEnv(
        CountingEnv(), Compose(RenameTransform(["observation"], ["seen"]), StepCounter())
    )
    parent = env.stages[1].parent
    assert parent is not None
    assert "seen" in parent.observation_spec.keys()
    assert "step_count" not in parent.observation_spec.keys()


def test_stages_of_a_nested_compose_have_parents_too() -> None:
    inner = RewardSum()
    env = TransformedEnv(CountingEnv(), Compose(StepCounter(), Compose(InitTracker(), inner)))
    parent = inner.parent
    assert isinstance(parent, TransformedEnv)
    assert {"step_count", "is_init"} <= set(parent.observation_spec.keys())
    assert inner.container is env


def test_parent_without_an_env_is_none() -> None:
    chain = Compose(StepCounter())
    assert chain.parent is None
    assert chain[0].parent is None
    assert chain[0].container is chain
    assert StepCounter().container is None


def test_a_chain_does_not_keep_its_env_alive() -> None:
    chain = Compose(StepCounter())
    env = TransformedEnv(CountingEnv(), chain)
    env.rollout(2)
    gone = weakref.ref(env)
    del env
    gc.collect()
    assert gone() is None
    assert chain.container is None
    assert TransformedEnv(CountingEnv(), chain).rollout(2).shape == (2,)


# Nesting


def test_transformed_envs_nest() -> None:
    inner = TransformedEnv(CountingEnv(), Compose(StepCounter(2), Adds(1.0)))
    env = TransformedEnv(inner, Compose(RewardScaling(0.0, 3.0), RewardSum()))
    rollout = env.rollout(9, zero_action)
    assert env.base_env is inner
    assert rollout["next", "reward"].flatten().tolist() == [3.0, 3.0]
    assert rollout["next", "episode_reward"].flatten().tolist() == [3.0, 6.0]
    assert rollout["next", "truncated"].flatten().tolist() == [False, True]
    assert [stage.name for stage in stage_specs(env)] == [
        "CountingEnv", "StepCounter", "Adds", "RewardScaling", "RewardSum",
    ]  # fmt: skip


def test_change_of_the_inner_chain_is_visible_outside() -> None:
    inner = TransformedEnv(CountingEnv(), Compose())
    env = TransformedEnv(inner, RewardSum())
    assert "step_count" not in env.observation_spec.keys()
    inner.append_transform(StepCounter())
    assert "step_count" in env.observation_spec.keys()
    assert "step_count" in env.rollout(1).keys()


def test_change_of_the_base_specs_is_visible_outside() -> None:
    env = TransformedEnv(CountingEnv(), StepCounter())
    assert env.action_spec.shape == (2,)
    env.base_env.action_spec = Unbounded((7,))
    assert env.action_spec.shape == (7,)
    assert env.rand_action()["action"].shape == (7,)
