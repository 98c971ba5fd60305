"""The model of a disk loses what a careless program did not sync, and nothing else."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from tests.robustness.interposer import Call
from tests.robustness.power_loss import LOSSES, Disk

_NEW, _OLD = b"n" * 10_000, b"o" * 10_000


def _call(kind: str, path: Path, *, result: int = 0, inode: int = 1, **rest: object) -> Call:
    values = {"flags": 0, "offset": 0, "other": "", "data": b""} | rest
    return Call(kind=kind, number=1, path=str(path), result=result, inode=inode, **values)  # type: ignore[arg-type]


def _replacement(folder: Path, *, sync: int | None, sync_folder: bool) -> list[Call]:
    """Return the calls that replace a file."""
    calls = [
        _call("o", folder / "part", result=1),
        _call("w", folder / "part", result=len(_NEW), data=_NEW),
    ]
    if sync is not None:
        calls.append(_call("s", folder / "part", result=sync))
    calls.append(_call("n", folder / "part", other=str(folder / "file")))
    if sync_folder:
        calls.append(_call("s", folder, inode=folder.stat().st_ino))
    return calls


def _results(folder: Path, calls: Sequence[Call]) -> set[bytes | None]:
    """Return what the file can have after a power loss."""
    (folder / "file").write_bytes(_OLD)
    disk = Disk(folder)
    for call in calls:
        disk.replay(call)
    return {
        disk.remains(loss, Random(seed)).get("file", b"missing")
        for loss in LOSSES
        for seed in range(20)
    }


def test_file_that_is_synced_before_its_name_is_old_or_new(tmp_path: Path) -> None:
    calls = _replacement(tmp_path, sync=0, sync_folder=False)
    assert _results(tmp_path, calls) == {_OLD, _NEW}


def test_file_whose_folder_is_synced_too_is_new(tmp_path: Path) -> None:
    assert _results(tmp_path, _replacement(tmp_path, sync=0, sync_folder=True)) == {_NEW}


@pytest.mark.parametrize("sync", [None, -errno.EIO])
def test_file_that_is_not_synced_is_torn(sync: int | None, tmp_path: Path) -> None:
    results = _results(tmp_path, _replacement(tmp_path, sync=sync, sync_folder=True))
    assert {b"", bytes(10_000), _NEW} <= results
    assert any(result and {0, ord("n")} == set(result) for result in results)


def test_sync_after_a_failed_one_does_not_bring_the_bytes_back(tmp_path: Path) -> None:
    calls = _replacement(tmp_path, sync=-errno.EIO, sync_folder=True)
    again = _call("s", tmp_path / "file")
    assert b"" in _results(tmp_path, [*calls, again])


def test_file_that_moves_between_folders_is_never_lost(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "file").write_bytes(_OLD)
    disk = Disk(tmp_path)
    inner = tmp_path / "inner"
    disk.replay(_call("n", tmp_path / "file", other=str(inner / "file")))
    disk.replay(_call("s", tmp_path, inode=tmp_path.stat().st_ino))
    for seed in range(50):
        tree = disk.remains(LOSSES[-1], Random(seed))
        assert _OLD in (tree.get("file"), tree.get("inner/file"))
