"""``verify --repair`` truncates a damaged dump after its last intact chunk."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdx import StorageError, open_dump
from tdx.rollouts import (
    Goal,
    Manifest,
    repair,
    resume,
    resume_shards,
    roll_out,
    roll_out_shard,
    verify,
)
from tests.cli.conftest import Tdx, tdx
from tests.programs import examples, exhaustive
from tests.rollouts.recordings import (
    CutError,
    hash_tree,
    in_memory,
    interrupt_after,
    record,
    request,
    same,
)

__all__ = ["tdx"]

CHUNKS, CHUNK_STEPS = 5, 8
STEPS = CHUNKS * CHUNK_STEPS


@pytest.fixture(scope="module")
def whole() -> Iterator[Path]:
    """Record a complete dump of five chunks."""
    with in_memory() as folder:
        goal, keys = Goal(steps=STEPS), ("observation", "reward", "done", "terminated", "action")
        options = {"goal": goal, "chunk_steps": CHUNK_STEPS, "keys": keys, "num_envs": 2}
        record(Path(folder) / "dump", "tdx/CartPole", "StepCounter(max_steps=5)", **options)
        yield Path(folder) / "dump"


@pytest.fixture
def damaged(whole: Path) -> Iterator[Path]:
    """Yield a copy of the complete dump, to be damaged."""
    with in_memory() as folder:
        yield shutil.copytree(whole, Path(folder) / "dump")


def flip(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def assert_prefix(folder: Path, whole: Path, steps: int) -> None:
    """Check that a dump is valid and has the first steps of another one, bit for bit."""
    assert verify(folder).problems == ()
    found, wanted = open_dump(folder), open_dump(whole)
    assert found.manifest.steps == steps
    assert same(found.data, wanted.data[..., :steps])


def has_intact_chunk(whole: Path, name: str, place: int, how: str) -> bool:
    """Return True if damage at ``place`` does not affect the first chunk."""
    if how == "append" or name.endswith(".json"):
        return True
    content = (whole / name).read_bytes()
    first = content.index(b"\n") + 1 if name == "chunks.jsonl" else len(content) // CHUNKS
    return how != "remove" and place >= first


FILES = ("chunks.jsonl", "data/action.memmap", "data/next/reward.memmap", "data/next/meta.json")


@settings(max_examples=examples(30))
@given(
    name=st.sampled_from(FILES),
    share=st.floats(0, 1, exclude_max=True),
    how=st.sampled_from(["flip", "truncate", "remove", "append"]),
)
def test_any_damage_leaves_a_valid_prefix(whole: Path, name: str, share: float, how: str) -> None:
    with in_memory() as parent:
        folder = shutil.copytree(whole, Path(parent) / "dump")
        file = folder / name
        place = int(file.stat().st_size * share)
        if how == "flip":
            flip(file, place)
        elif how == "truncate":
            file.write_bytes(file.read_bytes()[:place])
        elif how == "append":
            file.write_bytes(file.read_bytes() + b"\n")
        else:
            file.unlink()
        before = hash_tree(folder)
        if not has_intact_chunk(whole, name, place, how):
            with pytest.raises(StorageError, match="has no intact chunk"):
                repair(folder)
            assert hash_tree(folder) == before
            return
        result = repair(folder)
        assert_prefix(folder, whole, result.steps)
        assert result.steps == result.chunks * CHUNK_STEPS
        assert result.steps + result.lost_steps == STEPS
        assert result.chunks + result.lost_chunks == CHUNKS
        assert Manifest.load(folder).complete == (result.lost_chunks == 0)
        again = repair(folder)
        assert again.is_unchanged
        assert again.verification.is_fine


def test_repaired_dump_is_resumed_to_the_same_rollout(whole: Path, damaged: Path) -> None:
    flip(damaged / "data" / "next" / "observation.memmap", -1)
    result = repair(damaged)
    episodes = len(open_dump(whole).manifest.episodes)
    assert (result.chunks, result.lost_chunks, result.lost_steps) == (4, 1, CHUNK_STEPS)
    assert result.episodes + result.lost_episodes == episodes
    assert result.set_aside == ("damaged/1-chunks.jsonl", "damaged/1-manifest.json")
    resume(damaged)
    assert_prefix(damaged, whole, STEPS)
    assert Manifest.load(damaged).complete
    # Overwriting the dump removes the files that were set aside.
    record(damaged.parent / "other", "tdx/CartPole", goal=Goal(steps=4))
    roll_out(request("tdx/CartPole", goal=Goal(steps=4)), damaged, force=True)
    assert not (damaged / "damaged").exists()


def test_replaced_files_are_set_aside(damaged: Path) -> None:
    file = damaged / "data" / "action.memmap"
    flip(file, file.stat().st_size // 2)
    kept = {name: (damaged / name).read_bytes() for name in ("manifest.json", "chunks.jsonl")}
    data = file.read_bytes()
    result = repair(damaged)
    for name, content in kept.items():
        assert (damaged / "damaged" / f"1-{name}").read_bytes() == content
    assert file.read_bytes() == data
    flip(file, file.stat().st_size // 4)
    assert repair(damaged).chunks < result.chunks
    assert (damaged / "damaged" / "2-manifest.json").exists()


@pytest.mark.parametrize("how", ["flip", "remove"])
def test_lost_state_of_an_unfinished_dump_is_repaired(how: str) -> None:
    with in_memory() as parent:
        folder = Path(parent) / "dump"
        asked = request("tdx/Pendulum", bare=True, goal=Goal(steps=30), chunk_steps=10)
        with pytest.raises(CutError):
            roll_out(asked, folder, on_chunk=interrupt_after(2))
        (state,) = (folder / "state").iterdir()
        flip(state, 60) if how == "flip" else state.unlink()
        assert [each.where for each in verify(folder).problems] == [
            f"chunks.jsonl[1].state.{'crc32' if how == 'flip' else 'file'}"
        ]
        result = repair(folder)
        assert (result.steps, result.lost_steps) == (20, 0)
        assert result.verification.is_fine
        resume(folder)
        record(folder.parent / "whole", "tdx/Pendulum", bare=True, goal=Goal(steps=30))
        assert_prefix(folder, folder.parent / "whole", 30)


def test_chunks_behind_a_damaged_line_of_an_unfinished_dump_are_counted_as_lost() -> None:
    with in_memory() as parent:
        folder = Path(parent) / "dump"
        asked = request("tdx/Pendulum", bare=True, goal=Goal(steps=90), chunk_steps=10)
        with pytest.raises(CutError):
            roll_out(asked, folder, on_chunk=interrupt_after(4))
        index = folder / "chunks.jsonl"
        flip(index, index.read_bytes().index(b"\n") + 20)
        result = repair(folder)
        assert (result.steps, result.lost_steps) == (10, 30)


def test_damaged_manifest_is_not_repaired(damaged: Path) -> None:
    (damaged / "manifest.json").write_text("{")
    before = hash_tree(damaged)
    with pytest.raises(StorageError) as raised:
        repair(damaged)
    assert raised.value.hint
    assert hash_tree(damaged) == before


@pytest.mark.parametrize("damage", ["data", "manifest", "index", "missing"])
@exhaustive
def test_damaged_shard_is_recorded_again(damage: str) -> None:
    with in_memory() as parent:
        folder = Path(parent) / "dump"
        asked = request("tdx/Pendulum", bare=True, goal=Goal(steps=30), chunk_steps=5)
        for shard in range(3):
            roll_out_shard(asked, folder, 3, shard)
        wanted = open_dump(folder).data[..., :]
        one = folder / "shards" / "00001"
        if damage == "missing":
            shutil.rmtree(one)
        else:
            target = {
                "data": one / "data" / "action.memmap",
                "manifest": one / "manifest.json",
                "index": folder / "shards.jsonl",
            }[damage]
            flip(target, 3)
        result = repair(folder)
        assert result.verification.is_fine
        assert not result.verification.complete
        lost = () if damage == "index" else (1,)
        assert (result.lost_shards, result.lost_steps) == (lost, 10 * len(lost))
        set_aside = f"damaged/1-shards-{1:05}" in result.set_aside
        assert set_aside == (damage in ("data", "manifest"))
        for missing in lost:
            roll_out_shard(asked, folder, 3, missing)
        resume_shards(folder)
        assert verify(folder).is_fine
        assert same(open_dump(folder).data[..., :], wanted)


def test_command_reports_lost_chunks_and_steps(tdx: Tdx, damaged: Path) -> None:
    flip(damaged / "data" / "action.memmap", -1)
    found = tdx("verify", str(damaged))
    assert found.code == 1
    assert "chunks.jsonl[4].crc32[3]" in found.out
    repaired = tdx("verify", str(damaged), "--repair")
    assert (repaired.code, repaired.err) == (0, "")
    assert "lost       1 chunk, 8 steps" in repaired.out
    assert "set aside  damaged/1-manifest.json" in repaired.out
    assert "nothing to repair" in tdx("verify", str(damaged), "--repair").out


def test_killed_repair_leaves_no_temporary_file(damaged: Path) -> None:
    flip(damaged / "chunks.jsonl", -3)
    temporary = damaged / f".chunks.jsonl.{16 * 'a'}.tmp"
    temporary.write_text("{")
    assert repair(damaged).lost_chunks == 1
    assert not temporary.exists()


@pytest.mark.parametrize("files", ["chunks.jsonl", "meta.json", ".state"])
def test_what_the_system_cannot_read_counts_as_intact(
    files: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many open files, or a broken disk, say nothing about the dump."""
    with in_memory() as folder:
        dump = Path(folder) / "dump"
        if files == "meta.json":
            for shard in range(2):
                roll_out_shard(request("tdx/CartPole", goal=Goal(steps=8)), dump, 2, shard)
        else:
            with pytest.raises(CutError):
                roll_out(
                    request("tdx/CartPole", goal=Goal(steps=STEPS), chunk_steps=CHUNK_STEPS),
                    dump,
                    on_chunk=interrupt_after(2),
                )
        before = hash_tree(dump)
        open_file = os.open

        def fail(path: Any, *arguments: Any, **options: Any) -> int:
            if str(path).endswith(files):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
            return open_file(path, *arguments, **options)

        monkeypatch.setattr(os, "open", fail)
        with pytest.raises(OSError, match="oo many open files"):
            repair(dump)
        monkeypatch.undo()
        assert hash_tree(dump) == before


def test_unreadable_result_is_said_to_be_repaired(
    damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip(damaged / "chunks.jsonl", -3)

    def fail(*arguments: object) -> None:
        raise StorageError("cannot read it: input/output error", hint="check the disk")

    monkeypatch.setattr("tdx.rollouts.dump.repair.verify", fail)
    with pytest.raises(StorageError, match="is repaired, but cannot be verified: cannot read it"):
        repair(damaged)
