"""Sharded dumps: content, reruns, failures and invalid input."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from tdx import ArgumentError, StorageError, TdxError, open_dump, save_mlp_policy
from tdx.foundation.container import Container
from tdx.foundation.errors import OutputError
from tdx.foundation.processes import delay_interrupts
from tdx.rollouts import DumpRequest, Goal, roll_out, roll_out_shard, roll_out_shards, verify
from tdx.rollouts.dump.folder import lock_for_writing
from tdx.rollouts.dump.progress import ignore_progress, read_progress
from tdx.rollouts.dump.shard_plan import (
    ShardPlan,
    derive_shard_seed,
    read_shard_index,
    write_shard_index,
)
from tdx.rollouts.recording.shards import open_shards, record_shard
from tests.programs import exhaustive, sampled
from tests.rollouts.recordings import (
    hash_tree,
    in_memory,
    record,
    request,
    run_and_kill_at,
    same,
)

SHARDS, TOTAL = 6, 250
HERE = "tests.rollouts.recordings"


def sharded_request(env: str = "CartPole-v1", *stages: str, **options: Any) -> DumpRequest:
    """Return a request for a few short shards."""
    return request(env, *stages, **{"goal": Goal(steps=TOTAL), **options})


def run_shards(folder: Path, wanted: DumpRequest, **options: Any) -> Any:
    """Record all shards in one worker process: each takes seconds to start."""
    return roll_out_shards(wanted, folder, SHARDS, **{"workers": 1, **options})


def one_by_one(folder: Path, wanted: DumpRequest) -> None:
    """Record the shards in this process, in reverse order."""
    for shard in reversed(range(SHARDS)):
        roll_out_shard(wanted, folder, SHARDS, shard, ignore_progress)


@pytest.fixture(scope="module")
def expected() -> str:
    """Return the checksum of the dump of :func:`sharded_request`, recorded in this process."""
    with in_memory() as folder:
        one_by_one(Path(folder) / "dump", sharded_request())
        return hash_tree(Path(folder) / "dump")


@exhaustive
def test_content_does_not_depend_on_the_number_of_workers(tmp_path: Path, expected: str) -> None:
    result = run_shards(tmp_path / "dump", sharded_request(), workers=4)
    assert (result.committed, result.recorded, result.failures) == (SHARDS, SHARDS, ())
    assert hash_tree(tmp_path / "dump") == expected


@exhaustive
def test_steps_are_divided_among_the_shards(tmp_path: Path) -> None:
    one_by_one(tmp_path / "dump", sharded_request())
    dump = open_dump(tmp_path / "dump")
    assert [len(shard) for shard in dump.shards] == [42, 42, 42, 42, 41, 41]
    assert dump.manifest.complete
    assert (dump.manifest.steps, dump.manifest.shards) == (TOTAL, (SHARDS, SHARDS))
    assert verify(tmp_path / "dump").is_fine


@exhaustive
def test_each_shard_is_a_dump_with_its_own_seed(tmp_path: Path) -> None:
    one_by_one(tmp_path / "dump", sharded_request())
    dump = open_dump(tmp_path / "dump")
    shard = dump.shards[3]
    assert shard.manifest.seed == derive_shard_seed(dump.manifest.seed, 3)
    alone = sharded_request(seed=shard.manifest.seed, goal=Goal(steps=42))
    roll_out(alone, tmp_path / "alone")
    assert same(open_dump(tmp_path / "alone").data, shard.data)


@exhaustive
def test_episodes_are_divided_among_the_shards(tmp_path: Path) -> None:
    wanted = sharded_request(goal=Goal(episodes=SHARDS + 2))
    one_by_one(tmp_path / "dump", wanted)
    dump = open_dump(tmp_path / "dump")
    assert [len(shard.manifest.episodes) for shard in dump.shards] == [2, 2, 1, 1, 1, 1]
    assert len(dump.manifest.episodes) == SHARDS + 2


def test_seeds_of_batches_do_not_overlap() -> None:
    starts = sorted(derive_shard_seed(7, shard) for shard in range(2048))
    distances = [after - before for before, after in pairwise(starts)]
    assert min(distances) > 100_000
    assert starts[-1] < 2**31
    assert derive_shard_seed(7, 0) != derive_shard_seed(8, 0)


# Reruns


@exhaustive
def test_rerun_records_only_missing_shards(tmp_path: Path, expected: str) -> None:
    folder = tmp_path / "dump"
    one_by_one(folder, sharded_request())
    shutil.rmtree(folder / "shards" / "00002")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.memmap")}
    result = run_shards(folder, sharded_request())
    assert (result.committed, result.recorded) == (SHARDS, 1)
    assert hash_tree(folder) == expected
    assert all(path.stat().st_mtime_ns == time for path, time in before.items() if path.exists())
    assert run_shards(folder, sharded_request()).recorded == 0


def test_random_seed_is_stored_in_the_plan(tmp_path: Path) -> None:
    wanted = sharded_request(seed=None)
    roll_out_shard(wanted, tmp_path / "dump", SHARDS, 4, ignore_progress)
    seed = ShardPlan.load(tmp_path / "dump").manifest.seed
    run_shards(tmp_path / "dump", wanted)
    assert open_dump(tmp_path / "dump").manifest.seed == seed


@pytest.mark.parametrize(
    ("changes", "count", "message"),
    [
        ({"seed": 4}, SHARDS, "have another seed: 3, not 4"),
        ({"goal": Goal(steps=TOTAL + 1)}, SHARDS, "have another length"),
        ({"policy": "zero"}, SHARDS, "have another policy"),
        ({"keys": ("reward",)}, SHARDS, r"have another entries \(--keys\)"),
        ({"chunk_steps": 24}, SHARDS, "have another chunk size: 25, not 24"),
        ({"bare": True}, SHARDS, "have another pipeline"),
        ({}, SHARDS + 1, "have another number of shards: 6, not 7"),
    ],
    ids=lambda value: next(iter(value), "shards") if isinstance(value, dict) else None,
)
def test_changed_request_is_refused(
    tmp_path: Path, changes: dict[str, Any], count: int, message: str
) -> None:
    folder = tmp_path / "dump"
    roll_out_shard(sharded_request(), folder, SHARDS, 0, ignore_progress)
    before = hash_tree(folder)
    with pytest.raises(ArgumentError, match=message) as refused:
        roll_out_shards(sharded_request(**changes), folder, count)
    assert "new folder" in str(refused.value.hint)
    assert hash_tree(folder) == before


def test_other_package_versions_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "dump"
    roll_out_shard(sharded_request(), folder, SHARDS, 0, ignore_progress)
    versions = {**ShardPlan.load(folder).manifest.versions, "torch": "1.0"}
    for module in ("request", "shards"):
        monkeypatch.setattr(f"tdx.rollouts.recording.{module}.package_versions", lambda: versions)
    for attempt in (
        lambda: roll_out_shard(sharded_request(), folder, SHARDS, 1, ignore_progress),
        lambda: record_shard(folder, 1),
    ):
        with pytest.raises(ArgumentError, match=r"is recorded with torch \d.*process has 1\.0"):
            attempt()


@exhaustive
def test_force_replaces_all_shards(tmp_path: Path, expected: str) -> None:
    folder = tmp_path / "dump"
    roll_out_shard(sharded_request(seed=99), folder, SHARDS, 0, ignore_progress)
    run_shards(folder, sharded_request(), force=True)
    assert hash_tree(folder) == expected
    record(tmp_path / "plain")
    with pytest.raises(ArgumentError, match="already has a dump"):
        run_shards(tmp_path / "plain", sharded_request())
    run_shards(tmp_path / "plain", sharded_request(), force=True)
    assert hash_tree(tmp_path / "plain") == expected


# Failures


@exhaustive
def test_failed_shards_are_listed_and_recorded_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = sharded_request(f"{HERE}:Fragile", bare=True, allow_code=True)
    broken, folder = tmp_path / "broken", tmp_path / "dump"
    monkeypatch.setenv("TDX_TEST_BREAK", str(broken))
    monkeypatch.setenv("TDX_TEST_BREAK_AT", "42")
    broken.touch()
    result = run_shards(folder, wanted, retries=1)
    # The last two shards are shorter than the others.
    assert [(each.shard, each.attempts) for each in result.failures] == [
        (shard, 2) for shard in range(4)
    ]
    assert all("the belt slipped" in each.message for each in result.failures)
    assert (result.committed, result.recorded) == (2, 2)
    progress = read_progress(folder, ShardPlan.load(folder))
    assert (progress.committed, progress.failed, progress.running) == (2, 4, 0)
    broken.unlink()
    assert run_shards(folder, wanted).failures == ()
    one_by_one(tmp_path / "other", wanted)
    assert hash_tree(folder) == hash_tree(tmp_path / "other")


@exhaustive
def test_only_shards_of_killed_workers_are_recorded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = sharded_request(f"{HERE}:Killing", bare=True, allow_code=True)
    kills = tmp_path / "kills"
    kills.mkdir()
    for number in range(4):
        (kills / str(number)).touch()
    monkeypatch.setenv("TDX_TEST_KILLS", str(kills))
    result = run_shards(tmp_path / "dump", wanted, retries=4, workers=2)
    assert (result.committed, result.recorded, result.failures) == (SHARDS, SHARDS, ())
    assert not list(kills.iterdir())
    monkeypatch.delenv("TDX_TEST_KILLS")
    one_by_one(tmp_path / "other", wanted)
    assert hash_tree(tmp_path / "dump") == hash_tree(tmp_path / "other")


def test_killed_shard_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = sharded_request(f"{HERE}:Killing", bare=True, allow_code=True)
    kills = tmp_path / "kills"
    kills.mkdir()
    (kills / "1").touch()
    monkeypatch.setenv("TDX_TEST_KILLS", str(kills))
    result = run_shards(tmp_path / "dump", wanted, retries=0, workers=1)
    (failure,) = result.failures
    assert failure.message.startswith("the process of shard 0 was killed")
    assert open_dump(tmp_path / "dump").manifest.shards == (SHARDS - 1, SHARDS)


DRIVER = """
from pathlib import Path
from tests.rollouts.test_shards import HERE, run_shards, sharded_request
import os, sys

