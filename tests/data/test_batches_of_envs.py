"""Storages that count steps along several dims."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tdx import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer
from tdx.foundation.errors import ArgumentError
from tests.data.stored import batched
from tests.transforms.fixed_rollouts import assert_same

MakeStorage = Callable[..., LazyTensorStorage]
storages = pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])


@storages
def test_extend_appends_along_time(storage: MakeStorage) -> None:
    data = batched([[4, 6], [7, 3], [10]])
    buffer = ReplayBuffer(storage=storage(30, ndim=2))
    places = buffer.extend(data[:, :4])
    assert places[:5].tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]]
    assert buffer.extend(data[:, 4:]).shape == (18, 2)
    assert (len(buffer), buffer.write_count) == (30, 10)
    assert_same(buffer[:], data)
    assert_same(buffer[1, 3:5], data[1, 3:5])
    buffer.extend(data[:, :2])
    assert buffer[:]["step"][2].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert buffer.storage.oldest == 2


@storages
def test_samples_are_flat(storage: MakeStorage) -> None:
    data = batched([[4, 6], [7, 3], [10]])
    buffer = TensorDictReplayBuffer(storage=storage(30, ndim=2), batch_size=16)
    buffer.extend(data)
    batch, info = buffer.sample(return_info=True)
    time, row = info["index"]
    assert batch["index"].tolist() == torch.stack([time, row], -1).tolist()
    assert_same(batch.exclude("index"), data[row, time])


def test_one_step_of_all_envs() -> None:
    data = batched([[4], [4]])
    buffer = ReplayBuffer(storage=LazyTensorStorage(6, ndim=2))
    for step in data.unbind(1):
        places = buffer.add(step)
    assert isinstance(places, torch.Tensor)
    assert places.tolist() == [[0, 0], [0, 1]]
    assert buffer[:]["step"].tolist() == [[3, 1, 2]] * 2


def test_other_dim_that_grows() -> None:
    data = batched([[4], [4]])
    buffer = ReplayBuffer(storage=LazyTensorStorage(12, ndim=2), dim_extend=0)
    buffer.extend(data)
    buffer.extend(data[:1])
    assert buffer[:].shape == (3, 4)


def test_another_number_of_envs() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(20, ndim=2))
    buffer.extend(batched([[4], [4]]))
    with pytest.raises(ArgumentError, match=r"has batch dims \(3,\), the storage has \(2,\)"):
        buffer.extend(batched([[4], [4], [4]]))
    assert len(buffer) == 8


def test_less_room_than_one_row() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(2, ndim=2))
    with pytest.raises(ArgumentError, match="less than the 3 steps of one row"):
        buffer.extend(batched([[4], [4], [4]]))


def test_sequences_as_items() -> None:
    data = batched([[4], [4], [4]])
    buffer = ReplayBuffer(storage=LazyTensorStorage(5), batch_size=2)
    buffer.extend(data)
    assert len(buffer) == 3
    assert buffer.sample().batch_size == (2, 4)
    assert buffer.sample().names == ["batch", "time"]
