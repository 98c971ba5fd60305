"""Samplers of steps that are used up, and of steps of older policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from tdx import (
    ArgumentError,
    ChainError,
    ConsumingSampler,
    KeyNotFoundError,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    SamplerWithoutReplacement,
    StalenessAwareSampler,
    StorageError,
    TensorDictReplayBuffer,
    TensorStorage,
)


def consuming(times: int = 1, size: int = 10, **arguments: Any) -> ReplayBuffer:
    arguments = {"storage": LazyTensorStorage(size), "batch_size": 3, **arguments}
    return ReplayBuffer(consume_after_n_samples=times, **arguments)


def drawn(buffer: ReplayBuffer, size: int = 100) -> set[int]:
    batch = buffer.sample(size).tolist()
    assert len(set(batch)) == len(batch)
    return set(batch)


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
def test_each_step_is_drawn_once(storage: Any) -> None:
    buffer = consuming(storage=storage(10))
    buffer.extend(list(torch.arange(3)))
    first = drawn(buffer, 2)
    assert (len(buffer), len(buffer.storage)) == (1, 3)
    buffer.extend(list(torch.arange(3, 5)))
    buffer.add(torch.tensor(5))
    assert len(buffer) == 4
    assert drawn(buffer) == set(range(6)) - first
    assert buffer.stats()["size"] == 0
    with pytest.raises(ChainError, match="every step was consumed"):
        buffer.sample()
    buffer.extend(list(torch.arange(6, 8)))
    assert drawn(buffer) == {6, 7}


def test_a_step_can_be_drawn_several_times() -> None:
    buffer = consuming(2)
    buffer.extend(torch.arange(4))
    assert [len(drawn(buffer)) for _ in range(2)] == [4, 4]
    assert len(buffer) == 0


def test_a_loop_over_the_buffer_ends_with_its_steps() -> None:
    buffer = consuming()
    buffer.extend(torch.arange(7))
    assert sorted(torch.cat(list(buffer)).tolist()) == list(range(7))
    assert list(buffer) == []


def test_overwritten_steps_are_new() -> None:
    buffer = consuming(size=4)
    buffer.extend(torch.arange(4))
    drawn(buffer)
    buffer.extend(torch.arange(10, 13))
    assert drawn(buffer) == {10, 11, 12}
    buffer.extend(torch.arange(3))
    buffer.empty()
    buffer.extend(torch.arange(20, 22))
    assert drawn(buffer) == {20, 21}


def test_steps_that_were_stored_before() -> None:
    buffer = consuming(storage=TensorStorage(torch.arange(5)))
    assert len(buffer) == 5
    assert drawn(buffer) == set(range(5))


@pytest.mark.parametrize("way", ["state_dict", "files", "another size"])
def test_consumed_steps_stay_consumed_in_a_copy(way: str, tmp_path: Path) -> None:
    buffer = consuming(size=6)
    buffer.extend(torch.arange(6))
    buffer.extend(torch.arange(6, 8))
    first = drawn(buffer, 4)
    copy = consuming(size=8 if way == "another size" else 6)
    if way == "state_dict":
        copy.load_state_dict(buffer.state_dict())
    else:
        copy.extend(torch.zeros(5).long())
        buffer.dumps(tmp_path)
        copy.loads(tmp_path)
    assert len(copy) == 2
    assert drawn(copy) == set(range(2, 8)) - first


def test_what_cannot_be_consumed_is_refused() -> None:
    with pytest.raises(ArgumentError, match="only supports the default RandomSampler"):
        consuming(sampler=SamplerWithoutReplacement())
    for times, sampler in ((1, None), (None, ConsumingSampler())):
        with pytest.raises(ArgumentError, match="Prefetching is not supported by Consuming"):
            ReplayBuffer(consume_after_n_samples=times, prefetch=1, sampler=sampler)
    prefetching = ReplayBuffer(prefetch=1)
    with pytest.raises(ArgumentError, match="Prefetching is not supported"):
        prefetching.set_sampler(ConsumingSampler())
    with pytest.raises(ArgumentError, match="max_sample_count must be an integer of at least 1"):
        ConsumingSampler(0)
    for state in ({"left": [-2]}, {"left": "all"}):
        with pytest.raises(StorageError, match="state of the sampler is not valid"):
            ConsumingSampler().load_state_dict(state)


def versions(*numbers: int) -> TensorDict:
    return TensorDict(
        policy_version=torch.tensor(numbers).float().unsqueeze(1), batch_size=[len(numbers)]
    )


def of_policies(sampler: StalenessAwareSampler, *numbers: int, **arguments: Any) -> ReplayBuffer:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20), sampler=sampler, batch_size=1000, **arguments
    )
    buffer.extend(versions(*numbers))
    return buffer


def test_newer_steps_are_drawn_more_often() -> None:
    sampler = StalenessAwareSampler()
    buffer = of_policies(sampler, 0, 9, generator=torch.Generator().manual_seed(0))
    sampler.consumer_version = 9
    sampler.increment_consumer_version()
    batch, info = buffer.sample(return_info=True)
    # Weights 1 / 11 and 1 / 2.
    assert float((batch["policy_version"] == 9).float().mean()) == pytest.approx(11 / 13, abs=0.04)
    assert torch.equal(info["staleness"], 10 - batch["policy_version"].squeeze(-1))
    assert torch.equal(batch["staleness"], info["staleness"])


def test_older_steps_are_left_out() -> None:
    sampler = StalenessAwareSampler(max_staleness=2)
    buffer = of_policies(sampler, 4, 1, 3, 2, 0)
    sampler.consumer_version = 4
    assert set(buffer.sample()["policy_version"].flatten().tolist()) == {2.0, 3.0, 4.0}
    sampler.consumer_version = 9
    with pytest.raises(ChainError, match="staleness is 5 or more, with max_staleness=2"):
        buffer.sample()


def test_own_weights() -> None:
    sampler = StalenessAwareSampler(staleness_weight_fn=lambda age: (age == 1).float())
    buffer = of_policies(sampler, 1, 2, 3)
    sampler.consumer_version = 3
    assert set(buffer.sample()["policy_version"].flatten().tolist()) == {2.0}
    for wrong in (lambda age: -age.abs() - 1, lambda age: age[:1]):
        buffer = of_policies(StalenessAwareSampler(staleness_weight_fn=wrong), 1, 2)
        with pytest.raises(ArgumentError, match="must return 2 weights of at least 0"):
            buffer.sample()


def test_versions_of_several_envs() -> None:
    sampler = StalenessAwareSampler(max_staleness=0)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(6, ndim=2), sampler=sampler, batch_size=100
    )
    buffer.extend(torch.stack([versions(0, 1, 2), versions(2, 1, 0)]))
    sampler.consumer_version = 2
    assert {tuple(i) for i in buffer.sample()["index"].tolist()} == {(2, 0), (0, 1)}


def test_steps_without_a_version() -> None:
    buffer = of_policies(StalenessAwareSampler(version_key="age"), 1)
    with pytest.raises(KeyNotFoundError, match=r"no key 'age'.*LazyTensorStorage"):
        buffer.sample()


def test_the_version_is_part_of_the_state(tmp_path: Path) -> None:
    sampler = StalenessAwareSampler(max_staleness=7)
    sampler.consumer_version = 42
    copy = StalenessAwareSampler()
    copy.load_state_dict(sampler.state_dict())
    assert (copy.consumer_version, copy.max_staleness) == (42, 7)
    sampler.dumps(tmp_path)
    other = StalenessAwareSampler()
    other.loads(tmp_path)
    assert other.consumer_version == 42
    with pytest.raises(StorageError, match="state of the sampler is not valid"):
        copy.load_state_dict({"consumer_version": "new"})
