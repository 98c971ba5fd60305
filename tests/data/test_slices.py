"""Slices are pieces of single episodes, in order, whatever was written how."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDictBase

from tdx import LazyTensorStorage, ListStorage, ReplayBuffer, SliceSampler
from tdx.foundation.errors import ArgumentError, ChainError, KeyNotFoundError
from tests.data.stored import batched, rollout
from tests.programs import examples


def buffer_of(
    *data: TensorDictBase, max_size: int = 1000, batch_size: int = 60, ndim: int = 1, **kwargs: Any
) -> ReplayBuffer:
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(max_size, ndim=ndim),
        sampler=SliceSampler(**kwargs),
        batch_size=batch_size,
    )
    for part in data:
        buffer.extend(part)
    return buffer


def assert_pieces(batch: TensorDictBase, length: int) -> TensorDictBase:
    """Each row of ``length`` steps is of one episode, in order; returns these rows."""
    rows = batch.reshape(-1, length)
    assert (rows["episode"] == rows["episode"][:, :1]).all()
    assert (rows["step"].diff(dim=-1) == 1).all()
    return rows


def test_slices_of_episodes() -> None:
    batch = buffer_of(rollout([5, 9, 4]), slice_len=4).sample(400)
    rows = assert_pieces(batch, 4)
    starts = set(zip(rows["episode"][:, 0].tolist(), rows["step"][:, 0].tolist(), strict=True))
    assert starts == {(0, 0), (0, 1), *((1, i) for i in range(6)), (2, 0)}


def test_ends_of_slices_are_marked() -> None:
    rows = buffer_of(rollout([5, 9, 4]), slice_len=4).sample().reshape(-1, 4)
    for key in (("next", "truncated"), ("next", "done")):
        assert (rows[key].squeeze(-1).int() == torch.tensor([0, 0, 0, 1])).all()
    inner = rows["step"] == torch.tensor([5, 9, 4])[rows["episode"]] - 1
    assert torch.equal(rows["next", "terminated"].squeeze(-1), inner)


def test_stored_flags_do_not_change() -> None:
    data = rollout([5, 9, 4])
    buffer = buffer_of(data, slice_len=4)
    buffer.sample()
    assert torch.equal(buffer[:]["next", "done"], data["next", "done"])
    assert not buffer[:]["next", "truncated"].any()


def test_every_group_of_flags_is_marked() -> None:
    data = rollout([6])
    for name in ("done", "truncated"):
        data["next", "agents", name] = torch.zeros(6, 3, 1, dtype=torch.bool)
    rows = buffer_of(data, slice_len=3, batch_size=6).sample().reshape(2, 3)
    for name in ("done", "truncated"):
        marks = rows["next", "agents", name].squeeze(-1)
        assert (marks == torch.tensor([False, False, True]).reshape(1, 3, 1)).all()


def test_without_marks_a_batch_is_no_sequence() -> None:
    batch = buffer_of(rollout([5, 9]), slice_len=4, truncated_key=None).sample()
    assert batch.names == ["batch"]
    assert not batch["next", "truncated"].any()


def test_number_of_slices() -> None:
    batch = buffer_of(rollout([10, 10]), num_slices=6).sample(30)
    assert assert_pieces(batch, 5).shape == (6, 5)


def test_episodes_are_drawn_alike() -> None:
    buffer = buffer_of(rollout([3, 40]), slice_len=3)
    rows = buffer.sample(6000).reshape(-1, 3)
    assert 0.45 < (rows["episode"][:, 0] == 0).float().mean() < 0.55


def test_shorter_episodes() -> None:
    data = rollout([2, 9, 3])
    strict = buffer_of(data, slice_len=5).sample(500)
    assert set(strict["episode"].tolist()) == {1}
    loose = buffer_of(data, slice_len=5, strict_length=False).sample(500)
    assert len(loose) < 500
    ends = loose["next", "truncated"].squeeze(-1).nonzero().squeeze(-1)
    pieces = loose.split(torch.diff(ends, prepend=torch.tensor([-1])).tolist(), 0)
    assert len(pieces) == 100
    assert {len(piece) for piece in pieces} == {2, 3, 5}
    for piece in pieces:
        assert_pieces(piece, len(piece))


def test_the_ring_is_followed_over_its_end() -> None:
    buffer = buffer_of(rollout([20])[:8], rollout([20])[8:14], max_size=10, slice_len=3)
    starts = assert_pieces(buffer.sample(600), 3)["step"][:, 0]
    assert set(starts.tolist()) == set(range(4, 12))


def test_rollouts_that_were_cut() -> None:
    """Without a flag, only the observations show that another episode follows."""
    parts = [rollout([7], first=i, ended=False) for i in range(4)]
    assert not any(part["next", "done"].any() for part in parts)
    assert_pieces(buffer_of(*parts, slice_len=4).sample(400), 4)
    assert_pieces(buffer_of(torch.cat(parts), slice_len=4).sample(400), 4)


def test_an_episode_in_several_parts() -> None:
    data = rollout([12])
    buffer = buffer_of(data[:5], data[5:6], slice_len=6)
    for step in data[6:].unbind(0):
        buffer.add(step)
    starts = assert_pieces(buffer.sample(600), 6)["step"][:, 0]
    assert set(starts.tolist()) == set(range(7))


def test_rows_of_a_batch_one_behind_the_other() -> None:
    data = torch.stack([rollout([9], first=i, ended=False) for i in range(3)])
    assert_pieces(buffer_of(data.reshape(-1), slice_len=4).sample(400), 4)


def test_traj_key() -> None:
    data = rollout([6, 7]).exclude(("next", "done"), ("next", "observation"))
    batch = buffer_of(data, slice_len=4, traj_key="episode").sample(400)
    assert_pieces(batch, 4)


def test_end_key() -> None:
    data = rollout([6, 7])
    data["ended"] = data["next", "done"]
    data["next", "done"] = torch.zeros_like(data["ended"])
    assert_pieces(buffer_of(data, slice_len=4, end_key="ended").sample(400), 4)


def test_batches_of_envs() -> None:
    data = batched([[5, 7], [3, 9], [12]])
    buffer = buffer_of(data, slice_len=4, ndim=2)
    rows = assert_pieces(buffer.sample(800), 4)
    assert len(set(rows["episode"][:, 0].tolist())) == 4
    ring = buffer_of(data, data, slice_len=4, ndim=2, max_size=15 * 3)
    assert_pieces(ring.sample(400), 4)


@settings(max_examples=examples(60))
@given(st.data())
def test_never_across_episodes(draw: st.DataObject) -> None:
    """Any episodes, cut anywhere, written in any parts into a ring of any size."""
    ints = st.integers
    max_size = draw.draw(ints(3, 30), "max_size")
    length = draw.draw(ints(1, 4), "slice_len")
    buffer = buffer_of(max_size=max_size, slice_len=length, strict_length=False)
    first = 0
    for _ in range(draw.draw(ints(1, 4), "rollouts")):
        lengths = draw.draw(st.lists(ints(1, 9), min_size=1, max_size=4), "lengths")
        data = rollout(lengths, first=first, ended=draw.draw(st.booleans(), "ended"))
        first += len(lengths)
        while len(data):
            size = draw.draw(ints(1, len(data)), "part")
            if size == 1:
                buffer.add(data[0])
            else:
                buffer.extend(data[:size])
            data = data[size:]
    batch = buffer.sample(length * 50)
    ends = batch["next", "truncated"].squeeze(-1).nonzero().squeeze(-1)
    sizes = torch.diff(ends, prepend=torch.tensor([-1])).tolist()
    for piece in batch.split(sizes, 0):
        assert_pieces(piece, len(piece))


# Wrong use


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({}, "got num_slices=None and slice_len=None"),
        ({"num_slices": 2, "slice_len": 3}, "got num_slices=2 and slice_len=3"),
        ({"slice_len": 0}, "slice_len must be an integer of at least 1, got 0"),
        ({"num_slices": 1.5}, "num_slices must be an integer"),
        ({"slice_len": 2, "end_key": "a", "end_keys": ["b"]}, "given in two ways"),
        ({"slice_len": 2, "pad_output": True}, "pad_output=True is incompatible"),
    ],
)
def test_invalid_arguments(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        SliceSampler(**kwargs)


def test_batch_size_is_not_a_multiple() -> None:
    buffer = buffer_of(rollout([9]), slice_len=4)
    with pytest.raises(ArgumentError, match=r"batch size 10 .* \(use 8 or 12\)"):
        buffer.sample(10)


def test_no_episode_is_long_enough() -> None:
    buffer = buffer_of(rollout([3, 5]), slice_len=6)
    with pytest.raises(ChainError, match="no stored episode has 6 steps: they have 3 to 5"):
        buffer.sample()


def test_steps_that_do_not_continue() -> None:
    data = rollout([20])[torch.randperm(20)]
    with pytest.raises(ChainError, match="of the 20 steps do not continue the previous step"):
        buffer_of(data, slice_len=6).sample()


def test_missing_flag() -> None:
    buffer = buffer_of(rollout([9]), slice_len=3, end_key=("next", "doen"))
    message = r"no key 'next.doen'.*mean \('next', 'done'\).*end_key"
    with pytest.raises(KeyNotFoundError, match=message):
        buffer.sample()


def test_other_storages() -> None:
    buffer = ReplayBuffer(storage=ListStorage(9), sampler=SliceSampler(slice_len=3), batch_size=3)
    buffer.extend(rollout([9]))
    with pytest.raises(ChainError, match="SliceSampler cannot find episodes in this ListStorage"):
        buffer.sample()


def test_sequences_as_items() -> None:
    buffer = buffer_of(batched([[9], [9]]), slice_len=3)
    with pytest.raises(ChainError, match="each stored step is itself a sequence"):
        buffer.sample()


def test_data_without_next_is_marked() -> None:
    data = rollout([6, 7]).exclude("next")
    rows = buffer_of(data, slice_len=4, traj_key="episode").sample().reshape(-1, 4)
    assert (rows["next", "done"].squeeze(-1).int() == torch.tensor([0, 0, 0, 1])).all()
    assert rows["next"].batch_size == (15, 4)
