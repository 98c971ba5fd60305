"""Crashes, failed flushes and power losses leave the old or the new state, and a true sentence."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from tdx import (
    ArgumentError,
    LazyTensorStorage,
    ReplayBuffer,
    StorageError,
    export_dump,
    open_dump,
)
from tdx.foundation.container import make_folders
from tdx.foundation.errors import OutputError
from tdx.foundation.files import atomic_folder, write_atomically
from tdx.rollouts import Goal, Manifest, repair, resume, roll_out, roll_out_shard, verify
from tdx.rollouts.dump.index import read_lines
from tdx.rollouts.formats.conversion import replace_atomically
from tests.programs import exhaustive
from tests.rollouts.recordings import (
    CHUNK,
    CutError,
    assert_same_dump,
    hash_tree,
    interrupt_after,
    record,
    request,
    run_and_kill_at,
    same,
)


def fail(descriptor: int) -> None:
    """Fail as a broken disk does."""
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def name_of(descriptor: int) -> str:
    """Return the path of an open file."""
    return os.readlink(f"/proc/self/fd/{descriptor}")


@pytest.fixture
def unflushed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Folders with a new folder in them that a power loss would take away."""
    pending: set[str] = set()
    mkdir, fsync = os.mkdir, os.fsync

    def noting(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        mkdir(path, mode, dir_fd=dir_fd)
        parent = name_of(dir_fd) if dir_fd is not None else os.path.dirname(os.path.abspath(path))
        # Folders of unfinished shards and exports are renamed, and flushed after that.
        if not os.path.basename(path).startswith(".") and not str(path).endswith(".part"):
            pending.add(parent)

    def flushing(descriptor: int) -> None:
        fsync(descriptor)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            pending.discard(name_of(descriptor))
        elif name_of(descriptor).endswith("chunks.jsonl"):
            assert not pending, "a chunk counts before its folders are on the disk"

    monkeypatch.setattr(os, "mkdir", noting)
    monkeypatch.setattr(os, "fsync", flushing)
    return pending


def save_buffer(folder: Path) -> None:
    """Save a small replay buffer."""
    buffer = ReplayBuffer(storage=LazyTensorStorage(8))
    buffer.extend(TensorDict({"observation": torch.arange(4.0)}, 4))
    buffer.dumps(folder)


def record_one_shard(folder: Path) -> None:
    """Record one shard in this process."""
    roll_out_shard(request(), folder, 2, 0)


@pytest.mark.parametrize("write", [record, save_buffer, record_one_shard])
def test_new_folders_are_flushed(
    tmp_path: Path, unflushed: set[str], write: Callable[[Path], object]
) -> None:
    write(tmp_path / "new" / "nested" / "target")
    assert not unflushed


def test_parents_of_an_export_are_flushed(tmp_path: Path, unflushed: set[str]) -> None:
    record(tmp_path / "dump")
    export_dump(tmp_path / "dump", tmp_path / "new" / "nested" / "dump.npz")
    assert not unflushed


def test_folder_that_cannot_be_flushed_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output"):
        make_folders(tmp_path / "new" / "nested")
    assert not list(tmp_path.iterdir())


@exhaustive
def test_line_whose_flush_failed_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "dump"
    record(whole)
    fsync, lines = os.fsync, iter(range(100))

    def fail_once(descriptor: int) -> None:
        if name_of(descriptor).endswith("chunks.jsonl") and next(lines) == 2:
            fail(descriptor)
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_once)
        with pytest.raises(OutputError, match=r"cannot write .*dump: input/output error"):
            roll_out(request(), folder)
    left = Manifest.load(folder)
    assert left.steps == 2 * CHUNK
    assert verify(folder).is_fine
    resume(folder)
    assert_same_dump(folder, whole)


@exhaustive
def test_shard_whose_flush_failed_is_recorded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, fsync = tmp_path / "dump", os.fsync
    folder.mkdir()

    def fail_for_shards(descriptor: int) -> None:
        if (folder / "shards" / "00000").exists() and name_of(descriptor).endswith("/shards"):
            fail(descriptor)
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_for_shards)
        with pytest.raises(OutputError, match="input/output error"):
            roll_out_shard(request(), folder, 2, 0)
    assert not (folder / "shards" / "00000").exists()
    assert roll_out_shard(request(), folder, 2, 0).recorded == 1


