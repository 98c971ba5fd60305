"""Padded slices, slices across the ends of episodes, without replacement, and by priority."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase

from tdx import (
    GRUModule,
    LazyTensorStorage,
    PrioritizedSliceSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
    set_recurrent_mode,
)
from tdx.foundation.errors import ArgumentError
from tests.data.stored import batched, rollout

MASK = ("collector", "mask")


def sampled(sampler: SliceSampler, data: TensorDictBase, batch_size: int, **options: Any) -> Any:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(data.numel(), ndim=data.ndim),
        sampler=sampler,
        batch_size=batch_size,
        generator=torch.Generator().manual_seed(0),
        **options,
    )
    buffer.extend(data)
    return buffer


def slices(batch: TensorDictBase) -> list[list[int]]:
    """The steps of each slice, separated by the marks of their ends."""
    found: list[list[int]] = [[]]
    for step, last in zip(batch["step"].tolist(), batch["next", "truncated"].tolist(), strict=True):
        found[-1].append(step)
        if last[0]:
            found.append([])
    assert found.pop() == []
    return found


def test_shorter_slices_are_padded() -> None:
    data = rollout([2, 6, 3])
    buffer = sampled(SliceSampler(slice_len=4, strict_length=False, pad_output=True), data, 40)
    batch = buffer.sample()
    assert batch.batch_size == (40,)
    rows = batch.reshape(10, 4)
    for mask, row in zip(rows[MASK], rows, strict=True):
        length = int(mask.sum())
        assert length == {0: 2, 1: 4, 2: 3}[int(row["episode"][0])]
        assert mask[:length].all()
        assert row["next", "truncated"].squeeze(-1).tolist() == [i == length - 1 for i in range(4)]
        assert (row["step"][length:] == row["step"][length - 1]).all()


def test_there_is_no_mask_without_padding() -> None:
    sampler = SliceSampler(slice_len=4, strict_length=False, pad_output=True)
    assert MASK not in sampled(sampler, rollout([5, 6]), 40).sample().keys(True)


@pytest.mark.parametrize(
    ("span", "shortest_left", "shortest_right"),
    [(False, 4, 4), (True, 1, 1), (2, 2, 2), ((False, True), 4, 1), ((1, False), 3, 4)],
)
def test_slices_across_the_ends_of_episodes(
    span: Any, shortest_left: int, shortest_right: int
) -> None:
    buffer = sampled(SliceSampler(slice_len=4, span=span), rollout([9, 9]), 4000)
    found = slices(buffer.sample())
    assert len(found) == 1000
    assert all(each == list(range(each[0], each[0] + len(each))) for each in found)
    left = {len(each) for each in found if each[0] == 0 and each[-1] != 8}
    right = {len(each) for each in found if each[-1] == 8}
    assert left == set(range(shortest_left, 5))
    assert right == set(range(shortest_right, 5))


def test_a_span_is_shorter_than_a_slice() -> None:
    with pytest.raises(ArgumentError, match="span 4 is not less than the slice length 4"):
        sampled(SliceSampler(slice_len=4, span=4), rollout([9]), 4).sample()


@pytest.mark.parametrize("strict", [True, False])
def test_the_first_step_of_each_slice_is_marked(strict: bool) -> None:
    data = rollout([3, 7])
    data["is_init"] = (data["step"] == 0).unsqueeze(-1)
    batch = sampled(SliceSampler(slice_len=3, strict_length=strict), data, 30).sample()
    ends = batch["next", "truncated"].squeeze(-1)
    expected = torch.cat([torch.tensor([True]), ends[:-1]]) | (batch["step"] == 0)
    assert batch["is_init"].squeeze(-1).tolist() == expected.tolist()
    plain = sampled(SliceSampler(slice_len=3, init_key=None), data, 30).sample()
    assert (plain["is_init"].squeeze(-1) == (plain["step"] == 0)).all()


def test_a_flat_batch_of_slices_equals_one_per_row() -> None:
    data = rollout([5, 7])
    data["is_init"] = (data["step"] == 0).unsqueeze(-1)
    data["h"] = torch.randn(12, 1, 4) * ~data["is_init"].unsqueeze(-1)
    gru = GRUModule(2, 4, in_keys=["observation", "h"], out_keys=["y", ("next", "h")])
    batch = sampled(SliceSampler(slice_len=3), data, 12).sample()
    with set_recurrent_mode(True):
        flat, rows = gru(batch.clone()), gru(batch.reshape(4, 3))
    torch.testing.assert_close(flat["y"].reshape(4, 3, 4), rows["y"])


def test_each_episode_once_in_a_pass(tmp_path: Path) -> None:
    data = rollout([3, 4, 5, 6, 7])
    sampler = SliceSamplerWithoutReplacement(slice_len=3)
    buffer = sampled(sampler, data, 6)
    batches = list(buffer)
    joined: Any = torch.cat(batches)
    assert [len(batch) for batch in batches] == [6, 6, 3]
    assert sorted(joined["episode"][::3].tolist()) == [0, 1, 2, 3, 4]
    assert buffer.sampler.ran_out
    first = buffer.sample()
    buffer.dumps(tmp_path)
    other = sampled(SliceSamplerWithoutReplacement(slice_len=3), data, 6)
    other.loads(tmp_path)
    rest: Any = torch.cat([first, other.sample(), other.sample()])
    assert sorted(rest["episode"][::3].tolist()) == [0, 1, 2, 3, 4]
    buffer.empty()
    buffer.extend(rollout([4, 4]))
    assert [len(batch) for batch in buffer] == [6]
    whole = SliceSamplerWithoutReplacement(slice_len=3, drop_last=True, shuffle=False)
    assert [batch["episode"][::3].tolist() for batch in sampled(whole, data, 6)] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("ndim", [1, 2])
def test_slices_start_by_priority(ndim: int) -> None:
    data = rollout([2, 5, 8]) if ndim == 1 else batched([[2, 5, 8], [8, 5, 2]])
    sampler = PrioritizedSliceSampler(data.numel(), 1.0, 1.0, slice_len=3)
    buffer = sampled(sampler, data, 600)
    priority = torch.full(data.shape, 1e-9)
    priority[..., 4] = 1.0
    priority[..., -1] = 1e9  # no slice of three steps starts there
    index = buffer.extend(data, update_priority=False)
    buffer.update_priority(index, priority)
    batch = buffer.sample()
    starts = {(row["episode"][0].item(), row["step"][0].item()) for row in batch.reshape(-1, 3)}
    assert starts == ({(1, 2)} if ndim == 1 else {(1, 2), (100, 4)})
    assert batch["priority_weight"].shape == (600,)


def test_short_episodes_by_priority() -> None:
    sampler = PrioritizedSliceSampler(10, 1.0, 1.0, slice_len=4, strict_length=False)
    buffer = sampled(sampler, rollout([2, 8]), 400)
    batch = buffer.sample()
    found = slices(batch)
    assert sorted(set(map(tuple, found))) == [(0, 1), *(tuple(range(i, i + 4)) for i in range(5))]
    assert batch["priority_weight"].shape == batch.shape
    buffer.sampler.update_priority(torch.arange(10), torch.tensor([1e9] + [0.0] * 9))
    assert set(map(tuple, slices(buffer.sample()))) == {(0, 1)}


@pytest.mark.parametrize(("span", "shortest"), [(True, 1), (2, 2), ((False, 3), 1)])
def test_slices_by_priority_across_the_ends_of_episodes(span: Any, shortest: int) -> None:
    sampler = PrioritizedSliceSampler(12, 1.0, 1.0, slice_len=4, span=span)
    batch = sampled(sampler, rollout([3, 9]), 2000).sample()
    found = set(map(tuple, slices(batch)))
    whole = {tuple(range(i, i + 4)) for i in range(6)}
    long = {tuple(range(i, 9)) for i in range(6, 10 - shortest)}
    short = {tuple(range(i, 3)) for i in range(4 - shortest)}
    assert found == whole | long | short


@pytest.mark.parametrize("ndim", [1, 2])
def test_given_ends_and_trajectories(ndim: int) -> None:
    data = rollout([6]) if ndim == 1 else batched([[6], [6]])
    ends = torch.tensor([False, False, True, False, False, True])
    names = torch.tensor([4, 4, 4, 9, 9, 9])
    if ndim == 2:
        ends, names = (each.unsqueeze(1).expand(6, 2) for each in (ends, names))
    for sampler in (
        SliceSampler(slice_len=3, ends=ends),
        SliceSampler(slice_len=3, trajectories=names),
    ):
        buffer = sampled(sampler, data, 30)
        assert set(map(tuple, slices(buffer.sample()))) == {(0, 1, 2), (3, 4, 5)}
    with pytest.raises(ArgumentError, match="have 2 rows, the storage has 6"):
        sampled(SliceSampler(slice_len=3, ends=ends[:2]), data, 3).sample()


def test_which_entries_separate_episodes() -> None:
    data = rollout([3, 3])
    without_done = data.exclude(("next", "done"))
    for sampler in (
        SliceSampler(slice_len=3),
        SliceSampler(slice_len=3, traj_key="episode"),
        SliceSampler(slice_len=3, traj_key="other", end_key=("next", "terminated")),
        SliceSampler(slice_len=3, end_keys=["missing", ("next", "terminated")]),
    ):
        found = set(map(tuple, slices(sampled(sampler, without_done, 30).sample())))
        assert found == {(0, 1, 2)}
    synthetic = data.clone()
    synthetic["next", "observation"] = torch.rand(6, 2)
    found = set(map(tuple, slices(sampled(SliceSampler(slice_len=3), synthetic, 30).sample())))
    assert found == {(0, 1, 2)}


def test_a_sampler_on_its_own() -> None:
    storage = LazyTensorStorage(9)
    ReplayBuffer(storage=storage).extend(rollout([4, 5]))
    index, info = SliceSampler(slice_len=2).sample(storage, 6)
    assert index.shape == (6,)
    assert info["next", "truncated"].squeeze(-1).tolist() == [False, True] * 3
    ended = storage[index]["next", "done"]
    assert torch.equal(info["next", "terminated"], ended)
    assert torch.equal(info["next", "done"], ended | info["next", "truncated"])


def test_a_slice_sampler_without_replacement_by_its_argument() -> None:
    create: Any = SliceSampler
    sampler = create(replacement=False, slice_len=3, drop_last=True, shuffle=False)
    assert type(sampler) is SliceSamplerWithoutReplacement
    assert (sampler.slice_len, sampler.drop_last) == (3, True)
    assert type(SliceSampler(replacement=True, slice_len=3)) is SliceSampler
    buffer = ReplayBuffer(storage=LazyTensorStorage(20), sampler=sampler, batch_size=6)
    buffer.extend(rollout([4, 4, 4, 4]))
    episodes = torch.cat([buffer.sample()["episode"] for _ in range(2)])
    assert episodes.unique().tolist() == [0, 1, 2, 3]
    assert type(deepcopy(sampler)) is SliceSamplerWithoutReplacement
    assert SamplerWithoutReplacement(replacement=False).shuffle
