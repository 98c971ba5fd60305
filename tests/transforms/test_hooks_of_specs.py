"""Hooks of transforms that are called without an env: leaf specs, several in-keys, attributes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn

import tdx
from tdx import (
    ActionDiscretizer,
    ActionMask,
    ActionScaling,
    ArgumentError,
    Bounded,
    Categorical,
    CatFrames,
    ChainError,
    Compose,
    Composite,
    FlattenAction,
    GymEnv,
    InitTracker,
    MultiCategorical,
    MultiOneHot,
    RewardClipping,
    RewardSum,
    StepCounter,
    TdxError,
    TransformedEnv,
    Unbounded,
    check_env_specs,
)
from tdx.transforms import Transform
from tests.transforms.contract.examples import EXAMPLES
from tests.transforms.envs import RowsEnv


def test_hooks_take_the_spec_of_a_lone_entry() -> None:
    reward: Any = Unbounded(1)
    clipped = RewardClipping(-1.0, 1.0).transform_reward_spec(reward)
    assert isinstance(clipped, Bounded)
    pixels: Any = Bounded(0.0, 1.0, shape=(1, 4, 4))
    assert CatFrames(3, dim=-3).transform_observation_spec(pixels).shape == (3, 4, 4)
    action: Any = Bounded(-2.0, 2.0, shape=(2,))
    scaled: Any = ActionScaling(loc=0.0, scale=2.0).transform_action_spec(action)
    assert scaled.high.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("in_a_chain", [False, True])
def test_actions_without_an_env(in_a_chain: bool) -> None:
    def map_spec(transform: Transform, spec: Any) -> Any:
        chain = Compose(transform) if in_a_chain else transform
        return chain.transform_action_spec(spec)

    action = Bounded(-1.0, 1.0, shape=(2,))
    assert map_spec(ActionDiscretizer(5), action) == MultiCategorical([5, 5])
    assert map_spec(ActionDiscretizer([2, 3], categorical=False), action) == MultiOneHot([2, 3])
    assert map_spec(ActionDiscretizer(5), Bounded(-1.0, 1.0, shape=())) == Categorical(5)
    batch = Composite(action=Bounded(-1.0, 1.0, shape=(4,)), shape=(4,))
    assert map_spec(ActionDiscretizer(5), batch)["action"] == Categorical(5, shape=(4,))
    with pytest.raises(ChainError, match="without a finite"):
        map_spec(ActionDiscretizer(5), Unbounded(2))
    with pytest.raises(ChainError, match="2 numbers"):
        map_spec(ActionDiscretizer([2, 3]), Bounded(-1.0, 1.0, shape=(3,)))
    assert map_spec(FlattenAction(), Bounded(-1.0, 1.0, shape=(2, 3))).shape == (6,)
    assert map_spec(ActionMask(), Categorical(3)) == Categorical(3)


LONE_ENTRIES = {
    "observation": Bounded(-1.0, 1.0, shape=(3,)),
    "reward": Unbounded(1),
    "done": Categorical(2, (1,), dtype=torch.bool),
    "action": Bounded(-1.0, 1.0, shape=(2,)),
    "state": Unbounded(3),
}


@pytest.mark.parametrize("part", LONE_ENTRIES)
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_lone_entry_is_mapped_or_refused_with_a_reason(name: str, part: str) -> None:
    arguments = dict(EXAMPLES[name].arguments)
    positional = arguments.pop("*", ())
    kind: type[Transform] = getattr(tdx, name)
    for spec in (LONE_ENTRIES[part], Composite({part: LONE_ENTRIES[part]})):
        results = []
        for wrap in (lambda transform: transform, Compose):
            hook = f"transform_{part}_spec"
            try:
                results.append(getattr(wrap(kind(*positional, **arguments)), hook)(spec.clone()))
            except TdxError as error:
                results.append(str(error.message))
        assert results[0] == results[1]


class Concatenate(Transform):
    """Transform that joins several entries."""

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        values = [next_tensordict.get(key) for key in self.in_keys]
        return next_tensordict.set(self.out_keys[0], torch.cat(values, -1))

    forward = _call

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        size = sum(observation_spec[key].shape[-1] for key in self.in_keys)
        observation_spec[self.out_keys[0]] = Unbounded(size)
        return observation_spec


class Halve(Transform):
    def _apply_transform(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor / 2


def test_several_entries_can_be_joined() -> None:
    join = Concatenate(["observation", "step_count"], ["joined"])
    env = TransformedEnv(RowsEnv(), StepCounter()).append_transform(join)
    check_env_specs(env)
    assert env.rollout(3, break_when_any_done=False)["joined"].shape == (3, 4)
    data = TensorDict(observation=torch.ones(2, 3), step_count=torch.zeros(2, 1), batch_size=[2])
    assert nn.Sequential(join.clone(), nn.Identity())(data)["joined"].shape == (2, 4)
    with pytest.raises(ArgumentError, match="2 in-keys and 1 out-keys"):
        Halve(["observation", "step_count"], ["joined"])


def test_keys_of_counters_and_flags() -> None:
    env = TransformedEnv(RowsEnv(), StepCounter(5)).append_transform(InitTracker())
    counter, tracker = env.stages
    assert isinstance(counter, StepCounter)
    assert isinstance(tracker, InitTracker)
    assert counter.step_count_keys == ["step_count"]
    assert counter.all_truncated_keys == ["truncated"]
    assert counter.all_done_keys == ["done"]
    assert tracker.init_keys == ["is_init"]


def test_a_counter_without_an_env_truncates() -> None:
    counter = StepCounter(2)
    root = TensorDict(done=torch.zeros(4, 1, dtype=torch.bool), batch_size=[4])
    root = counter._reset(root, root.clone())
    for _ in range(2):
        following = TensorDict(done=torch.zeros(4, 1, dtype=torch.bool), batch_size=[4])
        following = counter._step(root, following)
        root = following
    assert root["truncated"].all()
    assert root["done"].all()


@pytest.mark.parametrize("planned", [True, False])
def test_sums_may_be_declared_as_rewards(planned: bool) -> None:
    env = TransformedEnv(RowsEnv(), RewardSum(["reward"], ["total"], reward_spec=True))
    env.planned = planned
    assert env.reward_keys == ["reward", "total"]
    assert "total" not in env.observation_keys
    rollout = env.rollout(4)["next"]
    assert torch.allclose(rollout["total"], rollout["reward"].cumsum(0))


def test_a_scaling_by_statistics() -> None:
    mean, std = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 0.0])
    scaling = ActionScaling.from_stats(mean=mean, std=std)
    actions = torch.tensor([[3.0, 2.0], [1.0, 2.0]])
    assert scaling.normalize(actions).tolist() == [[1.0, 0.0], [0.0, 0.0]]
    assert torch.allclose(scaling.denormalize(scaling.normalize(actions)), actions)
    with pytest.raises(ArgumentError, match="does not match the 2 elements"):
        scaling.normalize(torch.zeros(4, 1))


@pytest.mark.parametrize(
    ("stats", "message"),
    [
        ({}, "exactly one pair"),
        ({"mean": torch.zeros(2)}, "given together"),
        ({"mean": torch.zeros(3), "std": torch.ones(2)}, "the same shape"),
    ],
)
def test_incomplete_statistics(stats: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        ActionScaling.from_stats(**stats)


def test_options_of_a_gym_env_are_attributes() -> None:
    env = GymEnv("CartPole-v1", frame_skip=2)
    assert (env.from_pixels, env.pixels_only, env.frame_skip) == (False, True, 2)
    env.close(raise_if_closed=False)
    env.close(raise_if_closed=False)
