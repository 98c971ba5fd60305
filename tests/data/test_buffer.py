"""Writing to a buffer, reading from it, and what wrong use gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import NonTensorData, TensorDict, TensorDictBase

from tdx import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    Storage,
    TensorDictReplayBuffer,
)
from tdx.foundation.errors import ArgumentError, ChainError
from tests.data.stored import rollout
from tests.transforms.fixed_rollouts import assert_same

STORAGES = [ListStorage, LazyTensorStorage, LazyMemmapStorage]
MakeStorage = Callable[[int], Storage]
storages = pytest.mark.parametrize("storage", STORAGES)


@storages
def test_stored_data_is_returned(storage: MakeStorage) -> None:
    data = rollout([3, 4])
    buffer = ReplayBuffer(storage=storage(10), batch_size=5)
    assert buffer.extend(data).tolist() == list(range(7))
    assert (len(buffer), buffer.write_count) == (7, 7)
    assert_same(buffer[:], data)
    assert_same(buffer[2], data[2])
    assert_same(buffer[torch.tensor([4, 0])], data[torch.tensor([4, 0])])
    batch, info = buffer.sample(return_info=True)
    assert batch.batch_size == (5,)
    assert_same(batch, data[info["index"]])


@storages
def test_the_oldest_steps_are_overwritten(storage: MakeStorage) -> None:
    data = rollout([12])
    buffer = ReplayBuffer(storage=storage(5), batch_size=2)
    assert buffer.extend(data[:3]).tolist() == [0, 1, 2]
    assert buffer.extend(data[3:7]).tolist() == [3, 4, 0, 1]
    assert buffer.add(data[7]) == 2
    assert (len(buffer), buffer.write_count) == (5, 8)
    assert buffer[:]["step"].tolist() == [5, 6, 7, 3, 4]
    assert buffer.extend(data).tolist() == [i % 5 for i in range(3, 15)]
    assert sorted(buffer[:]["step"].tolist()) == [7, 8, 9, 10, 11]
    assert buffer.write_count == 20


@storages
def test_more_than_fits_at_once(storage: MakeStorage) -> None:
    buffer = ReplayBuffer(storage=storage(5))
    assert buffer.extend(torch.arange(8)).tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert buffer[:].tolist() == [5, 6, 7, 3, 4]


@storages
def test_empty(storage: MakeStorage) -> None:
    buffer = ReplayBuffer(storage=storage(5), batch_size=1)
    buffer.extend(rollout([4]))
    buffer.empty()
    assert (len(buffer), buffer.write_count) == (0, 0)
    with pytest.raises(ChainError, match=r"the buffer is empty \(extend\(\) it"):
        buffer.sample()
    buffer.extend(rollout([3]))
    buffer.empty(empty_write_count=False)
    assert (len(buffer), buffer.write_count) == (0, 3)


@storages
def test_steps_are_replaced(storage: MakeStorage) -> None:
    data = rollout([6])
    buffer = ReplayBuffer(storage=storage(6))
    buffer.extend(data)
    buffer[0] = data[5]
    buffer[2:4] = data[:2]
    assert buffer[:]["step"].tolist() == [5, 1, 0, 1, 4, 5]


def test_samples_are_copies() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(4), batch_size=4)
    buffer.extend(rollout([4]))
    buffer.sample()["observation"].zero_()
    assert buffer[:]["observation"][:, 1].tolist() == [0, 1, 2, 3]


def test_stored_data_does_not_follow_its_source() -> None:
    data = rollout([4])
    buffer = ReplayBuffer(storage=LazyTensorStorage(4))
    buffer.extend(data)
    data["observation"].zero_()
    assert buffer[:]["observation"][:, 1].tolist() == [0, 1, 2, 3]


def test_lists_of_steps() -> None:
    data = rollout([4])
    buffer = ReplayBuffer(storage=LazyTensorStorage(4))
    buffer.extend(list(data.unbind(0)))
    assert_same(buffer[:], data)


def test_any_object_in_a_list() -> None:
    buffer = ReplayBuffer(batch_size=3)
    buffer.extend(["a", "b"])
    buffer.add({"c": 1})
    assert buffer[:] == ["a", "b", {"c": 1}]
    assert set(map(str, buffer.sample())) <= {"a", "b", "{'c': 1}"}


def test_unlike_steps_in_a_list() -> None:
    steps = [TensorDict(a=torch.zeros(n)) for n in (1, 2)]
    buffer = ReplayBuffer(storage=ListStorage(4), batch_size=8)
    buffer.extend(steps)
    batch = buffer.sample()
    assert {tuple(batch[i]["a"].shape) for i in range(8)} == {(1,), (2,)}


def test_collate_fn() -> None:
    buffer = ReplayBuffer(storage=ListStorage(4), batch_size=2, collate_fn="".join)
    buffer.extend(["a", "a"])
    assert buffer.sample() == "aa"


def test_dtypes_survive() -> None:
    dtypes = [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64]
    data = TensorDict({str(dtype): torch.ones(3, 2).to(dtype) for dtype in dtypes}, [3])
    buffer = ReplayBuffer(storage=LazyTensorStorage(3), batch_size=3)
    buffer.extend(data)
    assert_same(buffer[:], data)
    assert {value.dtype for value in buffer.sample().values()} == set(dtypes)


def test_groups_of_their_own_size() -> None:
    agents = TensorDict(reward=torch.rand(5, 3, 1), empty=TensorDict({}, [5, 3]), batch_size=[5, 3])
    data = TensorDict(agents=agents, batch_size=[5])
    buffer = ReplayBuffer(storage=LazyTensorStorage(5), batch_size=4)
    buffer.extend(data)
    batch = buffer.sample()
    assert batch["agents"].batch_size == (4, 3)
    assert batch["agents", "empty"].batch_size == (4, 3)
    assert_same(buffer[:], data)


def test_gradients_are_not_stored() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(3), batch_size=3)
    buffer.extend(torch.ones(3, requires_grad=True) * 2)
    assert not buffer.sample().requires_grad


def test_tensordict_buffer_writes_the_index() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(9), batch_size=4)
    data = rollout([9])
    buffer.extend(data)
    batch = buffer.sample()
    assert_same(batch.exclude("index"), data[batch["index"]])
    plain = TensorDictReplayBuffer(storage=LazyTensorStorage(9), batch_size=4)
    plain.extend(torch.zeros(3))
    with pytest.raises(ChainError, match="instead of TensorDicts"):
        plain.sample()


# Wrong use


def without(data: TensorDictBase, *keys: Any) -> TensorDictBase:
    return data.exclude(*keys)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.set("observation", torch.zeros(4, 3)), r"'observation': .* shape \(3,\)"),
        (lambda d: d.set("observation", d["observation"].double()), "dtype float64 in a step"),
        (lambda d: without(d, ("next", "reward")), r"the data lacks 'next\.reward'"),
        (lambda d: d.set("extra", torch.zeros(4)), "the data also has 'extra'"),
        (lambda d: torch.zeros(4), "also has a bare tensor"),
        (lambda d: d[:0], r"the data has no steps: its shape is \(0,\)"),
        (lambda d: d[0], "has 1 dims of steps, the data has 0"),
        (lambda d: "text", "takes tensors and TensorDicts, got str"),
        (lambda d: d.set("words", "text"), r"'words': only tensors can be stored"),
    ],
)
@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
def test_data_with_another_layout(
    storage: MakeStorage, change: Callable[[TensorDictBase], Any], message: str
) -> None:
    buffer = ReplayBuffer(storage=storage(10))
    buffer.extend(rollout([4]))
    with pytest.raises(ArgumentError, match=message):
        buffer.extend(change(rollout([4])))
    assert (len(buffer), buffer.write_count) == (4, 4)
    assert_same(buffer[:], rollout([4]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ReplayBuffer(storage=3), "storage must be a Storage, got int"),  # type: ignore[arg-type]
        (lambda: ReplayBuffer(sampler=ListStorage(3)), "sampler must be a Sampler"),  # type: ignore[arg-type]
        (lambda: ReplayBuffer(batch_size=0), "batch_size must be an integer of at least 1"),
        (lambda: ReplayBuffer(prefetch=-1), "prefetch must be an integer of at least 0"),
        (
            lambda: ReplayBuffer(dim_extend=1),
            "dim_extend=1 is out of range for a storage with 1 dims",
        ),
        (lambda: LazyTensorStorage(0), "max_size must be an integer of at least 1"),
        (lambda: LazyTensorStorage(5, ndim=0), "ndim must be an integer of at least 1"),
        (lambda: LazyMemmapStorage(5, device="cuda"), "device must be cpu"),
    ],
)
def test_invalid_arguments(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


def test_no_batch_size() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(3))
    buffer.extend(torch.arange(3))
    with pytest.raises(ArgumentError, match="the buffer has no batch_size"):
        buffer.sample()
    assert buffer.sample(7).shape == (7,)


def test_index_out_of_range() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(10))
    with pytest.raises(IndexError):
        buffer[0]
    buffer.extend(rollout([4]))
    with pytest.raises(IndexError):
        buffer[4]


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
def test_other_objects_are_refused(storage: MakeStorage) -> None:
    steps = [TensorDict(seen=torch.zeros(1), word=NonTensorData(each)) for each in "ab"]
    buffer = TensorDictReplayBuffer(storage=storage(4), batch_size=2)
    with pytest.raises(ArgumentError, match="key 'word': only tensors can be stored") as caught:
        buffer.extend(torch.stack(steps))
    assert caught.value.hint == "use ListStorage for other objects"
