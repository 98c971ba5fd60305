"""Files of a memory-mapped storage."""

from __future__ import annotations

import gc
import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tdx import LazyMemmapStorage, ReplayBuffer
from tdx.foundation.errors import StorageError
from tests.cli.processes import run_function
from tests.data.stored import rollout


def test_files_hold_the_data(tmp_path: Path) -> None:
    storage = LazyMemmapStorage(100, scratch_dir=tmp_path)
    buffer = ReplayBuffer(storage=storage)
    buffer.extend(torch.arange(10.0))
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size == 400
    assert torch.from_file(str(file), size=10).tolist() == list(range(10))


def test_temporary_files_go_with_the_storage() -> None:
    storage = LazyMemmapStorage(10)
    ReplayBuffer(storage=storage).extend(rollout([4]))
    folder = storage.scratch_dir
    assert folder is not None
    assert list(folder.iterdir())
    del storage
    gc.collect()
    assert not folder.exists()


def test_files_in_a_named_folder_are_not_removed(tmp_path: Path) -> None:
    ReplayBuffer(storage=LazyMemmapStorage(10, scratch_dir=tmp_path)).extend(rollout([4]))
    gc.collect()
    assert list(tmp_path.iterdir())


def test_files_in_a_named_folder_go_if_asked(tmp_path: Path) -> None:
    storage = LazyMemmapStorage(10, scratch_dir=tmp_path, auto_cleanup=True)
    ReplayBuffer(storage=storage).extend(rollout([4]))
    del storage
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_files_of_another_buffer(tmp_path: Path) -> None:
    first = ReplayBuffer(storage=LazyMemmapStorage(4, scratch_dir=tmp_path))
    first.extend(torch.arange(4))
    second = ReplayBuffer(storage=LazyMemmapStorage(4, scratch_dir=tmp_path))
    with pytest.raises(StorageError, match=r"000\.bin already exists \(it may belong to another"):
        second.extend(torch.zeros(4))
    assert first[:].tolist() == [0, 1, 2, 3]
    third = ReplayBuffer(storage=LazyMemmapStorage(4, scratch_dir=tmp_path, existsok=True))
    third.extend(torch.arange(4, 8))
    assert third[:].tolist() == [4, 5, 6, 7]


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    buffer = ReplayBuffer(storage=LazyMemmapStorage(4, scratch_dir=tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(
            StorageError, match=r"No space left on device \(choose a scratch_dir"
        ) as caught:
            buffer.extend(torch.arange(4))
    assert isinstance(caught.value, OSError)
    assert not list(tmp_path.iterdir())
    assert len(buffer) == 0
    buffer.extend(torch.arange(4))
    assert buffer[:].tolist() == [0, 1, 2, 3]


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="files cannot be limited here")
def test_disk_space_is_allocated_before_writing() -> None:
    """A limit of the system stands in for a disk that is full."""

    def store() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        buffer = ReplayBuffer(storage=LazyMemmapStorage(10_000))
        with pytest.raises(StorageError, match="cannot store the buffer in") as caught:
            buffer.extend(torch.zeros(10, 10))
        assert "File too large" in str(caught.value)

    done = run_function(store)
    assert done.code == 0, done.err


def test_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    buffer = ReplayBuffer(storage=LazyMemmapStorage(4, scratch_dir=tmp_path / "file" / "sub"))
    with pytest.raises(StorageError, match="cannot store the buffer in"):
        buffer.extend(torch.arange(4))
