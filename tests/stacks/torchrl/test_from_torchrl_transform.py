"""``from_torchrl_transform``: TorchRL's own transforms as stages of a chain of tdx."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

import tdx
from tdx import from_torchrl_transform
from tdx.foundation.errors import ArgumentError

rl = pytest.importorskip("torchrl.envs")
rl_data = pytest.importorskip("torchrl.data")

pytestmark = pytest.mark.filterwarnings("ignore")

TRANSFORMS: dict[str, Callable[[], Any]] = {
    "RewardSum": lambda: rl.RewardSum(),
    "StepCounter": lambda: rl.StepCounter(5),
    "CatFrames": lambda: rl.CatFrames(3, -1, in_keys=["observation"]),
    "VecNorm": lambda: rl.VecNorm(in_keys=["observation"]),
    "RenameTransform": lambda: rl.RenameTransform(["observation"], ["seen"], ["action"], ["act"]),
    "InitTracker": lambda: rl.InitTracker(),
    "TargetReturn": lambda: rl.TargetReturn(10.0),
    "FrameSkipTransform": lambda: rl.FrameSkipTransform(2),
    "TensorDictPrimer": lambda: rl.TensorDictPrimer(
        hidden=rl_data.Unbounded((3,)), expand_specs=True
    ),
    "Compose": lambda: rl.Compose(rl.RewardSum(), rl.StepCounter(4)),
}


class Replay:
    """A policy that repeats the actions of a rollout."""

    def __init__(self, steps: TensorDictBase, key: str) -> None:
        self.key, self.actions = key, iter(steps[key].unbind(steps.ndim - 1))

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.set(self.key, next(self.actions))


def make_env(workers: int | None) -> Any:
    def make() -> Any:
        return tdx.CartPoleEnv()

    env = make() if workers is None else tdx.SerialEnv(workers, make)
    return tdx.TransformedEnv(env, tdx.RewardScaling(0.0, 2.0))


def chained(*transforms: Any) -> Any:
    stages = map(from_torchrl_transform, transforms)
    return tdx.TransformedEnv(tdx.CartPoleEnv(), tdx.Compose(*stages))


@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize("make", TRANSFORMS.values(), ids=TRANSFORMS)
def test_a_stage_returns_what_torchrl_returns(make: Callable[[], Any], workers: int | None) -> None:
    ours = make_env(workers)
    ours.append_transform(from_torchrl_transform(make()))
    ours.append_transform(tdx.DTypeCastTransform(torch.float32, torch.float64, ["reward"]))
    ours.set_seed(1)
    steps = ours.rollout(12, break_when_any_done=False)

    theirs = rl.TransformedEnv(tdx.to_torchrl(make_env(workers)), make())
    theirs.append_transform(rl.DTypeCastTransform(torch.float32, torch.float64, ["reward"]))
    theirs.set_seed(1)
    (action_key,) = ours.action_keys
    wanted = theirs.rollout(12, Replay(steps, action_key), break_when_any_done=False)

    assert set(steps.keys(True, True)) == set(wanted.keys(True, True))
    for key, value in wanted.items(True, True):
        assert steps[key].dtype == value.dtype, key
        assert torch.equal(steps[key], value), key
    tdx.check_env_specs(ours)


def test_the_plan_runs_it_every_step() -> None:
    env = chained(rl.RewardSum())
    assert env.transform[0].time_behavior is tdx.TimeBehavior.CONTROL


def test_its_parameters_are_in_the_state_of_the_env() -> None:
    first, second = (chained(rl.ObservationNorm(in_keys=["observation"])) for _ in range(2))
    first.transform[0].init_stats(20)
    second.transform[0].init_stats(5)
    second.load_state_dict(first.state_dict())
    original = second.transform[0].original
    assert torch.equal(original.loc, first.transform[0].original.loc)


def test_it_follows_the_mode() -> None:
    assert not chained(rl.RewardSum()).eval().transform[0].original.training


def test_it_reaches_another_process() -> None:
    env = chained(rl.StepCounter(3))
    env.reset()
    restored = pickle.loads(pickle.dumps(env))
    assert restored.rollout(9)["next", "step_count"].flatten().tolist() == [1, 2, 3]


def test_a_buffer_maps_samples() -> None:
    buffer = tdx.ReplayBuffer(storage=tdx.LazyTensorStorage(4), batch_size=2)
    buffer.append_transform(from_torchrl_transform(rl.RewardScaling(1.0, 3.0)))
    buffer.extend(TensorDict(reward=torch.ones(4, 1), batch_size=[4]))
    assert buffer.sample()["reward"].flatten().tolist() == [4.0, 4.0]


def test_a_copy_has_its_own_original() -> None:
    env = chained(rl.StepCounter(3))
    copied = env.transform.clone()
    other = tdx.TransformedEnv(tdx.CartPoleEnv(), copied)
    assert other.transform[0].original is not env.transform[0].original
    assert len(other.rollout(9)) == len(env.rollout(9)) == 3


def test_errors_name_the_stage() -> None:
    env = chained(rl.RewardSum(), rl.ObservationNorm(in_keys=["observation"]))
    with pytest.raises(RuntimeError, match="stage 1"):
        env.reset()


@pytest.mark.parametrize("value", [None, "RewardSum", rl.RewardSum, tdx.RewardSum()])
def test_other_objects_are_refused(value: object) -> None:
    with pytest.raises(ArgumentError, match="takes a transform of TorchRL"):
        from_torchrl_transform(value)


def test_a_transform_of_another_chain_is_refused() -> None:
    original = rl.RewardSum()
    env = rl.TransformedEnv(tdx.to_torchrl(tdx.CartPoleEnv()), original)
    assert env.transform is original
    with pytest.raises(ArgumentError, match="already part of a chain of TorchRL"):
        from_torchrl_transform(original)
    assert isinstance(from_torchrl_transform(original.clone()), tdx.Transform)
