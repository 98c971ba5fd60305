"""Rows to which writers write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from tdx import (
    ImmutableDatasetWriter,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    RoundRobinWriter,
    Storage,
    TensorDictMaxValueWriter,
    TensorDictRoundRobinWriter,
    Writer,
)
from tdx.foundation.errors import ArgumentError, ChainError, StorageError


def ranked(*values: float) -> TensorDict:
    return TensorDict(value=torch.tensor(values), batch_size=[len(values)])


UNRANKED = TensorDict(a=torch.zeros(3), batch_size=[3])


def read_only() -> ReplayBuffer:
    return ReplayBuffer(writer=ImmutableDatasetWriter())


def keep_largest(size: int, storage: type[Storage] = LazyTensorStorage) -> ReplayBuffer:
    return ReplayBuffer(
        storage=storage(size), writer=TensorDictMaxValueWriter(rank_key="value"), batch_size=2
    )


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
def test_the_largest_values_are_kept(storage: type[Storage]) -> None:
    buffer = keep_largest(3, storage)
    assert buffer.extend(ranked(1, 5, 2)).tolist() == [0, 1, 2]
    assert buffer.extend(ranked(0, 3, 4)).tolist() == [-1, 0, 2]
    assert buffer.add(ranked(9)[0]) == 0
    assert buffer.add(ranked(3)[0]) is None
    assert buffer[:]["value"].tolist() == [9, 5, 4]
    assert (len(buffer), buffer.write_count) == (3, 6)


def test_more_values_than_fit_at_once() -> None:
    buffer = keep_largest(2)
    buffer.extend(ranked(1, 5, 2, 4, 3))
    assert sorted(buffer[:]["value"].tolist()) == [4, 5]


def test_values_are_ranked_again_after_loading(tmp_path: Path) -> None:
    buffer, other = keep_largest(2), keep_largest(2)
    buffer.extend(ranked(5, 7))
    buffer.dumps(tmp_path)
    other.loads(tmp_path)
    other.extend(ranked(6, 1))
    assert sorted(other[:]["value"].tolist()) == [6, 7]


@pytest.mark.parametrize(
    ("reduction", "winner"), [("max", 0), ("min", 1), ("mean", 2), ("sum", 2), ("median", 2)]
)
def test_several_elements_are_reduced(reduction: str, winner: int) -> None:
    values = torch.tensor([[0.0, 0.0, 9.0], [4.0, 4.0, 4.0], [3.0, 6.0, 8.0]])
    writer = TensorDictMaxValueWriter(rank_key="value", reduction=reduction)
    buffer = ReplayBuffer(storage=LazyTensorStorage(1), writer=writer)
    buffer.extend(TensorDict(value=values, step=torch.arange(3), batch_size=[3]))
    assert buffer[:]["step"].item() == winner


def test_the_reward_ranks_by_default() -> None:
    data = TensorDict({"next": {"reward": torch.tensor([[1.0], [3.0], [2.0]])}}, [3])
    buffer = ReplayBuffer(storage=LazyTensorStorage(1), writer=TensorDictMaxValueWriter)
    buffer.extend(data)
    assert buffer[:]["next", "reward"].item() == 3


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: TensorDictMaxValueWriter(reduction="first"), ArgumentError, "'first'"),
        (lambda: keep_largest(2).extend(torch.zeros(3)), ChainError, "a tensor collection"),
        (lambda: keep_largest(2).extend(UNRANKED), ArgumentError, "no 'value'"),
        (lambda: read_only().extend([1]), ChainError, "does not write"),
        (lambda: read_only().add(1), ChainError, "does not write"),
        (lambda: ReplayBuffer(writer=TensorDictRoundRobinWriter()).add(1), ChainError, "got int"),
        (lambda: ReplayBuffer(writer=3), ArgumentError, "writer must be a Writer"),  # type: ignore[arg-type]
        (lambda: RoundRobinWriter().load_state_dict({"_cursor": -1}), StorageError, "-1"),
        (lambda: RoundRobinWriter().loads("/nonexistent"), StorageError, "has no writer.json"),
    ],
)
def test_refused(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_the_state_of_a_writer_in_a_folder(tmp_path: Path) -> None:
    buffer, other = (ReplayBuffer(storage=LazyTensorStorage(4)) for _ in range(2))
    buffer.extend(torch.arange(6))
    buffer.writer.dumps(tmp_path)
    other.extend(torch.arange(4))
    other.writer.loads(tmp_path)
    assert other.write_count == 6
    assert other.extend(torch.arange(1)).tolist() == [2]


class EveryOtherRow(Writer):
    """Writes to even rows."""

    def add(self, data: Any) -> int:
        row = 2 * len(range(0, self._storage.rows, 2))
        self._storage.set(row, data)
        return row

    def extend(self, data: Any) -> Tensor:
        return torch.tensor([self.add(item) for item in data])


def test_a_writer_of_the_user() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(9), writer=EveryOtherRow)
    assert buffer.extend(torch.tensor([5, 6, 7])).tolist() == [0, 2, 4]
    assert buffer[:][::2].tolist() == [5, 6, 7]
    buffer.set_writer(RoundRobinWriter())
    assert buffer.add(torch.tensor(8)) == 0


def test_two_buffers_of_one_storage() -> None:
    storage, writer = LazyTensorStorage(4), RoundRobinWriter()
    first, second = (ReplayBuffer(storage=storage, writer=writer) for _ in range(2))
    first.extend(torch.arange(3))
    assert second.extend(torch.arange(2)).tolist() == [3, 0]
    assert len(first) == len(second) == 4
