"""Updates of steps that may have been replaced since they were read."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from tdx import (
    ArgumentError,
    ChainError,
    KeyNotFoundError,
    LazyMemmapStorage,
    LazyTensorStorage,
    ReplayBuffer,
    RoundRobinWriter,
    StorageError,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)
from tdx.foundation.keys import NestedKey


def steps(count: int, value: float = 0.0) -> TensorDict:
    return TensorDict(
        value=torch.full((count, 2), value),
        info=TensorDict(label=torch.zeros(count, dtype=torch.int64)),
        version=torch.full((count,), 5),
        batch_size=[count],
    )


def make(storage: Any = None, count: int = 6) -> tuple[TensorDictReplayBuffer, dict[str, Any]]:
    """Return a full buffer, and what identifies its steps."""
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(6) if storage is None else storage,
        writer=TensorDictRoundRobinWriter(track_generations=True),
        batch_size=4,
    )
    index = buffer.extend(steps(count))
    return buffer, {"index": index, "generation": buffer.writer.generations_of(index)}


def new(value: float, count: int = 6) -> dict[Any, torch.Tensor]:
    return {"value": torch.full((count, 2), value)}


def values(buffer: ReplayBuffer) -> list[float]:
    return buffer[:]["value"][:, 0].tolist()


def test_steps_that_were_replaced_keep_their_data() -> None:
    buffer, handles = make()
    buffer.extend(steps(2, 1.0))
    for value in (7.0, 8.0):  # a handle can be used again
        update = buffer.update_if_present(**handles, patch=new(value))
        assert update.updated.tolist() == [False] * 2 + [True] * 4
        assert update.stale.tolist() == [True] * 2 + [False] * 4
        assert (update.updated_count, update.stale_count) == (4, 2)
        assert update.version_rejected is None
        assert values(buffer) == [1.0] * 2 + [value] * 4


def test_handles_come_with_batches() -> None:
    buffer, _ = make()
    batch = buffer.sample()
    buffer.extend(steps(3, 1.0))
    patch: dict[NestedKey, torch.Tensor] = {("info", "label"): torch.full((4,), 9)}
    update = buffer.update_if_present(
        index=batch["index"], generation=batch["index_generation"], patch=patch
    )
    assert torch.equal(update.updated, batch["index"] >= 3)
    assert set(buffer[:]["info", "label"][:3].tolist()) == {0}


@pytest.mark.parametrize("way", ["empty", "loads", "load_state_dict"])
def test_data_that_was_replaced_as_a_whole(way: str, tmp_path: Path) -> None:
    buffer, handles = make()
    if way == "empty":
        buffer.empty()
        assert buffer.update_if_present(**handles, patch=new(7.0)).stale_count == 6
        buffer.extend(steps(6))
    elif way == "loads":
        buffer.dumps(tmp_path)
        buffer.loads(tmp_path)
    else:
        other = TensorDictReplayBuffer(storage=LazyTensorStorage(6), batch_size=4)
        other.extend(steps(6))
        buffer.load_state_dict(other.state_dict())
    assert buffer.update_if_present(**handles, patch=new(7.0)).stale_count == 6
    assert values(buffer) == [0.0] * 6
    batch = buffer.sample()
    handles = {"index": batch["index"], "generation": batch["index_generation"]}
    assert buffer.update_if_present(**handles, patch=new(7.0, 4)).updated_count == 4


def test_handles_of_loaded_steps_end_with_the_next_load(tmp_path: Path) -> None:
    make()[0].dumps(tmp_path)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(6), writer=TensorDictRoundRobinWriter(track_generations=True)
    )
    buffer.loads(tmp_path)
    batch = buffer.sample(4)
    handles = {"index": batch["index"], "generation": batch["index_generation"]}
    assert buffer.update_if_present(**handles, patch=new(7.0, 4)).updated_count == 4
    buffer.loads(tmp_path)
    assert buffer.update_if_present(**handles, patch=new(8.0, 4)).stale_count == 4


@pytest.mark.parametrize("way", ["state_dict", "pickle"])
def test_handles_are_valid_in_a_copy(way: str) -> None:
    buffer, handles = make()
    buffer.extend(steps(1, 1.0))
    if way == "pickle":
        copy = pickle.loads(pickle.dumps(buffer))
    else:
        copy, _ = make(LazyMemmapStorage(6))
        copy.load_state_dict(buffer.state_dict())
    copy.extend(steps(1, 2.0))
    update = copy.update_if_present(**handles, patch=new(7.0))
    assert update.updated.tolist() == [False] * 2 + [True] * 4
    assert values(copy) == [1.0, 2.0] + [7.0] * 4


def test_older_versions_lose() -> None:
    buffer, handles = make()
    arguments: dict[str, Any] = {**handles, "version_key": "version"}
    newer = buffer.update_if_present(**arguments, patch=new(2.0), version=7, require_newer=True)
    assert newer.updated_count == 6
    for version, strict in ((6, False), (7, True)):
        older = buffer.update_if_present(
            **arguments, patch=new(1.0), version=version, require_newer=strict
        )
        assert (older.updated_count, older.version_rejected_count) == (0, 6)
    assert values(buffer) == [2.0] * 6
    buffer.extend(steps(2))
    versions = torch.tensor([9, 9, 9, 6, 7, 8])
    mixed = buffer.update_if_present(**arguments, patch=new(3.0), version=versions)
    assert mixed.stale.tolist() == [True] * 2 + [False] * 4
    assert mixed.version_rejected is not None
    assert mixed.version_rejected.tolist() == [False] * 3 + [True] + [False] * 2
    assert buffer[:]["version"].tolist() == [5, 5, 9, 7, 7, 8]


@pytest.mark.parametrize("order", [[7, 6], [6, 7]])
def test_the_newest_of_several_updates_of_one_step_wins(order: list[int]) -> None:
    buffer, handles = make()
    update = buffer.update_if_present(
        index=handles["index"][[3, 3]],
        generation=handles["generation"][[3, 3]],
        patch={"value": torch.tensor(order).float().unsqueeze(1).expand(2, 2)},
        version_key="version",
        version=torch.tensor(order),
    )
    assert update.updated.tolist() == [version == 7 for version in order]
    assert values(buffer)[3] == 7.0


def test_several_envs() -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(6, ndim=2),
        writer=TensorDictRoundRobinWriter(track_generations=True),
    )
    data = TensorDict(value=torch.arange(6.0).reshape(2, 3), batch_size=[2, 3])
    index = buffer.extend(data)
    generation = buffer.writer.generations_of(index)
    buffer.update_if_present(index=index, generation=generation, patch={"value": data["value"] * 2})
    assert torch.equal(buffer[:]["value"], data["value"] * 2)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"patch": {"other": torch.zeros(6)}}, KeyNotFoundError, "no key 'other'"),
        (
            {"patch": {**new(7.0), ("info", "label"): torch.zeros(6, 5).long()}},
            ArgumentError,
            r"must be torch.int64 of shape \(6,\), got torch.int64 of shape \(6, 5\)",
        ),
        ({"patch": {"value": torch.zeros(6, 2).long()}}, ArgumentError, "must be torch.float32"),
        ({"version": 6}, ArgumentError, "belong together"),
        ({"version": 6, "version_key": "value"}, ArgumentError, "may not appear in patch"),
        ({"version": 6, "version_key": "other"}, KeyNotFoundError, "no key 'other'"),
        ({"patch": {"info.label": torch.zeros(6)}}, KeyNotFoundError, "a nested key is a tuple"),
        (
            {"version": 6, "version_key": "value", "patch": {}},
            ArgumentError,
            "must be one int64 per step",
        ),
        ({"version": torch.arange(3), "version_key": "version"}, ArgumentError, "3 versions for 6"),
        ({"generation": torch.zeros(2)}, ArgumentError, "2 generations for 6 steps"),
    ],
)
def test_nothing_is_written_if_an_argument_is_wrong(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    buffer, handles = make()
    with pytest.raises(error, match=message):
        buffer.update_if_present(**{"patch": new(7.0), **handles, **arguments})
    assert values(buffer) == [0.0] * 6


def test_a_buffer_that_does_not_know_its_writes() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(6), batch_size=2)
    assert not buffer.writer.tracks_generations
    assert RoundRobinWriter(track_generations=True).tracks_generations
    index = buffer.extend(steps(6))
    assert "index_generation" not in buffer.sample().keys()
    assert buffer.writer.generations_of(index).tolist() == [-1] * 6
    listed = ReplayBuffer(writer=RoundRobinWriter(track_generations=True))
    listed.extend([steps(1)] * 6)
    for other in (buffer, listed):
        with pytest.raises(ChainError, match="conditional updates need"):
            other.update_if_present(index=index, generation=torch.ones(6), patch=new(7.0))


def test_own_writer_that_does_not_call_the_base_class() -> None:
    class Own(RoundRobinWriter):
        def __init__(self) -> None:
            self.written = 0

        def extend(self, data: object) -> torch.Tensor:
            self.written += 1
            return super().extend(data)

    writer = Own()
    buffer = ReplayBuffer(storage=LazyTensorStorage(6), writer=writer, batch_size=2)
    buffer.extend(steps(6))
    assert (writer.written, len(buffer.sample())) == (1, 2)


def test_generations_count_the_writes() -> None:
    buffer, _ = make()
    generations = buffer.writer.generations_of
    buffer.extend(steps(2))
    assert generations(torch.tensor([0, 1, 2, 6, -1])).tolist() == [1, 1, 0, -1, -1]
    buffer.extend(steps(15))
    assert generations(torch.arange(6)).tolist() == [3, 3, 3, 3, 3, 2]


def test_buffers_of_one_storage_see_the_writes_of_each_other() -> None:
    buffer, handles = make()
    other = TensorDictReplayBuffer(storage=buffer.storage)
    other.extend(steps(2))
    assert buffer.update_if_present(**handles, patch=new(7.0)).stale_count == 2
    other.empty()
    assert bool((buffer.writer.generations_of(handles["index"]) != handles["generation"]).all())


def test_a_damaged_state_is_refused() -> None:
    buffer, _ = make()
    state = buffer.state_dict()
    state["_writer"]["_generation"] -= 2
    with pytest.raises(StorageError, match="generations of the writer"):
        buffer.load_state_dict(state)


def test_stats() -> None:
    buffer, _ = make(count=4)
    stats = buffer.stats()
    assert (stats["size"], stats["capacity"], stats["write_count"]) == (4, 6, 4)
    assert stats["utilization"] == pytest.approx(4 / 6)
    buffer.extend(steps(6))
    buffer.empty(empty_write_count=False)
    assert (buffer.stats()["size"], buffer.stats()["write_count"]) == (0, 10)