@pytest.fixture
def folder_flush_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Let the flush of ``tmp_path`` fail, and all others succeed."""
    fsync = os.fsync

    def fail_for_folder(descriptor: int) -> None:
        if name_of(descriptor) == str(tmp_path):
            fail(descriptor)
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_for_folder)
        yield


def test_unflushed_name_of_a_file_is_reported(tmp_path: Path, folder_flush_fails: None) -> None:
    with pytest.raises(OutputError, match="is written, but may be lost at a power failure"):
        write_atomically(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"


def test_replaced_folder_remains_until_the_new_one_is_flushed(
    tmp_path: Path, folder_flush_fails: None
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "old").touch()
    with pytest.raises(OutputError, match="may be lost"), atomic_folder(target) as part:
        (part / "new").touch()
    assert [path.name for path in target.iterdir()] == ["new"]
    # A power loss may undo the exchange of the names.
    assert [path.name for path in tmp_path.glob(".target.*.tmp/*")] == ["old"]


def interrupt(folder: Path) -> None:
    """Record some chunks, and interrupt the rollout."""
    with suppress(CutError):
        roll_out(request(), folder, on_chunk=interrupt_after(3))


@exhaustive
def test_lost_state_is_repaired_as_the_hint_says(tmp_path: Path) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "dump"
    record(whole)
    interrupt(folder)
    for path in (folder / "state").iterdir():
        path.unlink()
    with pytest.raises(StorageError, match="no such file") as caught:
        resume(folder)
    assert f"tdx verify {folder} --repair" in str(caught.value.hint)
    repair(folder)
    resume(folder)
    assert torch.equal(open_dump(folder).data["observation"], open_dump(whole).data["observation"])


@exhaustive
def test_no_temporary_file_survives_a_resumed_rollout(tmp_path: Path) -> None:
    calls = run_and_kill_at(None, lambda: record(tmp_path / "whole"))
    killed: list[bool] = []
    for moment in range(calls - 30, calls + 1, 3):
        folder = tmp_path / str(moment)
        ended = run_and_kill_at(moment, lambda folder=folder: record(folder))  # type: ignore[misc]
        # A rollout may make a few calls less than the whole one, and then ends before the last.
        killed.append(ended == -1)
        resume(folder)
        assert not list(folder.rglob(".*"))
        assert_same_dump(folder, tmp_path / "whole")
    assert any(killed)


def replace_folder(target: Path, source: Path, *, keeps: bool) -> None:
    """Replace a dump by a copy of another one, as ``--force`` does."""
    if keeps:
        target.rename(target.with_name("kept"))
        shutil.copytree(source, target)
        return
    with atomic_folder(target) as part:
        shutil.copytree(source, part, dirs_exist_ok=True)


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("read", [open_dump, verify])
def test_dump_that_is_replaced_while_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps: bool, read: Callable[[Path], Any]
) -> None:
    folder, other = tmp_path / "dump", tmp_path / "other"
    record(folder, goal=Goal(steps=30))
    record(other, goal=Goal(steps=60), seed=8)
    chosen = folder if keeps else other
    wanted = read(chosen)
    data = open_dump(chosen).data.clone()
    times = iter(range(100))

    def replacing(*arguments: Any) -> Iterator[Any]:
        yield from read_lines(*arguments)
        if next(times) == 0:
            replace_folder(folder, other, keeps=keeps)

    monkeypatch.setattr("tdx.rollouts.dump.manifest.read_lines", replacing)
    result = read(folder)
    if read is open_dump:
        assert result.manifest.to_dict() == wanted.manifest.to_dict()
        assert same(result.data, data)
    else:
        assert result.is_fine
        assert result.chunks == wanted.chunks


@pytest.mark.parametrize("keeps", [True, False])
@exhaustive
def test_sharded_dump_that_is_replaced_while_it_is_open(tmp_path: Path, keeps: bool) -> None:
    folder, other = tmp_path / "dump", tmp_path / "other"
    for path, seed in ((folder, 3), (other, 8)):
        for shard in range(2):
            roll_out_shard(request(seed=seed), path, 2, shard)
    wanted = open_dump(folder).data[:]
    dump = open_dump(folder)
    replace_folder(folder, other, keeps=keeps)
    if keeps:
        assert same(dump.data[:], wanted)
    else:
        with pytest.raises(StorageError, match="was replaced while it was read"):
            dump.data[:]
    assert open_dump(folder).manifest.seed == 8


@pytest.mark.parametrize("name", ["dump.h5", "dump-v0"])
@exhaustive
def test_hdf5_survives_a_failing_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    record(tmp_path / "dump", goal=Goal(steps=30), bare=True)
    target = tmp_path / "export" / name
    to = "minari" if name.endswith("-v0") else "hdf5"
    export_dump(tmp_path / "dump", target, to=to)
    before = hash_tree(target.parent)
    pwrite, failing, calls = os.pwrite, 0, 0

    def counting(descriptor: int, data: Any, offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls == failing:
            fail(descriptor)
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", counting)
    export_dump(tmp_path / "dump", target, to=to, force=True)
    total = calls
    assert total > 5
    assert hash_tree(target.parent) == before
    for number in range(1, total + 1):
        failing, calls = number, 0
        with pytest.raises(OutputError, match=rf"cannot write .*{name}: input/output error"):
            export_dump(tmp_path / "dump", target, to=to, force=True)
        assert hash_tree(target.parent) == before


def test_error_number_in_the_text_of_a_library_is_understood(tmp_path: Path) -> None:
    with (
        pytest.raises(OutputError, match=r"cannot write .*: input/output error"),
        replace_atomically(tmp_path / "dump.rrd", folder=False),
    ):
        raise RuntimeError("Failed to encode: Failed to write: (os error 5)")


@pytest.mark.parametrize("other", ["actions.json", "other.npy"])
def test_manifest_follows_the_policy_that_a_resumed_rollout_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    np.save(tmp_path / "actions.npy", np.ones((40, 1), np.float32))
    np.save(tmp_path / "other.npy", np.zeros((40, 1), np.float32))
    (tmp_path / "actions.json").write_text(json.dumps([[0.0]] * 40))
    options: dict[str, Any] = {"bare": True, "goal": Goal(steps=40)}
    policy = f"sequence:{tmp_path / 'actions.npy'}"
    with monkeypatch.context() as patched:
        patched.setattr(Manifest, "save_header", lambda *arguments: fail(0))
        with pytest.raises(OutputError):
            record(tmp_path / "dump", "Pendulum-v1", policy=policy, **options)
    assert {path.name for path in (tmp_path / "dump").iterdir()} == {"chunks.jsonl", "policy.npy"}
    # What it leaves is no dump, and another policy replaces it.
    record(tmp_path / "dump", "Pendulum-v1", policy=f"sequence:{tmp_path / other}", **options)
    assert verify(tmp_path / "dump").is_fine


def test_file_that_is_named_like_a_copy_of_a_policy_is_kept(tmp_path: Path) -> None:
    (tmp_path / "policy.npy").write_bytes(b"mine")
    with pytest.raises(ArgumentError, match="is not a dump"):
        record(tmp_path, "Pendulum-v1", bare=True)
