"""Saving a buffer and loading it, without pickle."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from tdx import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    Storage,
)
from tdx.foundation.errors import ArgumentError, StorageError
from tests.data.stored import batched, rollout
from tests.transforms.fixed_rollouts import assert_same

MakeStorage = Callable[[int], Storage]
STORAGES = [ListStorage, LazyTensorStorage, LazyMemmapStorage]


@pytest.mark.parametrize("source", STORAGES)
@pytest.mark.parametrize("target", STORAGES)
def test_from_each_storage_to_each(
    source: MakeStorage, target: MakeStorage, tmp_path: Path
) -> None:
    saved = ReplayBuffer(storage=source(6))
    saved.extend(rollout([4]))
    saved.extend(rollout([4], first=1))
    saved.dumps(tmp_path)
    loaded = ReplayBuffer(storage=target(6))
    loaded.loads(tmp_path)
    assert_same(loaded[:], saved[:])
    assert (len(loaded), loaded.write_count) == (6, 8)
    for buffer in (saved, loaded):
        assert buffer.extend(rollout([2], first=2)).tolist() == [2, 3]
    assert_same(loaded[:], saved[:])


def test_full_content(tmp_path: Path) -> None:
    dtypes = [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64]
    fields = {str(dtype): torch.rand(3, 2).mul(9).to(dtype) for dtype in dtypes}
    agents = TensorDict({"a/b": torch.rand(3, 5), "..": torch.rand(3, 5)}, [3, 5])
    data = TensorDict({**fields, "agents": agents, "none": torch.zeros(3, 0)}, [3])
    saved = ReplayBuffer(storage=LazyTensorStorage(4))
    saved.extend(data)
    saved.dumps(tmp_path)
    loaded = ReplayBuffer(storage=LazyTensorStorage(4))
    loaded.loads(tmp_path)
    assert_same(loaded[:], data)
    assert loaded[:]["agents"].batch_size == (3, 5)


def test_bare_tensors(tmp_path: Path) -> None:
    saved = ReplayBuffer(storage=LazyTensorStorage(4))
    saved.extend(torch.arange(3))
    saved.dumps(tmp_path)
    loaded = ReplayBuffer(storage=LazyTensorStorage(4))
    loaded.loads(tmp_path)
    assert loaded[:].tolist() == [0, 1, 2]


def test_empty_buffer(tmp_path: Path) -> None:
    ReplayBuffer(storage=LazyTensorStorage(4)).dumps(tmp_path)
    loaded = ReplayBuffer(storage=LazyTensorStorage(4))
    loaded.extend(torch.arange(3))
    loaded.loads(tmp_path)
    assert len(loaded) == 0


def test_batches_of_envs(tmp_path: Path) -> None:
    data = batched([[9], [9], [9]])
    saved = ReplayBuffer(storage=LazyTensorStorage(21, ndim=2))
    saved.extend(data)
    saved.dumps(tmp_path)
    loaded = ReplayBuffer(storage=LazyMemmapStorage(21, ndim=2))
    loaded.loads(tmp_path)
    assert_same(loaded[:], saved[:])


def test_into_a_larger_ring(tmp_path: Path) -> None:
    saved = ReplayBuffer(storage=LazyTensorStorage(5))
    saved.extend(torch.arange(7))
    saved.dumps(tmp_path)
    loaded = ReplayBuffer(storage=LazyTensorStorage(8))
    loaded.loads(tmp_path)
    assert loaded[:].tolist() == [2, 3, 4, 5, 6]
    assert loaded.extend(torch.arange(2)).tolist() == [5, 6]


def test_a_pass_continues(tmp_path: Path) -> None:
    def make() -> ReplayBuffer:
        sampler = SamplerWithoutReplacement()
        return ReplayBuffer(storage=LazyTensorStorage(10), sampler=sampler, batch_size=3)

    saved = make()
    saved.extend(torch.arange(10))
    first = saved.sample().tolist()
    saved.dumps(tmp_path)
    loaded = make()
    loaded.loads(tmp_path)
    rest = [step for batch in loaded for step in batch.tolist()]
    assert sorted(first + rest) == list(range(10))


def test_cuts_of_rollouts_are_restored(tmp_path: Path) -> None:
    def make() -> ReplayBuffer:
        sampler = SliceSampler(slice_len=4)
        return ReplayBuffer(storage=LazyTensorStorage(20), sampler=sampler, batch_size=200)

    saved = make()
    for number in range(4):
        saved.extend(rollout([7], first=number, ended=False))
    saved.dumps(tmp_path)
    loaded = make()
    loaded.loads(tmp_path)
    episodes = loaded.sample().reshape(-1, 4)["episode"]
    assert (episodes == episodes[:, :1]).all()


def test_no_pickle_is_written_or_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError

    for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    saved = ReplayBuffer(storage=LazyTensorStorage(8))
    saved.extend(rollout([5]))
    saved.dumps(tmp_path)
    ReplayBuffer(storage=LazyTensorStorage(8)).loads(tmp_path)
    assert {file.suffix for file in tmp_path.iterdir()} == {".json", ".bin"}


# What can be wrong with files


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    buffer = ReplayBuffer(storage=LazyTensorStorage(8))
    buffer.extend(rollout([5]))
    buffer.dumps(tmp_path)
    return tmp_path


def data_file(folder: Path, number: int) -> Path:
    (file,) = folder.glob(f"{number:03}-*.bin")
    return file


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda f: (f / "buffer.json").unlink(), r"no saved buffer: buffer\.json is missing"),
        (lambda f: data_file(f, 2).unlink(), r"no saved buffer: 002-\w+\.bin is missing"),
        (lambda f: data_file(f, 1).write_bytes(b"x"), r"001-\w+\.bin has 1 bytes instead of \d+"),
        (lambda f: flip(data_file(f, 1), 3), r"001-\w+\.bin does not match its checksum"),
        (
            lambda f: edit(f / "buffer.json", '"rows": 5', '"rows": 4'),
            r"buffer\.json does not match its checksum",
        ),
        (lambda f: (f / "buffer.json").write_text("{"), r"buffer\.json is not valid JSON"),
        (lambda f: (f / "buffer.json").write_text("{}"), r"buffer\.json is not a valid manifest"),
        (lambda f: (f / "buffer.json").write_text("[" * 20_000), "nested more than"),
    ],
)
def test_damaged_files(saved: Path, harm: Callable[[Path], Any], message: str) -> None:
    harm(saved)
    buffer = ReplayBuffer(storage=LazyTensorStorage(8))
    buffer.extend(rollout([3]))
    with pytest.raises(StorageError, match=message) as refused:
        buffer.loads(saved)
    assert refused.value.hint
    assert_same(buffer[:], rollout([3]))


def test_folder_that_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(StorageError, match="cannot write the buffer to"):
        ReplayBuffer(storage=LazyTensorStorage(8)).dumps(file)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LazyTensorStorage(4), "has 5 steps, this storage has room for 4"),
        (lambda: LazyTensorStorage(40, ndim=2), "has 1 dims of steps, this storage has 2"),
    ],
)
def test_storage_that_does_not_fit(saved: Path, make: Callable[[], Storage], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        ReplayBuffer(storage=make()).loads(saved)


def test_storage_with_another_layout(saved: Path) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(8))
    buffer.extend(torch.arange(3))
    with pytest.raises(ArgumentError, match="the keys differ from those of the storage"):
        buffer.loads(saved)
    assert buffer[:].tolist() == [0, 1, 2]


def test_lists_of_objects(tmp_path: Path) -> None:
    buffer = ReplayBuffer(storage=ListStorage(4))
    buffer.extend(["a", "b"])
    with pytest.raises(ArgumentError, match="the list cannot be saved: it has items of type"):
        buffer.dumps(tmp_path)


@pytest.mark.parametrize("source", STORAGES)
@pytest.mark.parametrize("target", STORAGES)
def test_a_storage_alone(source: MakeStorage, target: MakeStorage, tmp_path: Path) -> None:
    storage, other = source(6), target(6)
    for _ in range(2):
        storage.extend(rollout([4]))
        storage.dumps(tmp_path)
    other.loads(tmp_path)
    assert_same(ReplayBuffer(storage=other)[:], ReplayBuffer(storage=storage)[:])
    assert (other.cursor, other.write_count) == (2, 8)
    with pytest.raises(ArgumentError, match="room for 3"):
        target(3).loads(tmp_path)


def test_other_names_of_dumps_and_loads(tmp_path: Path) -> None:
    buffer, other = (ReplayBuffer(storage=LazyTensorStorage(6)) for _ in range(2))
    buffer.extend(rollout([4]))
    buffer.save(tmp_path / "buffer")
    other.load(tmp_path / "buffer")
    assert_same(other[:], buffer[:])
    buffer.storage.save(tmp_path / "storage")
    other.storage.load(tmp_path / "storage")
    assert_same(other[:], buffer[:])


@pytest.mark.parametrize("kind", STORAGES)
def test_stored_data_by_the_name_that_torchrl_gives_it(kind: MakeStorage) -> None:
    buffer = ReplayBuffer(storage=kind(6))
    buffer.extend(rollout([4]))
    storage: Any = buffer._storage
    stored = storage._storage
    assert_same(stored[:4] if not isinstance(stored, list) else torch.stack(stored), buffer[:])


def test_another_kind_of_storage_says_what_it_lacks(tmp_path: Path) -> None:
    class Plain(ListStorage):
        as_tensors = Storage.as_tensors
        load_saved = Storage.load_saved

    storage = Plain(3)
    with pytest.raises(ArgumentError, match=r"a Plain cannot be saved \(use a storage of tensors"):
        storage.dumps(tmp_path)
    ListStorage(3).dumps(tmp_path)
    with pytest.raises(ArgumentError, match="a Plain cannot be loaded"):
        storage.loads(tmp_path)
