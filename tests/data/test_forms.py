"""Nested dicts, tensorclasses and given tensors in storages; state and copies of buffers."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorClass, TensorDict
from torch import Tensor

from tdx import (
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    ReplayBuffer,
    RewardScaling,
    Sampler,
    SamplerWithoutReplacement,
    SliceSampler,
    Storage,
    TensorDictReplayBuffer,
    TensorStorage,
)
from tdx.foundation.errors import ArgumentError, ChainError, StorageError
from tests.data.stored import batched, rollout
from tests.transforms.fixed_rollouts import assert_same

STORAGES = [LazyTensorStorage, LazyMemmapStorage, ListStorage]
storages = pytest.mark.parametrize("storage", STORAGES)
tensor_storages = pytest.mark.parametrize("storage", STORAGES[:2])


class Step(TensorClass):  # type: ignore[misc]
    image: Tensor
    extra: TensorDict


def nested(count: int) -> dict[Any, Any]:
    steps = torch.arange(count)
    return {"a": steps, "b": {"c": [steps.unsqueeze(-1) * 2.0, (steps + 1,)]}, 30: steps * 3}


def objects(count: int) -> Step:
    image = torch.arange(count * 2.0).reshape(count, 2)
    extra = TensorDict(x=torch.arange(count), batch_size=[count])
    return Step(image=image, extra=extra, batch_size=[count])


@storages
def test_nested_dicts(storage: type[Storage]) -> None:
    buffer = ReplayBuffer(storage=storage(4), batch_size=5)
    buffer.extend(nested(3))
    assert buffer.add({"a": 7, "b": {"c": [torch.ones(1), (torch.tensor(2),)]}, 30: 9}) == 3
    batch = buffer.sample()
    regular = batch["a"] < 7
    assert batch["b"]["c"][0].shape == (5, 1)
    assert isinstance(batch["b"]["c"][1], tuple)
    assert (batch["b"]["c"][1][0][regular] == batch["a"][regular] + 1).all()
    assert buffer[1][30] == 3
    if storage is not ListStorage:
        assert buffer[1:3]["a"].tolist() == [1, 2]
        with pytest.raises(ArgumentError, match="nested in another way"):
            buffer.extend([(torch.zeros(2), torch.zeros(2))])


@tensor_storages
def test_lists_of_nested_tuples(storage: type[Storage]) -> None:
    buffer = ReplayBuffer(storage=storage(9), sampler=SamplerWithoutReplacement(shuffle=False))
    buffer.extend([(torch.full((2,), i), {"x": torch.tensor(i)}) for i in range(4)])
    whole, inner = buffer.sample(4)
    assert whole.tolist() == [[i, i] for i in range(4)]
    assert inner["x"].tolist() == [0, 1, 2, 3]


@storages
def test_tensorclasses(storage: type[Storage]) -> None:
    buffer = ReplayBuffer(storage=storage(4), batch_size=5)
    buffer.extend(objects(3))
    buffer.add(objects(1)[0])
    batch = buffer.sample()
    assert isinstance(batch, Step)
    assert (batch.image[:, 0] == 2 * batch.extra["x"]).all()
    assert isinstance(buffer[:], Step)
    assert buffer[:].extra["x"].tolist() == [0, 1, 2, 0]
    assert buffer[1].image.tolist() == [2, 3]


@storages
def test_functions_map_nested_dicts(storage: type[Storage]) -> None:
    def clear(data: Any) -> Any:
        return {"a": data["a"] * 0}

    buffer = ReplayBuffer(storage=storage(4), batch_size=5, transform=clear)
    buffer.extend(nested(3))
    assert buffer.sample()["a"].tolist() == [0] * 5
    buffer.append_transform(RewardScaling(0.0, 1.0))
    with pytest.raises(ChainError, match="the batches are dict"):
        buffer.sample()


@storages
def test_writing_to_a_storage(storage: type[Storage]) -> None:
    data = rollout([9])
    stored = storage(6)
    stored.set(range(3), data[:3])
    stored.set(3, data[3])
    stored.set(torch.tensor([2, 0]), data[4:6])
    assert (len(stored), stored.cursor) == (4, 0)
    assert stored.contains(3)
    assert not stored.contains(4)
    steps = [each["step"].item() for each in stored]
    assert steps == [5, 1, 4, 3]
    picked = stored.get(range(1, 3))
    assert [each["step"].item() for each in picked] == [1, 4]
    with pytest.raises(IndexError):
        stored.set(torch.tensor([9, 0]), data[:2])
    with pytest.raises(ArgumentError, match="index has 3 rows, the data has 2"):
        stored.set(range(3), data[:2])


def test_slices_of_rows_that_were_set() -> None:
    storage = LazyTensorStorage(7)
    storage.set(range(7), rollout([4, 3]))
    index, _ = SliceSampler(slice_len=3).sample(storage, 300)
    assert {row[0] for row in storage[index]["step"].reshape(-1, 3).tolist()} == {0, 1}


def test_given_tensors_are_the_storage() -> None:
    data = rollout([4])
    storage = TensorStorage(data, max_size=4)
    buffer = ReplayBuffer(storage=storage, sampler=SamplerWithoutReplacement(shuffle=False))
    assert_same(buffer.sample(4), data)
    buffer.add(rollout([9])[7])
    assert data["step"].tolist() == [7, 1, 2, 3]
    image = torch.zeros(2, 3, 4)
    assert len(TensorStorage(image, ndim=2)) == 6
    with pytest.raises(ArgumentError, match="max-size and the storage shape mismatch: 5 and 2"):
        TensorStorage(image, max_size=5)
    with pytest.raises(ArgumentError, match="non-null"):
        TensorStorage(None)


def test_lazy_stacks() -> None:
    buffer = ReplayBuffer(storage=LazyStackStorage(4), batch_size=6)
    buffer.extend([TensorDict(a=torch.zeros(n), b=torch.tensor(n)) for n in (1, 2)])
    batch = buffer.sample()
    assert isinstance(batch, LazyStackedTensorDict)
    assert [len(batch[i]["a"]) for i in range(6)] == batch["b"].tolist()


def test_entries_are_replaced_in_place() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(9))
    buffer.extend(rollout([5]))
    buffer.set_at_("step", torch.tensor([7, 8]), torch.tensor([0, 2])).set_(
        "episode", torch.arange(5)
    )
    assert buffer["step"].tolist() == [7, 1, 8, 3, 4]
    buffer.update_(TensorDict({"next": {"reward": torch.full((5, 1), 3.0)}}, [5]))
    assert buffer[:]["next", "reward"].unique().tolist() == [3]
    assert buffer["episode"].tolist() == [0, 1, 2, 3, 4]


def test_steps_of_batches_are_replaced() -> None:
    data = batched([[5], [5]])
    buffer = ReplayBuffer(storage=LazyTensorStorage(10, ndim=2))
    buffer.extend(data)
    buffer[0, 3:4] = data[1, 0:1]
    buffer[:, 1] = data[:, 4]
    assert buffer[:]["step"].tolist() == [[0, 4, 2, 0, 4], [0, 4, 2, 3, 4]]
    assert buffer[:]["episode"][0].tolist() == [0, 0, 0, 100, 0]


# State


@storages
@pytest.mark.parametrize("filled", [0, 3, 8])
def test_state_dict(storage: type[Storage], filled: int) -> None:
    buffer = TensorDictReplayBuffer(
        storage=storage(5),
        sampler=SamplerWithoutReplacement(),
        batch_size=2,
        generator=torch.Generator().manual_seed(3),
    )
    other = TensorDictReplayBuffer(storage=storage(5), sampler=SamplerWithoutReplacement())
    if filled:
        buffer.extend(rollout([filled]))
        buffer.sample()
    state = buffer.state_dict()
    other.load_state_dict(state)
    if filled and storage is not ListStorage:
        state["_storage"]["_storage"]["step"].zero_()
    assert (len(other), other.write_count, other.batch_size) == (min(filled, 5), filled, 2)
    if filled:
        assert_same(other[:], buffer[:])
        for _ in range(4):
            assert other.sample()["index"].tolist() == buffer.sample()["index"].tolist()
        assert other[:]["step"].any()
    assert other.extend(rollout([1])).tolist() == [filled % 5]


def test_groups_of_their_own_size_in_a_state() -> None:
    agents = TensorDict(reward=torch.rand(5, 3, 1), batch_size=[5, 3])
    data = TensorDict(agents=agents, batch_size=[5])
    storage, other = LazyTensorStorage(5), LazyTensorStorage(6)
    storage.set(range(5), data)
    other.load_state_dict(storage.state_dict())
    assert_same(other[:], data)
    with pytest.raises(ArgumentError, match="the state has 5 rows"):
        LazyTensorStorage(4).load_state_dict(storage.state_dict())
    with pytest.raises(StorageError, match="the state of a storage of tensors"):
        other.load_state_dict({"leaves": []})
    with pytest.raises(StorageError, match="the state of a list"):
        ListStorage(4).load_state_dict(storage.state_dict())


@storages
@pytest.mark.parametrize("data", [rollout([7]), torch.arange(7), objects(7), nested(7)], ids=type)
def test_pickled_buffers(storage: type[Storage], data: Any) -> None:
    buffer = ReplayBuffer(
        storage=storage(5),
        batch_size=3,
        prefetch=1,
        generator=torch.Generator().manual_seed(0),
    )
    buffer.extend(data)
    copy = pickle.loads(pickle.dumps(buffer))
    assert (len(copy), copy.write_count) == (5, 7)
    assert str(copy.sample()) == str(buffer.sample())
    assert copy.add(buffer[0]) == 2
    assert buffer.write_count == 7
    buffer.close()
    copy.close()


class Newest(Sampler):
    """Draws the newest step again and again."""

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[Any, Any]]:
        index = torch.full((batch_size,), len(storage) - 1)
        return index, {"age": torch.zeros(batch_size)}


def test_a_sampler_of_the_user() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(9), sampler=Newest(), batch_size=2)
    buffer.extend(rollout([4]))
    assert buffer.sample()["step"].tolist() == [3, 3]
    assert buffer.sample()["age"].tolist() == [0, 0]


def test_sampling_without_replacement_by_an_argument() -> None:
    make: Any = RandomSampler
    sampler = make(replacement=False, shuffle=False)
    assert isinstance(sampler, SamplerWithoutReplacement)
    assert not sampler.shuffle


def test_buffers_of_one_process_only() -> None:
    with pytest.raises(ArgumentError, match="belongs to one process"):
        ReplayBuffer(shared=True)
    buffer = ReplayBuffer(transform_factory=lambda: RewardScaling(0.0, 1.0), delayed_init=True)
    assert len(buffer.transform) == 1


def test_files_are_removed_on_request() -> None:
    storage = LazyMemmapStorage(5)
    assert not storage.cleanup()
    storage.set(range(3), torch.arange(3))
    folder = storage.scratch_dir
    assert folder is not None
    assert storage.cleanup()
    assert not folder.exists()
    assert not storage.cleanup()
