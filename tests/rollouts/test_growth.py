"""Growing dumps: commits have a constant cost and do not disturb readers."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tensordict import TensorDictBase

from tdx import EnvError, Pipeline, build_env, open_dump, write_pipeline
from tdx.rollouts import Goal, Manifest, Progress, resume, roll_out, verify
from tdx.rollouts.dump.episodes import EpisodeKeys
from tdx.rollouts.dump.index import Chunk, ChunkList
from tdx.rollouts.dump.writing import create_dump
from tests.cli.processes import start_function
from tests.programs import exhaustive
from tests.rollouts.recordings import (
    CutError,
    assert_same_dump,
    interrupt_after,
    record,
    request,
    run_and_kill_at,
)

HERE = "tests.rollouts.recordings"


@exhaustive
def test_commits_only_append_to_the_index(tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    headers, indexes = set(), [b""]

    def on_chunk(progress: Progress) -> None:
        headers.add((folder / "manifest.json").read_bytes())
        index = (folder / "chunks.jsonl").read_bytes()
        assert index.startswith(indexes[-1])
        assert index.count(b"\n") == len(indexes)
        indexes.append(index)

    roll_out(request("CartPole-v1", num_envs=2, raw=True), folder, on_chunk=on_chunk)
    assert len(indexes) == 7
    assert len(headers) == 1
    sizes = [len(after) - len(before) for before, after in pairwise(indexes)]
    assert max(sizes[1:]) < 1500, "the size of a line depends on its chunk"
    header = (folder / "manifest.json").read_bytes()
    assert header not in headers
    assert len(header) < 8000


def written_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of the sizes of all positioned writes."""
    counts: list[int] = []
    pwrite = os.pwrite

    def counted(descriptor: int, data: Any, offset: int) -> int:
        counts.append(len(data))
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", counted)
    return counts


@exhaustive
def test_late_commit_writes_as_much_as_an_early_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline.of("tdx/CartPole", "StepCounter(max_steps=4)")
    env = build_env(pipeline)
    chunk: TensorDictBase = env.rollout(20, break_when_any_done=False)
    manifest = Manifest(
        pipeline=write_pipeline(pipeline),
        seed=0,
        policy="random",
        policy_sha256=None,
        goal=Goal(steps=20 * 400),
        chunk_steps=20,
        keys=None,
        batch_size=(),
        flags=EpisodeKeys.of(env),
    )
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    counts = written_bytes(monkeypatch)
    per_chunk = []
    with create_dump(tmp_path / "dump", manifest) as writer:
        for _ in range(400):
            counts.clear()
            writer.append(chunk, None, None)
            per_chunk.append(sum(counts))
        writer.finish()
    assert len(manifest.episodes) >= 400 * 5
    assert max(per_chunk[1:]) - min(per_chunk[1:]) < 50, "only the numbers of digits differ"
    assert verify(tmp_path / "dump").is_fine
    assert Manifest.load(tmp_path / "dump") == manifest


def test_chunks_take_little_memory() -> None:
    chunks = ChunkList()
    files = [f"data/entry_{number}.memmap" for number in range(12)]
    for number in range(1000):
        chunks.append(Chunk(40, 0, dict.fromkeys(files, f"{number:08x}")))
    held = [chunks._counts, chunks._partial, chunks._sums]
    assert sum(each.itemsize * len(each) for each in held) < 120 * 1000
    assert chunks.steps == 40_000
    assert chunks[7].crc32[files[3]] == "00000007"
    assert chunks[-1] == Chunk(40, 0, dict.fromkeys(files, "000003e7"))
    assert [chunk.steps for chunk in chunks[:3]] == [40, 40, 40]


def test_chunks_may_have_different_files() -> None:
    chunks = [Chunk(2, 0, {"a": "00000001"}), Chunk(2, 1, {"a": "ffffffff", "b": "00000002"}, True)]
    assert ChunkList(chunks) == chunks
    assert ChunkList(chunks).raw_steps == 1


