"""Prioritized sampling: probabilities, weights, and priorities of new steps."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from tdx import (
    ExcludeTransform,
    LazyTensorStorage,
    ListStorage,
    MultiStepTransform,
    PrioritizedReplayBuffer,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    SelectTransform,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from tdx.data.prioritized_sampler import SegmentTree
from tdx.foundation.errors import ArgumentError
from tests.data.stored import rollout


def buffer_of(size: int = 8, alpha: float = 1.0, beta: float = 1.0, **options: Any) -> ReplayBuffer:
    return ReplayBuffer(
        storage=LazyTensorStorage(size),
        sampler=PrioritizedSampler(size, alpha, beta, **options),
        batch_size=4,
        generator=torch.Generator().manual_seed(0),
    )


def stored(buffer: ReplayBuffer) -> list[float]:
    """The priorities of the stored steps."""
    state = buffer.sampler.state()
    return [round(each, 5) for each in state["priorities"][: len(buffer)].tolist()]


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_steps_are_drawn_in_proportion(alpha: float) -> None:
    buffer = buffer_of(4, alpha)
    index = buffer.extend(torch.arange(4))
    priorities = torch.tensor([1.0, 2.0, 3.0, 10.0])
    buffer.update_priority(index, priorities)
    batch, info = buffer.sample(20000, return_info=True)
    expected = priorities**alpha / (priorities**alpha).sum()
    found = torch.bincount(batch, minlength=4) / 20000
    torch.testing.assert_close(found, expected, atol=0.015, rtol=0)
    torch.testing.assert_close(
        info["priority_weight"], (priorities**alpha)[batch].reciprocal(), rtol=1e-5, atol=0
    )


def test_new_steps_get_the_largest_priority() -> None:
    buffer = buffer_of(4)
    buffer.extend(torch.arange(2))
    assert stored(buffer) == [1, 1]
    buffer.update_priority(torch.tensor([0]), 5.0)
    buffer.extend(torch.arange(1))
    buffer.add(torch.tensor(7))
    assert stored(buffer) == [5, 1, 5, 5]
    buffer.update_priority(torch.arange(4), 2.0)
    buffer.add(torch.tensor(8))
    assert stored(buffer) == [5, 2, 2, 2]


def test_the_largest_priority_within_the_buffer() -> None:
    buffer = buffer_of(3, max_priority_within_buffer=True)
    buffer.update_priority(buffer.extend(torch.arange(3)), torch.tensor([9.0, 2.0, 4.0]))
    buffer.add(torch.tensor(3))
    assert stored(buffer) == [4, 2, 4]
    buffer.update_priority(torch.tensor([2, 0]), torch.tensor([1.0, 1.0]))
    assert buffer.sampler.default_priority == pytest.approx(2)


def test_steps_that_were_not_written_are_skipped() -> None:
    buffer = buffer_of(3)
    buffer.extend(torch.arange(3))
    buffer.update_priority(torch.tensor([-1, 1]), torch.tensor([7.0, 3.0]))
    assert stored(buffer) == [1, 3, 1]


@pytest.mark.parametrize(
    ("index", "priority", "message"),
    [
        ([0, 1], [1.0, 2.0, 3.0], "got 3 priorities for 2 steps"),
        ([0], [-1.0], "must not be negative"),
    ],
)
def test_wrong_priorities(index: list[int], priority: list[float], message: str) -> None:
    buffer = buffer_of()
    buffer.extend(torch.arange(4))
    with pytest.raises(ArgumentError, match=message):
        buffer.update_priority(torch.tensor(index), torch.tensor(priority))


@pytest.mark.parametrize(
    "options", [{"alpha": -1.0}, {"beta": -1.0}, {"reduction": "first"}, {"device": "cuda"}]
)
def test_wrong_arguments(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        PrioritizedSampler(**{"max_capacity": 4, "alpha": 1.0, "beta": 1.0, **options})


def test_another_alpha_maps_the_priorities() -> None:
    buffer = buffer_of(3)
    buffer.update_priority(buffer.extend(torch.arange(3)), torch.tensor([1.0, 4.0, 9.0]))
    sampler = buffer.sampler
    assert isinstance(sampler, PrioritizedSampler)
    sampler.alpha = 0.5
    assert stored(buffer) == [1, 2, 3]
    with pytest.raises(ArgumentError, match="alpha must be greater or equal to 0"):
        sampler.alpha = -0.5
    sampler.alpha = 0.0
    with pytest.warns(UserWarning, match="away from 0"):
        sampler.alpha = 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sampler.alpha = 0.7


def test_the_capacity_grows() -> None:
    buffer = ReplayBuffer(storage=ListStorage(9), sampler=PrioritizedSampler(2, 1.0, 1.0))
    index = buffer.extend(torch.arange(9))
    buffer.update_priority(index, torch.arange(9.0))
    assert stored(buffer) == list(range(9))


def test_emptying_the_buffer_forgets_priorities() -> None:
    buffer = buffer_of(4)
    buffer.update_priority(buffer.extend(torch.arange(4)), 9.0)
    buffer.empty()
    buffer.extend(torch.arange(2))
    assert stored(buffer) == [1, 1]
    assert buffer.sample(50).max() == 1


def test_a_sampler_of_a_filled_storage() -> None:
    storage = LazyTensorStorage(4)
    ReplayBuffer(storage=storage).extend(torch.arange(3))
    other = ReplayBuffer(storage=storage, sampler=PrioritizedSampler(4, 1.0, 1.0), batch_size=4)
    assert stored(other) == [1, 1, 1]
    ReplayBuffer(storage=storage).add(torch.tensor(3))
    assert stored(other) == [1, 1, 1, 1]
    other.set_sampler(RandomSampler())
    other.add(torch.tensor(4))
    alone = PrioritizedSampler(4, 1.0, 1.0)
    index, info = alone.sample(storage, 6)
    assert index.shape == info["priority_weight"].shape == (6,)


def test_batches_of_envs() -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(12, ndim=2),
        sampler=PrioritizedSampler(12, 1.0, 1.0),
        batch_size=3,
    )
    data = TensorDict(step=torch.arange(6).reshape(2, 3), batch_size=[2, 3])
    index = buffer.extend(data)
    buffer.update_priority(index, torch.arange(6.0))
    assert stored(buffer) == [0, 1, 2, 3, 4, 5]
    buffer.update_priority(index, data["step"].float())  # [B, T] as written
    assert stored(buffer) == [0, 3, 1, 4, 2, 5]
    batch = buffer.sample()
    batch["td_error"] = torch.full((3, 1), 7.0)
    buffer.update_tensordict_priority(batch)
    at = batch["index"][:, 0] * 2 + batch["index"][:, 1]
    assert {stored(buffer)[i] for i in at.tolist()} == {7}


@pytest.mark.parametrize("reduction", ["min", "max", "mean", "median"])
def test_priorities_of_stored_sequences(reduction: str) -> None:
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, storage=ListStorage(5), batch_size=3, reduction=reduction
    )
    data = TensorDict(x=torch.randn(4, 6, 2), batch_size=[4, 6])
    buffer.extend(data)
    batch = buffer.sample()
    assert batch["index"].shape == batch["priority_weight"].shape == (3, 6)
    errors = torch.rand(3, 6)
    errors[:] = errors[:1]
    batch["td_error"] = errors
    buffer.update_tensordict_priority(batch)
    reduced = getattr(errors[0], reduction)().item()
    for row in batch["index"][:, 0].tolist():
        assert stored(buffer)[row] == pytest.approx(reduced, abs=1e-4)


def test_written_data_sets_its_priorities() -> None:
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, priority_key="p", storage=LazyTensorStorage(9), batch_size=3
    )
    data = TensorDict(p=torch.tensor([[1.0], [2.0], [3.0]]), batch_size=[3])
    buffer.extend(data)
    buffer.add(data[2])
    buffer.extend(data, update_priority=False)
    assert stored(buffer) == [1, 2, 3, 3, 3, 3, 3]
    batch = buffer.sample().exclude("p")
    buffer.update_tensordict_priority(batch)
    assert {stored(buffer)[i] for i in batch["index"].tolist()} == {3}


def test_other_samplers_ignore_priorities() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(3), batch_size=2)
    buffer.extend(TensorDict(td_error=torch.rand(3), batch_size=[3]))
    buffer.update_tensordict_priority(buffer.sample())
    buffer.update_priority(torch.arange(3), 1.0)


def test_prefetching_keeps_new_priorities() -> None:
    buffer = PrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, storage=LazyTensorStorage(9), batch_size=2, prefetch=2
    )
    buffer.extend(torch.arange(3))
    buffer.sample()
    buffer.update_priority(buffer.extend(torch.arange(3, 6)), 4.0)
    buffer.append_transform(lambda data: data)
    assert stored(buffer) == [1, 1, 1, 4, 4, 4]
    buffer.close()


def test_saved_priorities(tmp_path: Path) -> None:
    buffer = buffer_of(4)
    buffer.update_priority(buffer.extend(torch.arange(6)), torch.arange(1.0, 7.0))
    values = dict(zip(buffer[:].tolist(), stored(buffer), strict=True))
    buffer.dumps(tmp_path / "buffer")
    for size in (4, 7):
        other = buffer_of(size)
        other.loads(tmp_path / "buffer")
        pairs = zip(other[:].tolist(), stored(other), strict=True)
        assert dict(pairs) == values
    copy = buffer_of(4)
    copy.load_state_dict(buffer.state_dict())
    buffer.update_priority(torch.arange(4), 0.5)
    assert stored(copy) == list(values.values())
    plain = ReplayBuffer(storage=LazyTensorStorage(4))
    plain.extend(torch.arange(3))
    plain.dumps(tmp_path / "plain")
    copy.loads(tmp_path / "plain")
    assert stored(copy) == [1, 1, 1]
    copy.sampler.dumps(tmp_path / "sampler")
    buffer.sampler.loads(tmp_path / "sampler")
    assert buffer.sampler.state()["priorities"].tolist() == [1, 1, 1, 0]


@pytest.mark.parametrize("size", [1, 2, 5, 8, 13])
def test_segment_tree_against_its_definition(size: int) -> None:
    draws = np.random.default_rng(0)
    values = np.zeros(size)
    sums, minima = SegmentTree(size, np.add, 0.0), SegmentTree(size, np.minimum, np.inf)
    minima[np.arange(size)] = values
    for _ in range(20):
        index = draws.integers(size, size=draws.integers(1, 5))
        values[index] = draws.integers(0, 4)
        sums[index] = values[index]
        minima[index] = values[index]
        start, stop = sorted(draws.integers(size + 1, size=2))
        assert sums.query(start, stop) == pytest.approx(values[start:stop].sum())
        assert minima.query(start, stop) == min(values[start:stop], default=np.inf)
        if values.any():
            mass = np.linspace(0, values.sum(), 9)
            found = sums.find(mass)
            assert (values[found] > 0).all()
            inside = np.searchsorted(values.cumsum(), mass[:-1], side="right")
            assert (found[:-1] == inside).all()
    assert len(sums) == size
    assert sums[size - 1] == values[-1]


@pytest.mark.parametrize(
    "transform",
    [
        SelectTransform("observation"),
        ExcludeTransform("index"),
        lambda batch: batch.select("observation"),
    ],
)
def test_transforms_keep_what_an_update_of_priorities_needs(transform: Any) -> None:
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, storage=LazyTensorStorage(8), transform=transform, batch_size=4
    )
    buffer.extend(TensorDict(observation=torch.arange(8), reward=torch.zeros(8, 1), batch_size=[8]))
    batch = buffer.sample()
    assert torch.equal(batch["index"], batch["observation"])
    assert batch["priority_weight"].shape == (4,)
    batch["td_error"] = batch["index"] + 2.0
    buffer.update_tensordict_priority(batch)
    drawn = batch["index"].unique().tolist()
    assert stored(buffer) == [index + 2.0 if index in drawn else 1.0 for index in range(8)]


def test_a_transform_that_changes_the_batch_size_may_drop_positions() -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(8),
        batch_size=4,
        transform=lambda batch: batch.select("x")[:2],
    )
    buffer.extend(TensorDict(x=torch.arange(8), batch_size=[8]))
    assert list(buffer.sample().keys()) == ["x"]


def test_priorities_of_steps_that_a_transform_holds_back() -> None:
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=1.0,
        beta=1.0,
        storage=LazyTensorStorage(8),
        transform=MultiStepTransform(2, 0.9),
        batch_size=4,
    )
    data = rollout([7]).set("td_error", torch.arange(1.0, 8.0))
    assert buffer.extend(data[:1]).shape == (0,)
    assert buffer.extend(data[1:4]).tolist() == [0, 1]
    assert stored(buffer) == [1.0, 2.0]
    assert buffer.add(data[4]) == 2
    assert buffer.extend(data[5:]).tolist() == [3, 4]
    assert stored(buffer) == [1.0, 2.0, 3.0, 4.0, 5.0]
