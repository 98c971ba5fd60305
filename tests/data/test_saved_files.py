"""The files of a saved buffer: replaced safely, and never trusted."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tdx import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
from tdx.foundation.container import seal
from tdx.foundation.errors import StorageError
from tests.cli.processes import run_function
from tests.data.stored import rollout
from tests.programs import exhaustive
from tests.transforms.fixed_rollouts import assert_same


def filled(first: int, steps: int = 5) -> ReplayBuffer:
    buffer = ReplayBuffer(storage=LazyTensorStorage(8), sampler=SamplerWithoutReplacement())
    buffer.extend(rollout([steps], first=first))
    buffer.sample(2)
    return buffer


def loaded(folder: Path) -> ReplayBuffer:
    buffer = ReplayBuffer(storage=LazyTensorStorage(8), sampler=SamplerWithoutReplacement())
    buffer.loads(folder)
    return buffer


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    filled(1).dumps(tmp_path / "saved")
    return tmp_path / "saved"


def rewrite(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the manifest as a stranger would, with a checksum that matches."""
    file = folder / "buffer.json"
    document = json.loads(file.read_text())
    change(document)
    del document["check"]
    file.write_bytes(seal(document, indent=1)[0])


# Replacing an older save


def die_at(point: int) -> None:
    """Kill this process at an operation on a file."""
    seen = 0

    def hook(name: str, arguments: object) -> None:
        nonlocal seen
        if name in ("open", "os.rename", "os.remove", "os.mkdir", "os.listdir"):
            seen += 1
            if seen == point:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def short(number: int) -> ReplayBuffer:
    buffer = ReplayBuffer(storage=LazyTensorStorage(8), sampler=SamplerWithoutReplacement())
    buffer.extend(torch.full((2 * number,), number))
    buffer.sample(1)
    return buffer


@exhaustive
def test_old_or_new_after_a_kill_at_any_file_operation(tmp_path: Path) -> None:
    """Kill the process at each operation on a file in turn, and load what is left."""
    folder = tmp_path / "saved"
    short(1).dumps(folder)
    (folder / "notes.txt").write_text("keep")
    buffer = short(2)
    kept: list[list[int]] = []
    while True:
        point = len(kept) + 1
        done = run_function(lambda: buffer.dumps(folder), before=lambda: die_at(point))  # noqa: B023
        if done.code == 0:
            break
        assert done.code == -signal.SIGKILL, done.err
        kept.append(loaded(folder)[:].tolist())
    assert all(steps in ([1, 1], [2, 2, 2, 2]) for steps in kept)
    assert kept[0] != kept[-1]
    short(1).dumps(folder)
    # One save, without what the killed ones left: three arrays, the manifest and the notes.
    assert len(list(folder.iterdir())) == 5
    assert (folder / "notes.txt").read_text() == "keep"