@pytest.fixture
def partial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Record a dump with a partial last chunk; its env works again afterwards."""
    broken = tmp_path / "broken"
    broken.touch()
    monkeypatch.setenv("TDX_TEST_BREAK", str(broken))
    options: dict[str, Any] = {"allow_code": True, "goal": Goal(steps=80)}
    with pytest.raises(EnvError, match="the belt slipped"):
        record(tmp_path / "dump", f"{HERE}:Fragile", "RewardSum", **options)
    broken.unlink()
    record(tmp_path / "whole", f"{HERE}:Fragile", "RewardSum", **options)
    return tmp_path / "dump"


def test_reader_can_read_while_a_chunk_is_repeated_with_fewer_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, folder = tmp_path / "broken", tmp_path / "dump"
    broken.touch()
    monkeypatch.setenv("TDX_TEST_BREAK", str(broken))
    with pytest.raises(EnvError, match="the belt slipped"):
        record(folder, f"{HERE}:Wide", "RewardSum", allow_code=True)
    assert open_dump(folder).data.shape == (49,)
    (mapped, has_mapped), (waiting, may_read) = os.pipe(), os.pipe()

    def read_later() -> None:
        data = open_dump(folder).data
        os.write(has_mapped, b"m")
        os.read(waiting, 1)
        for leaf in data.values(True, True):
            leaf.double().sum()

    reader = start_function(read_later, {})
    assert os.read(mapped, 1) == b"m"
    monkeypatch.setenv("TDX_TEST_BREAK_AT", "40")
    with pytest.raises(EnvError, match="the belt slipped"):
        resume(folder, allow_code=True)
    assert open_dump(folder).data.shape == (39,)
    assert verify(folder).is_fine
    os.write(may_read, b"r")
    assert os.waitstatus_to_exitcode(os.waitpid(reader, 0)[1]) == 0
    for end in (mapped, has_mapped, waiting, may_read):
        os.close(end)


@exhaustive
def test_files_never_shrink_while_a_chunk_is_repeated(
    partial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = {file: file.stat().st_size for file in (partial / "data").rglob("*.memmap")}
    pwrite = os.pwrite
    shrunk: list[str] = []

    def watched(descriptor: int, data: Any, offset: int) -> int:
        shrunk.extend(str(f) for f, size in lengths.items() if f.stat().st_size < size)
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", watched)
    resume(partial, allow_code=True)
    assert shrunk == []
    assert_same_dump(partial, partial.with_name("whole"))
    assert verify(partial).is_fine


@exhaustive
def test_partial_chunk_counts_until_its_repetition_is_complete(
    partial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Manifest.load(partial)
    assert before.steps == 49
    assert before.chunks[-1].partial

    def failing(*arguments: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("tdx.rollouts.dump.writing.append_entry", failing)
        with pytest.raises(KeyboardInterrupt):
            resume(partial, allow_code=True)
    assert Manifest.load(partial) == before
    assert verify(partial).is_fine
    assert open_dump(partial).data.shape == (49,)
    resume(partial, allow_code=True)
    assert_same_dump(partial, partial.with_name("whole"))


def test_stale_states_are_removed_on_resume(tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    with pytest.raises(CutError):
        roll_out(request("Pendulum-v1", "RewardSum"), folder, on_chunk=interrupt_after(3))
    stale = folder / "state" / "000000000025.state"
    stale.write_bytes(b"of a chunk before")
    unfinished = folder / "state" / ".000000000100.state.0123456789abcdef.tmp"
    unfinished.write_bytes(b"truncated")
    (folder / ".manifest.json.0123456789abcdef.tmp").write_bytes(b"truncated")
    assert len(list((folder / "state").iterdir())) == 3
    seen: list[list[str]] = []

    def on_chunk(progress: Progress) -> None:
        seen.append([each.name for each in (folder / "state").iterdir()])

    resume(folder, on_chunk=on_chunk)
    assert seen[0] == ["000000000100.state"]
    assert sorted(each.name for each in folder.iterdir()) == [
        *("chunks.jsonl", "data", "manifest.json"),
    ]


def test_leftover_states_in_a_complete_dump_are_removed(tmp_path: Path) -> None:
    record(tmp_path / "dump", "Pendulum-v1", "RewardSum")
    (tmp_path / "dump" / "state").mkdir()
    (tmp_path / "dump" / "state" / "000000000125.state").write_bytes(b"left")
    before = Manifest.load(tmp_path / "dump")
    assert resume(tmp_path / "dump") == before
    assert not (tmp_path / "dump" / "state").exists()


def test_missing_data_file_is_not_recreated(tmp_path: Path) -> None:
    with pytest.raises(CutError):
        roll_out(request("Pendulum-v1", "RewardSum"), tmp_path / "d", on_chunk=interrupt_after(2))
    (tmp_path / "d" / "data" / "action.memmap").unlink()
    with pytest.raises(OSError, match=r"action.memmap is missing"):
        resume(tmp_path / "d")
    assert not (tmp_path / "d" / "data" / "action.memmap").exists()


@pytest.mark.parametrize("moment", range(1, 25, 3))
def test_killed_replacement_leaves_the_old_or_the_new_dump(tmp_path: Path, moment: int) -> None:
    folder = tmp_path / "dump"
    old = record(folder, "Pendulum-v1", "RewardSum")
    run_and_kill_at(
        moment, lambda: roll_out(request("Pendulum-v1", "StepCounter"), folder, force=True)
    )
    left = Manifest.load(folder)
    assert verify(folder).is_fine
    assert left == old or "StepCounter" in left.pipeline
