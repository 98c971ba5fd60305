"""Dumps at URLs: upload, download and verification of shards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tdx import ArgumentError, StorageError, export_dump, open_dump
from tdx.cli.process import run
from tdx.engines import ENGINES
from tdx.foundation.errors import MissingPackageError, TdxError, WorkerError
from tdx.rollouts import Goal, fetch_dump, roll_out, roll_out_shard, roll_out_to_url
from tdx.rollouts.dump import remote as remote_files
from tdx.rollouts.dump.progress import ignore_progress
from tdx.rollouts.dump.remote import RemoteDump
from tdx.rollouts.recording.remote_shards import RemoteShardJob
from tests.programs import exhaustive
from tests.rollouts.recordings import hash_tree, request, same

SHARDS = 3


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of an empty cache."""
    monkeypatch.setenv("TDX_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dumps"


class InlineEngine:
    """Engine that runs tasks in this process."""

    slots: int | None = 1

    def __init__(self, job: Any, workers: int | None) -> None:
        self._job = job
        self._done: list[tuple[int, TdxError | None]] = []

    def submit(self, tasks: Sequence[int]) -> None:
        self._done += [(task, self._job(task)) for task in tasks]

    def collect(self, seconds: float) -> list[tuple[int, TdxError | None]]:
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        assert not self._done


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of an empty folder in the memory of this process."""
    monkeypatch.setitem(ENGINES, "local", InlineEngine)
    files = fsspec.filesystem("memory")
    files.store.clear()
    files.pseudo_dirs[:] = [""]
    return "memory://bucket/dump"


def wanted(**options: Any) -> Any:
    return request(goal=Goal(steps=SHARDS * 20), **options)


def record(url: str, **options: Any) -> Any:
    """Record the shards at a URL and return the result."""
    with roll_out_to_url(wanted(**options), url, SHARDS) as (result, _):
        return result


@exhaustive
def test_uploaded_shards_equal_local_ones(url: str, tmp_path: Path) -> None:
    result = record(url)
    assert (result.path, result.committed, result.recorded) == (url, SHARDS, SHARDS)
    for shard in range(SHARDS):
        roll_out_shard(wanted(), tmp_path / "local", SHARDS, shard, ignore_progress)
    RemoteDump(url).download(RemoteDump(url).list_files(), tmp_path / "copy")
    assert hash_tree(tmp_path / "copy") == hash_tree(tmp_path / "local")
    assert same(open_dump(url).data[...], open_dump(tmp_path / "local").data[...])


def test_command_line_records_and_reads_a_url(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = (tmp_path / "store" / "dump").as_uri()
    rollout = ("rollout", "CartPole-v1", "--steps", "40", "--seed", "0", "--out", url)
    assert run((*rollout, "--shards", "2", "--workers", "1")) == 0
    assert run(("show", url)) == 0
    assert run(("verify", url)) == 0
    assert "shards    2" in capsys.readouterr().out
    for arguments, message in (
        (rollout, "needs shards"),
        ((*rollout, "--shards", "2", "--shard", "0"), "--shard and a URL"),
        ((*rollout, "--shards", "2", "--force"), "--force and a URL"),
        (("rollout", "--resume", "--out", url), "--resume and a URL"),
        (("verify", url, "--repair"), "cannot be repaired in place"),
        (("export", url, "--to", "npz"), "needs a target"),
    ):
        assert run(arguments) == 2
        assert message in capsys.readouterr().err


@exhaustive
def test_rerun_records_only_missing_shards(url: str) -> None:
    record(url)
    files = fsspec.filesystem("memory")
    # An interrupted upload has no manifest.
    files.rm("/bucket/dump/shards/00001/manifest.json")
    assert "shards/00001/chunks.jsonl" not in RemoteDump(url).list_files()
    with pytest.raises(StorageError, match="shards/00001 is missing"):
        open_dump(url)
    assert (again := record(url)).recorded == 1
    assert again.is_complete
    with pytest.raises(ArgumentError, match="have another seed"):
        record(url, seed=99)


@exhaustive
def test_copy_is_reused_until_the_dump_changes(url: str, cache: Path) -> None:
    record(url)
    folder = fetch_dump(url)
    assert folder.parent == cache
    inode = folder.stat().st_ino
    assert fetch_dump(url).stat().st_ino == inode
    fsspec.filesystem("memory").rm("/bucket/dump", recursive=True)
    record(url, seed=4)
    assert fetch_dump(url).stat().st_ino != inode
    assert open_dump(url).manifest.seed == 4


def test_dump_without_shards_is_read(tmp_path: Path) -> None:
    roll_out(request(goal=Goal(steps=30)), tmp_path / "dump")
    url = (tmp_path / "dump").as_uri()
    assert len(open_dump(url)) == 30
    export_dump(url, tmp_path / "out.npz")
    assert (tmp_path / "out.npz").is_file()


@exhaustive
def test_changed_byte_is_detected(url: str, cache: Path) -> None:
    record(url)
    files = fsspec.filesystem("memory")
    path = "/bucket/dump/shards/00002/data/action.memmap"
    files.pipe(path, bytes([7]) + files.cat(path)[1:])
    with pytest.raises(StorageError, match=r"is damaged: .*action"):
        open_dump(url)
    assert not any(cache.iterdir())


@exhaustive
def test_names_outside_the_folder_are_refused(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(url)
    remote = RemoteDump(url)
    listed = {"/bucket/dump/../../evil": {"size": 1}}
    monkeypatch.setattr(remote._files, "find", lambda *_, **__: listed)
    with pytest.raises(StorageError, match="a file outside of its folder"):
        remote.list_files()
    with pytest.raises(StorageError, match="evil"):
        remote.download({"../evil": 1}, tmp_path / "copy")
    assert not (tmp_path / "evil").exists()
    monkeypatch.setattr(remote_files, "_MAX_FILES", 0)
    with pytest.raises(StorageError, match="has 1 files"):
        remote.list_files()


@exhaustive
def test_size_that_differs_from_the_listing_is_refused(url: str, tmp_path: Path) -> None:
    record(url)
    for number, size in enumerate((5, 10**12)):
        with pytest.raises(StorageError, match="does not have the"):
            RemoteDump(url).download({"manifest.json": size}, tmp_path / str(number))


@pytest.mark.parametrize(
    ("url", "kind", "message"),
    [
        ("nosuch://bucket/dump", ArgumentError, "cannot be opened: Protocol not known: nosuch"),
        ("simplecache::memory://dump", ArgumentError, "is a chain of file systems"),
        ("memory://bucket/none", StorageError, r"is not a dump: it has no manifest\.json"),
    ],
)
def test_invalid_urls_are_refused(url: str, kind: type[TdxError], message: str) -> None:
    with pytest.raises(kind, match=message) as refused:
        open_dump(url)
    assert refused.value.hint


def test_path_is_not_read_as_a_url(url: str) -> None:
    record(url)
    with pytest.raises(TdxError, match="memory:/bucket/dump"):
        roll_out(wanted(policy=f"sequence:{url}"), Path(url))
    with pytest.raises(StorageError, match="memory:/bucket/dump"):
        open_dump(Path(url))


def test_missing_package_of_a_protocol_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(url: str) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("fsspec.core.url_to_fs", fail)
    with pytest.raises(MissingPackageError, match="Install s3fs"):
        open_dump("s3://bucket/dump")


@exhaustive
def test_upload_is_retried_after_a_network_error(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    upload, failures = RemoteDump.upload, [True]

    def fail_once(self: RemoteDump, folder: Path, names: Sequence[str]) -> None:
        if len(names) > 2 and failures:
            failures.pop()
            raise StorageError("cannot upload: connection reset", hint="try again")
        upload(self, folder, names)

    monkeypatch.setattr(RemoteDump, "upload", fail_once)
    result = record(url)
    assert (result.committed, result.failures, failures) == (SHARDS, (), [])
    failures.append(True)
    assert isinstance(RemoteShardJob(url)(0), WorkerError)


def test_folder_with_other_files_is_refused(url: str) -> None:
    fsspec.filesystem("memory").pipe("/bucket/dump/notes.txt", b"text")
    with pytest.raises(StorageError, match="has files and is not a dump"):
        record(url)