def test_a_failed_save_leaves_the_old_one(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    names = sorted(each.name for each in saved.iterdir())
    monkeypatch.setattr("os.replace", full)
    with pytest.raises(StorageError, match="no space left"):
        filled(2).dumps(saved)
    assert_same(loaded(saved)[:], filled(1)[:])
    assert sorted(each.name for each in saved.iterdir()) == names


def test_other_files_survive(tmp_path: Path) -> None:
    for name in ("000.bin", "notes.txt", "001-mine.bin"):
        (tmp_path / name).write_text("mine")
    (tmp_path / "folder").mkdir()
    for first in (1, 2):
        filled(first).dumps(tmp_path)
    assert {each.name for each in tmp_path.iterdir() if "-" not in each.name} == {
        "000.bin",
        "notes.txt",
        "folder",
        "buffer.json",
    }
    assert all((tmp_path / name).read_text() == "mine" for name in ("000.bin", "001-mine.bin"))


def test_mapped_files_of_an_old_save_are_readable(saved: Path) -> None:
    from tdx.data.saved import load

    before = load(saved)
    rewards = before.leaves["next", "reward"].clone()
    filled(2, steps=1).dumps(saved)
    assert torch.equal(before.leaves["next", "reward"], rewards)
    assert before.rows == 5


def test_a_save_of_the_first_release_is_read(saved: Path) -> None:
    document = json.loads((saved / "buffer.json").read_text())
    for number, array in enumerate([*document["leaves"], document.pop("begins")]):
        (saved / array.pop("file")).rename(saved / f"{number:03}.bin")
        array.pop("crc32")
        array["shape"] = array["shape"][1:]
    (left,) = saved.glob("*-*.bin")
    steps = torch.frombuffer(bytearray(left.read_bytes()), dtype=torch.int64).tolist()
    document["sampler"]["left"] = steps
    left.unlink()
    del document["sampler_arrays"], document["check"]
    (saved / "buffer.json").write_text(json.dumps(document | {"version": 1}))
    assert_same(loaded(saved)[:], filled(1)[:])
    filled(2).dumps(saved)
    assert not list(saved.glob("???.bin"))


# A folder from a stranger


@exhaustive
def test_each_flipped_byte_of_the_manifest_is_detected(saved: Path) -> None:
    file = saved / "buffer.json"
    text = file.read_bytes()
    for at in range(0, len(text), 7):
        file.write_bytes(text[:at] + bytes([text[at] ^ (1 << at % 7)]) + text[at + 1 :])
        with pytest.raises(StorageError):
            loaded(saved)


def leaf(**entries: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda document: document["leaves"][0].update(entries)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(rows=-1),
        lambda d: d.update(rows=True),
        lambda d: d.update(rows=10**12, max_rows=10**13),
        lambda d: d.update(cursor=10**30),
        lambda d: d.update(batch=[10**10]),
        lambda d: d.update(batch=[0]),
        lambda d: d.update(batch="[]"),
        lambda d: d.update(version=7),
        lambda d: d.update(format=None),
        lambda d: d.update(leaves={}),
        lambda d: d.update(groups=[]),
        lambda d: d.update(names=[3]),
        lambda d: d.update(names=["time"] * 9),
        lambda d: d.update(sampler=3),
        lambda d: d.update(sampler={"size": 10**30}),
        lambda d: d.update(sampler={"size": 2, "left": [5]}, sampler_arrays={}),
        lambda d: d["leaves"].append(d["leaves"][0]),
        lambda d: d["groups"][0].update(batch=[10**10]),
        leaf(shape=[5, 10**14]),
        leaf(shape=[-1]),
        leaf(shape=[5, 0, 2**62, 2**62]),
        leaf(dtype="code"),
        leaf(key="observation"),
        leaf(key=[]),
        leaf(key=["a"] * 10_000),
        leaf(file="/etc/passwd"),
        leaf(file="../000-0123456789abcdef.bin"),
        leaf(file=3),
    ],
)
def test_manifests_that_contradict_the_files(saved: Path, change: Callable[..., Any]) -> None:
    rewrite(saved, change)
    buffer = filled(3)
    before = buffer[:]
    with pytest.raises(StorageError) as refused:
        buffer.loads(saved)
    assert refused.value.hint
    assert_same(buffer[:], before)


def test_links_are_refused(saved: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    (data,) = saved.glob("001-*.bin")
    data.rename(secret)
    data.symlink_to(secret)
    with pytest.raises(StorageError, match="is a symbolic link"):
        loaded(saved)
    manifest = saved / "buffer.json"
    manifest.rename(tmp_path / "manifest")
    manifest.symlink_to(tmp_path / "manifest")
    text = (tmp_path / "manifest").read_bytes()
    with pytest.raises(StorageError, match="is a symbolic link"):
        loaded(saved)
    with pytest.raises(StorageError, match="is a symbolic link"):
        filled(2).dumps(saved)
    assert (tmp_path / "manifest").read_bytes() == text


def test_pipe_instead_of_a_file_does_not_hang(saved: Path) -> None:
    (data,) = saved.glob("001-*.bin")
    data.unlink()
    os.mkfifo(data)
    with pytest.raises(StorageError, match="not a regular file"):
        loaded(saved)
