"""Single frames in a replay buffer that samples stacks of them."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from tdx import (
    CatFrames,
    GymEnv,
    LazyTensorStorage,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
)
from tdx.foundation.errors import ArgumentError


def frames(N: int = 3, **arguments: Any) -> CatFrames:
    keys = {"in_keys": ["observation"], "out_keys": ["stack"]}
    return CatFrames(N, -1, **{**keys, **arguments})


def episodes(stage: CatFrames, steps: int = 60) -> TensorDictBase:
    env = GymEnv("CartPole-v1").append_transform(stage)
    env.set_seed(0)
    torch.manual_seed(0)
    return env.rollout(steps, break_when_any_done=False)


def filled(
    data: TensorDictBase, stage: CatFrames, kind: type = TensorDictReplayBuffer, **arguments: Any
) -> Any:
    transform, sampler = stage.make_rb_transform_and_sampler(8, **arguments)
    buffer = kind(storage=LazyTensorStorage(100), sampler=sampler, transform=transform)
    buffer.extend(data)
    return buffer


@pytest.mark.parametrize("N", [1, 3])
@pytest.mark.parametrize("padding", ["same", "constant"])
@pytest.mark.parametrize("kind", [ReplayBuffer, TensorDictReplayBuffer])
def test_sampled_stacks_and_flags_are_those_of_the_env(N: int, padding: Any, kind: type) -> None:
    stage = frames(N, padding=padding)
    data = episodes(stage)
    buffer = filled(data, stage, kind)
    assert "stack" in data.keys()
    assert "stack" not in buffer.storage[:].keys(True)
    for _ in range(5):
        sampled, info = buffer.sample(return_info=True)
        assert sampled.shape == (8,)
        expected = data[info["index"].reshape(8, N)[:, -1]]
        for key in expected.keys(True, True):
            torch.testing.assert_close(sampled[key], expected[key], rtol=0, atol=0)


def test_an_explicit_batch_size_counts_stacks() -> None:
    stage = frames()
    buffer = filled(episodes(stage), stage)
    assert buffer.batch_size == 8
    assert len(buffer.sample()) == 8
    assert len(buffer.sample(5)) == 5


def test_sampling_without_replacement_reads_each_episode_once() -> None:
    stage = frames()
    data = episodes(stage)
    buffer = filled(data, stage, replacement=False)
    count = int(data["next", "done"].sum()) + int(not data["next", "done"][-1])
    assert sum(len(batch) for batch in buffer) == count


def test_future_frames_keep_the_first_step_of_each_slice() -> None:
    data = episodes(frames()).exclude("stack", ("next", "stack"))
    stage = frames(future=True, mask_key="padded")
    expected = stage.unfolding(data.clone())
    buffer = filled(data, stage)
    sampled = buffer.sample(20)
    assert not sampled["padded"].any()
    assert "padded" not in buffer.storage[:].keys()
    for row in sampled:
        same = (expected["observation"] == row["observation"]).all(-1)
        assert (expected["stack"][same] == row["stack"]).all(-1).any()


def test_a_buffer_can_be_pickled_and_prefetched() -> None:
    stage = frames()
    transform, sampler = stage.make_rb_transform_and_sampler(4)
    assert isinstance(sampler, SliceSampler)
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(100), sampler=sampler, transform=transform, prefetch=2
    )
    buffer.extend(episodes(stage))
    copy = pickle.loads(pickle.dumps(buffer))
    assert buffer.sample()["stack"].shape == copy.sample()["stack"].shape == (4, 12)
    buffer.close()
    copy.close()


def test_invalid_arguments() -> None:
    with pytest.raises(ArgumentError, match="both read and written"):
        CatFrames(2, -1, in_keys=["observation"]).make_rb_transform_and_sampler(4)
    with pytest.raises(ArgumentError, match="batch_size"):
        frames().make_rb_transform_and_sampler(0)
    for name, value in {"slice_len": 2, "strict_length": False, "span": True}.items():
        with pytest.raises(ArgumentError, match=name):
            frames().make_rb_transform_and_sampler(4, **{name: value})


@pytest.mark.filterwarnings("ignore:The last dimension of the tensordict should be marked")
@pytest.mark.parametrize("padding", ["same", "constant"])
def test_parity_of_the_transform(padding: Any) -> None:
    twins = pytest.importorskip("torchrl.envs.transforms")
    twin = twins.CatFrames(
        N=3,
        dim=-1,
        in_keys=["observation"],
        out_keys=["stack"],
        padding=padding,
        reset_key="_reset",
        done_key="done",
    )
    transform, sampler = frames(padding=padding).make_rb_transform_and_sampler(4)
    theirs, their_sampler = twin.make_rb_transform_and_sampler(4)
    assert sampler.slice_len == their_sampler.slice_len == 3
    value = torch.arange(24.0).reshape(12, 2)
    done = torch.zeros(12, 1, dtype=torch.bool)
    following = TensorDict(observation=value + 2, done=done, batch_size=[12])
    batch = TensorDict(observation=value, next=following, batch_size=[12])
    ours, other = transform(batch.clone()), theirs(batch.clone())
    assert set(ours.keys(True, True)) == set(other.keys(True, True))
    assert (ours == other).all()
    stacked = ours.clone()
    assert set(transform.inv(stacked).keys(True)) == set(theirs.inv(other).keys(True))
    assert "stack" in stacked.keys()
