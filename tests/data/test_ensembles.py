"""Ensembles of replay buffers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from tdx import (
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    RandomSampler,
    RenameTransform,
    ReplayBuffer,
    ReplayBufferEnsemble,
    RewardScaling,
    RoundRobinWriter,
    SamplerEnsemble,
    SamplerWithoutReplacement,
    SelectTransform,
    SliceSampler,
    StorageEnsemble,
    TensorDictReplayBuffer,
    TensorStorage,
    WriterEnsemble,
)
from tdx.foundation.errors import ArgumentError, ChainError
from tests.data.stored import rollout


def numbered(count: int, first: int = 0, **kwargs: Any) -> ReplayBuffer:
    """A buffer of the steps ``first``, ``first + 1``, …"""
    buffer = ReplayBuffer(storage=LazyTensorStorage(count), **kwargs)
    steps = torch.arange(first, first + count)
    buffer.extend(TensorDict(step=steps, reward=torch.ones(count, 1), batch_size=[count]))
    return buffer


def test_batches_are_stacked_and_name_their_buffers() -> None:
    ensemble = ReplayBufferEnsemble(numbered(10), numbered(10, 100), batch_size=8)
    batch, info = ensemble.sample(return_info=True)
    assert batch.batch_size == (2, 4)
    ids, rows = batch["index", "buffer_ids"], batch["index", "index"]
    assert torch.equal(batch["step"], rows + 100 * ids)
    assert torch.equal(info["buffer_ids"], ids[:, 0])
    assert ensemble.sample(4).batch_size == (2, 2)
    assert next(iter(ensemble)).batch_size == (2, 4)
    assert (len(ensemble), ensemble.write_count) == (2, 20)
    with pytest.raises(ArgumentError, match="divisible by num_buffer_sampled, got 3 and 2"):
        ensemble.sample(3)


def test_weights_and_number_of_sampled_buffers() -> None:
    buffers = [numbered(10, 100 * i) for i in range(3)]
    ensemble = ReplayBufferEnsemble(*buffers, p=[0.0, 9.0, 1.0], num_buffer_sampled=8)
    ids = torch.cat([ensemble.sample(16)["index", "buffer_ids"] for _ in range(20)])
    counts = ids.flatten().bincount(minlength=3)
    assert counts[0] == 0
    assert counts[1] > 5 * counts[2] > 0
    whole = ReplayBufferEnsemble(*buffers, sample_from_all=True)
    assert whole.sample(6)["index", "buffer_ids"].tolist() == [[0, 0], [1, 1], [2, 2]]
    with pytest.raises(ArgumentError, match="both given"):
        ReplayBufferEnsemble(*buffers, sample_from_all=True, p=[1, 1, 1])
    with pytest.raises(ArgumentError, match="p must be 3 weights"):
        ReplayBufferEnsemble(*buffers, p=[1.0])


def test_each_buffer_and_the_ensemble_map_by_their_transforms() -> None:
    first, second = numbered(10), numbered(10, 100)
    first.append_transform(RenameTransform(["reward"], ["gain"]))
    second.append_transform(RewardScaling(0.0, 3.0, in_keys=["reward"]))
    second.append_transform(RenameTransform(["reward"], ["gain"]))
    double = RewardScaling(0.0, 2.0, in_keys=["gain"])
    ensemble = ReplayBufferEnsemble(first, second, sample_from_all=True, transform=double)
    assert ensemble.sample(4)["gain"].flatten().tolist() == [2.0, 2.0, 6.0, 6.0]


def test_transforms_keep_the_positions() -> None:
    select = SelectTransform("step")
    ensemble = ReplayBufferEnsemble(numbered(10), numbered(10, 100), transform=select)
    batch = ensemble.sample(8)
    assert torch.equal(batch["step"], batch["index", "index"] + 100 * batch["index", "buffer_ids"])


def test_members_are_selected_by_any_index() -> None:
    buffers = [numbered(10, 100 * i) for i in range(3)]
    ensemble = ReplayBufferEnsemble(*buffers, p=[0.2, 0.3, 0.5], num_buffer_sampled=2)
    assert ensemble[1] is buffers[1]
    assert ensemble[-1] is buffers[2]
    assert ensemble[:] is ensemble
    for index in (slice(1), [0], torch.tensor([0]), torch.tensor([0]).numpy(), range(1)):
        assert (ensemble[index].sample(4)["step"] < 10).all()
    assert ensemble[1:, 2]["step"].tolist() == [102, 202]
    assert ensemble[2, :2]["step"].tolist() == [200, 201]
    assert ensemble.storage[1] is buffers[1].storage
    assert [each["step"].tolist() for each in ensemble.storage[:2, :2]] == [[0, 1], [100, 101]]
    assert isinstance(ensemble.sampler[:2], SamplerEnsemble)
    assert torch.allclose(ensemble.sampler[1:].p, torch.tensor([0.375, 0.625]))
    assert isinstance(ensemble.writer[[0, 2]], WriterEnsemble)
    for wrong in (0.5, torch.zeros(1, 1, dtype=torch.int64), 3, "a"):
        with pytest.raises(IndexError):
            ensemble[wrong]


def test_an_ensemble_of_parts() -> None:
    buffers = [numbered(10, 100 * i) for i in range(2)]
    buffers[1].append_transform(RewardScaling(0.0, 3.0, in_keys=["reward"]))
    ensemble = ReplayBufferEnsemble(
        storages=StorageEnsemble(
            *(each.storage for each in buffers), transforms=[each.transform for each in buffers]
        ),
        samplers=SamplerEnsemble(RandomSampler(), RandomSampler(), sample_from_all=True),
        writers=WriterEnsemble(RoundRobinWriter(), RoundRobinWriter()),
    )
    assert ensemble.sample(4)["reward"].flatten().tolist() == [1.0, 1.0, 3.0, 3.0]
    drawn = ensemble.sample(4)["index"][:, 0]
    drawn["index"] = drawn["index"].unsqueeze(-1)
    assert [member for member, _ in ensemble.storage.get(drawn)] == [0, 1]
    with pytest.raises(ArgumentError, match="2 storages and 1 transforms"):
        StorageEnsemble(ListStorage(1), ListStorage(1), transforms=[None])
    with pytest.raises(ArgumentError, match="the buffers are missing"):
        ReplayBufferEnsemble()
    with pytest.raises(ArgumentError, match="both buffers and parts"):
        ReplayBufferEnsemble(*buffers, storages=ensemble.storage)


def test_writing_is_refused_but_for_the_members() -> None:
    ensemble = ReplayBufferEnsemble(numbered(10), numbered(10))
    for write in (ensemble.extend, ensemble.add, ensemble.storage.extend, ensemble.writer.extend):
        with pytest.raises(ChainError, match=r"ensemble\[0\].extend"):
            write(torch.zeros(1))
    ensemble[0].empty()
    assert ensemble.write_count == 10
    ensemble.empty()
    assert ensemble.write_count == 0


def test_a_pass_of_a_member_is_filled_up_from_the_next_one() -> None:
    buffers = [numbered(5, 100 * i, sampler=SamplerWithoutReplacement()) for i in range(2)]
    ensemble = ReplayBufferEnsemble(*buffers, sample_from_all=True)
    steps = torch.cat([ensemble.sample(6)["step"] for _ in range(5)], 1)
    assert steps[0].bincount().tolist() == [3] * 5


def test_lists_functions_of_members_and_seeds() -> None:
    buffers = [ReplayBuffer(storage=ListStorage(4), collate_fn=torch.stack) for _ in range(2)]
    for i, each in enumerate(buffers):
        each.extend([torch.full((2,), i)] * 4)
    negated = ReplayBufferEnsemble(
        *buffers,
        collate_fns=[None, lambda items: -torch.stack(items)],
        sample_from_all=True,
        collate_fn=torch.cat,
    )
    assert negated.sample(4)[:, 0].tolist() == [0, 0, -1, -1]
    assert buffers[1].sample(1).tolist() == [[1, 1]]
    draws = []
    for _ in range(2):
        generator = torch.Generator().manual_seed(3)
        ensemble = ReplayBufferEnsemble(numbered(50), numbered(50), generator=generator)
        draws.append(ensemble.sample(8)["index"])
    assert (draws[0] == draws[1]).all()


def test_members_with_other_keys_and_slices() -> None:
    sliced = TensorDictReplayBuffer(storage=LazyTensorStorage(9), sampler=SliceSampler(slice_len=2))
    sliced.extend(rollout([4, 5]))
    ensemble = ReplayBufferEnsemble(sliced, numbered(10), sample_from_all=True)
    batch = ensemble.sample(8)
    assert batch["step"].shape == (2, 4)
    assert "episode" in batch[0].keys()
    assert "episode" not in batch[1].keys()


def test_priorities_go_to_the_member() -> None:
    samplers = [PrioritizedSampler(10, 1.0, 1.0) for _ in range(2)]
    buffers = [numbered(10, sampler=sampler) for sampler in samplers]
    ensemble = ReplayBufferEnsemble(*buffers, sample_from_all=True)
    index = TensorDict(
        buffer_ids=torch.tensor([[1, 1]]), index=torch.tensor([[3, 4]]), batch_size=[1]
    )
    buffers[1].update_priority(torch.arange(10), 0.0)
    ensemble.update_priority(index, torch.tensor([[1e6, 0.0]]))
    batch = ensemble.sample(40)["step"]
    assert set(batch[1].tolist()) == {3}
    assert len(set(batch[0].tolist())) > 3


def test_saved_ensembles(tmp_path: Path) -> None:
    ensemble = ReplayBufferEnsemble(numbered(10), numbered(10, 100), sample_from_all=True)
    others = [
        ReplayBufferEnsemble(
            *(ReplayBuffer(storage=LazyTensorStorage(10)) for _ in range(2)), sample_from_all=True
        )
        for _ in range(2)
    ]
    ensemble.dumps(tmp_path)
    others[0].loads(tmp_path)
    others[1].load_state_dict(ensemble.state_dict())
    for other in others:
        assert other[1][:]["step"].tolist() == list(range(100, 110))
    others[0].empty()
    ensemble.storage.dumps(tmp_path / "storages")
    others[0].storage.loads(tmp_path / "storages")
    assert others[0][1][:]["step"].tolist() == list(range(100, 110))


def test_a_storage_without_entries_takes_those_of_the_first_data() -> None:
    buffer = ReplayBuffer(storage=TensorStorage(TensorDict(batch_size=[6])))
    assert len(buffer) == 0
    buffer.extend(rollout([4]))
    assert len(buffer) == 4
    buffer.extend(rollout([4]))
    assert buffer[:]["step"].tolist() == [2, 3, 2, 3, 0, 1]


def test_drop_last_needs_a_batch_size() -> None:
    with pytest.raises(ArgumentError, match="predictable batch-size"):
        ReplayBuffer(sampler=SamplerWithoutReplacement(drop_last=True))