if __name__ == "__main__":
    Path(os.environ["TDX_TEST_KILLS"], "driver").write_text(str(os.getpid()))
    wanted = sharded_request(f"{HERE}:Killing", bare=True, allow_code=True)
    run_shards(Path(sys.argv[1]), wanted)
"""


@exhaustive
def test_dump_after_a_killed_driver_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills, folder, script = tmp_path / "kills", tmp_path / "dump", tmp_path / "driver.py"
    kills.mkdir()
    script.write_text(textwrap.dedent(DRIVER))
    monkeypatch.setenv("TDX_TEST_KILLS", str(kills))
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    ended = subprocess.run([sys.executable, script, folder], timeout=600, check=False)
    assert ended.returncode == -signal.SIGKILL
    wanted = sharded_request(f"{HERE}:Killing", bare=True, allow_code=True)
    assert run_shards(folder, wanted).committed == SHARDS
    one_by_one(tmp_path / "other", wanted)
    assert hash_tree(folder) == hash_tree(tmp_path / "other")


def test_full_disk_ends_the_run_and_keeps_committed_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: str
) -> None:
    folder = tmp_path / "dump"
    roll_out_shard(sharded_request(), folder, SHARDS, 0, ignore_progress)

    def full(*arguments: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OutputError, match="no space left on device") as failed:
            roll_out_shard(sharded_request(), folder, SHARDS, 1, ignore_progress)
    assert "only missing shards" in str(failed.value.hint)
    assert sorted(each.name for each in (folder / "shards").glob("0*[0-9]")) == ["00000"]
    run_shards(folder, sharded_request())
    assert hash_tree(folder) == expected


@exhaustive
def test_clock_changes_do_not_affect_the_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: str
) -> None:
    hours = itertools.cycle((0.0, 1e9, -1e9))
    monkeypatch.setattr("time.time", lambda: 2e9 + next(hours))
    one_by_one(tmp_path / "dump", sharded_request())
    assert hash_tree(tmp_path / "dump") == expected


# Invalid input


def test_two_runs_on_one_folder_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    roll_out_shard(sharded_request(), folder, SHARDS, 0, ignore_progress)
    with lock_for_writing(folder, shared=True):
        # Tasks of a job array may run at the same time, but not during a run of the driver.
        roll_out_shard(sharded_request(), folder, SHARDS, 1, ignore_progress)
        with pytest.raises(ArgumentError, match="another process is writing"):
            run_shards(folder, sharded_request())
    with lock_for_writing(folder), pytest.raises(ArgumentError, match="another process is writing"):
        roll_out_shard(sharded_request(), folder, SHARDS, 2, ignore_progress)


def test_one_shard_is_recorded_by_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tdx.rollouts.recording.shards._LOCK_SECONDS", 0.0)
    folder = tmp_path / "dump"
    roll_out_shard(sharded_request(), folder, SHARDS, 0, ignore_progress)
    part = folder / "shards" / "00003.part"
    part.mkdir()
    with lock_for_writing(part):
        assert read_progress(folder, ShardPlan.load(folder)).running == 1
        with pytest.raises(ArgumentError, match=r"another process is writing .*00003\.part"):
            roll_out_shard(sharded_request(), folder, SHARDS, 3, ignore_progress)
    assert read_progress(folder, ShardPlan.load(folder)).running == 0
    roll_out_shard(sharded_request(), folder, SHARDS, 3, ignore_progress)


@pytest.mark.parametrize(
    ("options", "count", "message"),
    [
        ({}, 251, "250 steps cannot be divided among 251 shards"),
        ({}, 0, "0 shards are out of range"),
        ({}, 100_001, "100,001 shards are out of range"),
        ({"policy": "sequence:{actions}"}, 2, "cannot be divided among shards"),
    ],
)
def test_invalid_requests_are_refused(
    tmp_path: Path, options: dict[str, str], count: int, message: str
) -> None:
    actions = tmp_path / "actions.json"
    actions.write_text(json.dumps([[0, 1]] * TOTAL))
    options = {name: text.format(actions=actions) for name, text in options.items()}
    with pytest.raises(ArgumentError, match=message):
        roll_out_shards(sharded_request(**options), tmp_path / "dump", count)
    assert not (tmp_path / "dump").exists()


def test_shard_out_of_range_raises(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="shard 6 does not exist: there are 6"):
        roll_out_shard(sharded_request(), tmp_path / "dump", SHARDS, 6, ignore_progress)


def edit_data(shard: Path) -> None:
    path = shard / "data" / "action.memmap"
    path.write_bytes(b"\x07" + path.read_bytes()[1:])


def edit_manifest(shard: Path) -> None:
    path = shard / "manifest.json"
    path.write_text(path.read_text().replace("random", "zero"))


def exchange(shard: Path) -> None:
    other = shard.with_name("00001")
    shard.rename(shard.with_name("x"))
    other.rename(shard)
    shard.with_name("x").rename(other)


def record_elsewhere(shard: Path) -> None:
    shutil.rmtree(shard)
    record(shard)


def add_a_file(shard: Path) -> None:
    (shard.parent / "notes.txt").touch()


def link_a_shard(shard: Path) -> None:
    shard.rename(shard.parents[1] / "moved")
    shard.symlink_to(shard.parents[1] / "moved")


EDITS: list[tuple[Callable[[Path], None], str]] = [
    (edit_manifest, "was changed after it was written"),
    (exchange, "is not the shard that was recorded here"),
    (record_elsewhere, "is not the shard that was recorded here"),
    (add_a_file, "notes.txt does not belong to the dump"),
    (link_a_shard, "00002 does not belong to the dump"),
]


@pytest.mark.parametrize(("edit", "message"), EDITS)
@sampled(3)
def test_edited_shards_are_refused(
    tmp_path: Path, edit: Callable[[Path], None], message: str
) -> None:
    folder = tmp_path / "dump"
    one_by_one(folder, sharded_request())
    edit(folder / "shards" / "00002")
    before = hash_tree(folder)
    with pytest.raises(StorageError, match=message):
        list(open_dump(folder).shards)
    (folder / "shards.jsonl").unlink()
    before = hash_tree(folder)
    with pytest.raises(StorageError, match=message):
        run_shards(folder, sharded_request())
    assert hash_tree(folder) == before


@exhaustive
def test_verify_detects_edited_data(tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    one_by_one(folder, sharded_request())
    edit_data(folder / "shards" / "00002")
    result = verify(folder)
    assert [(each.kind, each.file) for each in result.problems] == [
        ("checksum", "shards/00002/data/action.memmap")
    ]


@exhaustive
def test_missing_shard_of_a_complete_dump_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    one_by_one(folder, sharded_request())
    shutil.rmtree(folder / "shards" / "00004")
    with pytest.raises(StorageError, match="00004 is missing") as refused:
        open_dump(folder)
    assert "record" in str(refused.value.hint)
    shutil.rmtree(folder / "shards")
    with pytest.raises(StorageError, match="the shards of the dump are missing"):
        open_dump(folder)


def test_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ArgumentError, match="exists and is not a dump"):
        run_shards(tmp_path, sharded_request())


def test_record_shard_requires_allow_code(tmp_path: Path) -> None:
    wanted = sharded_request(f"{HERE}:Fragile", bare=True, allow_code=True)
    roll_out_shard(wanted, tmp_path / "dump", SHARDS, 0, ignore_progress)
    with pytest.raises(TdxError, match="--allow-code"):
        record_shard(tmp_path / "dump", 1)


@pytest.mark.parametrize("name", ["shards", "shards.jsonl", "manifest.json"])
@exhaustive
def test_links_are_refused(tmp_path: Path, name: str) -> None:
    folder, outside = tmp_path / "dump", tmp_path / "outside"
    one_by_one(folder, sharded_request())
    (folder / name).rename(outside)
    (folder / name).symlink_to(outside)
    before = hash_tree(tmp_path)
    attempts: list[Callable[[], object]] = [
        lambda: open_dump(folder),
        lambda: verify(folder),
        lambda: run_shards(folder, sharded_request()),
        lambda: record_shard(folder, 0),
    ]
    for attempt in attempts[:3] if name == "shards.jsonl" else attempts:
        with pytest.raises(StorageError, match="symbolic link"):
            attempt()
    assert hash_tree(tmp_path) == before


def test_linked_folder_of_a_shard_is_not_emptied(tmp_path: Path) -> None:
    folder, outside = tmp_path / "dump", tmp_path / "outside"
    roll_out_shard(sharded_request(), folder, SHARDS, 0, ignore_progress)
    outside.mkdir()
    (outside / "notes.txt").touch()
    (folder / "shards" / "00001.part").symlink_to(outside)
    with pytest.raises(StorageError, match="does not belong to the dump"):
        record_shard(folder, 1)
    assert (outside / "notes.txt").exists()


@exhaustive
def test_forged_counts_are_compared_with_the_files(tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    one_by_one(folder, sharded_request())
    plan = ShardPlan.load(folder)
    with Container.open(folder) as root:
        found = read_shard_index(root, plan)
        assert found is not None
        tracks, summaries = found
        forged = [replace(each, steps=2**40) for each in summaries]
        write_shard_index(root, plan, list(tracks.values()), forged)
    dump = open_dump(folder)
    assert len(dump) == SHARDS * 2**40
    with pytest.raises(StorageError, match="bytes"):
        dump[2**40 - 1]
    with pytest.raises(StorageError, match="is not the shard"):
        list(dump.manifest.episodes)


@exhaustive
def test_damaged_index_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    one_by_one(folder, sharded_request())
    index = folder / "shards.jsonl"
    lines = index.read_bytes().splitlines(keepends=True)
    for damaged in (lines[1:], lines[:-1], [lines[0], *lines[2:]], lines[::-1]):
        index.write_bytes(b"".join(damaged))
        with pytest.raises(StorageError, match=r"shards\.jsonl"):
            open_dump(folder)


def test_interrupt_is_delayed_until_the_process_has_started() -> None:
    steps = []

    def start() -> None:
        with delay_interrupts():
            signal.raise_signal(signal.SIGINT)
            steps.append("started")

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            start()
    finally:
        signal.signal(signal.SIGINT, previous)
    assert steps == ["started"]


@exhaustive
def test_start_that_was_killed_can_be_repeated(tmp_path: Path) -> None:
    policy = tmp_path / "policy.safetensors"
    save_mlp_policy(nn.Sequential(nn.Linear(4, 2)), policy)
    wanted = sharded_request(bare=True, policy=f"mlp:{policy}")

    def start(folder: Path) -> None:
        with open_shards(wanted, folder, SHARDS, alone=True):
            pass

    calls = run_and_kill_at(None, lambda: start(tmp_path / "whole"))
    names = sorted(os.listdir(tmp_path / "whole"))
    for moment in range(1, calls + 1):
        folder = tmp_path / str(moment)
        assert run_and_kill_at(moment, partial(start, folder)) == -1
        start(folder)
        assert sorted(os.listdir(folder)) == names


@exhaustive
def test_note_of_a_failure_that_was_cut_off_is_no_foreign_file(tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    roll_out_shard(sharded_request(), folder, 2, 0, ignore_progress)
    left = folder / "shards" / ".00001.failed.0123456789abcdef.tmp"
    left.touch()
    roll_out_shard(sharded_request(), folder, 2, 1, ignore_progress)
    assert not left.exists()
    assert verify(folder).is_fine
