"""Engines that record shards (Ray, and Slurm through submitit) and errors that end a run."""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tdx import ArgumentError, open_dump
from tdx.engines import ENGINES, SlurmEngine
from tdx.foundation.errors import MissingPackageError, OutputError, TdxError, WorkerError
from tdx.rollouts import Goal, roll_out_shard, roll_out_shards
from tdx.rollouts.dump.folder import LockedError
from tdx.rollouts.dump.progress import ignore_progress, read_progress
from tdx.rollouts.dump.shard_plan import ShardPlan
from tdx.rollouts.recording.shards import ShardJob
from tests.programs import exhaustive, require_program
from tests.rollouts.recordings import hash_tree, request

SHARDS = 3
HERE = "tests.rollouts.recordings"


@pytest.fixture
def wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a request whose processes kill themselves once."""
    kills = tmp_path / "kills"
    kills.mkdir()
    (kills / "0").touch()
    monkeypatch.setenv("TDX_TEST_KILLS", str(kills))
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    goal = Goal(steps=SHARDS * 40)
    return request(f"{HERE}:Killing", bare=True, allow_code=True, goal=goal)


def expected_hash(folder: Path, wanted: Any, shards: int) -> str:
    """Record the shards in this process, after all kills, and return the checksum."""
    assert not list((folder / "kills").iterdir())
    for shard in range(shards):
        roll_out_shard(wanted, folder / "expected", shards, shard, ignore_progress)
    return hash_tree(folder / "expected")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, wanted: Any) -> Iterator[None]:
    """Start a Ray cluster in this process."""
    import ray

    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False}
    ray.init("local", num_cpus=2, logging_level=logging.ERROR, **options)
    yield
    ray.shutdown()


@exhaustive
@pytest.mark.usefixtures("cluster")
@pytest.mark.filterwarnings("ignore")
def test_ray_records_the_same_dump(tmp_path: Path, wanted: Any) -> None:
    # Two at a time: a third shard is submitted when one of them ends.
    result = roll_out_shards(wanted, tmp_path / "dump", SHARDS, engine="ray", workers=2)
    assert (result.committed, result.failures) == (SHARDS, ())
    assert hash_tree(tmp_path / "dump") == expected_hash(tmp_path, wanted, SHARDS)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("address", "place"),
    [(None, "on this machine"), ("127.0.0.1:1", "at 127.0.0.1:1"), ("ray://[::1]:1", "at ray://")],
)
def test_missing_ray_cluster_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str | None, place: str
) -> None:
    if address is not None:
        monkeypatch.setenv("RAY_ADDRESS", address)
    wanted = request(goal=Goal(steps=SHARDS))
    with pytest.raises(WorkerError, match=f"no Ray cluster is running {place}") as refused:
        roll_out_shards(wanted, tmp_path / "dump", SHARDS, engine="ray")
    assert "ray start --head" in str(refused.value.hint)
    assert read_progress(tmp_path / "dump", ShardPlan.load(tmp_path / "dump")).committed == 0


@exhaustive
@pytest.mark.filterwarnings("ignore")
def test_slurm_records_the_same_dump(
    tmp_path: Path, wanted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # submitit reads the logs of its jobs with it.
    require_program("tail")
    local = functools.partial(SlurmEngine, cluster="local")
    monkeypatch.setitem(ENGINES, "slurm", local)
    shards = 2
    result = roll_out_shards(wanted, tmp_path / "dump", shards, engine="slurm")
    assert (result.committed, result.failures) == (shards, ())
    assert hash_tree(tmp_path / "dump") == expected_hash(tmp_path, wanted, shards)
    assert (tmp_path / "dump-slurm").is_dir()


def test_missing_slurm_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(WorkerError, match="this machine has no sbatch"):
        SlurmEngine(ShardJob(str(tmp_path / "dump")))


def test_error_message_of_slurm_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sbatch", "srun"):
        (programs / name).write_text("#!/bin/sh\necho 'sbatch: error: no such account' >&2\nexit 1")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    wanted = request(goal=Goal(steps=SHARDS))
    with pytest.raises(WorkerError, match=r"Slurm refuses the jobs: .*no such account") as refused:
        roll_out_shards(wanted, tmp_path / "dump", SHARDS, engine="slurm")
    assert "SBATCH_PARTITION" in str(refused.value.hint)


@pytest.mark.parametrize(("engine", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_missing_package_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    wanted = request(goal=Goal(steps=SHARDS))
    with pytest.raises(MissingPackageError, match=f"{package} is not installed") as refused:
        roll_out_shards(wanted, tmp_path / "dump", SHARDS, engine=engine)
    assert refused.value.hint == f"install tdx with its extra `{engine}`"


def test_unknown_engine_raises(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="unknown engine 'rey'"):
        roll_out_shards(request(), tmp_path / "dump", SHARDS, engine="rey")


class InlineEngine:
    """Engine that runs shards in this process or reports prepared errors."""

    slots: int | None = 2

    def __init__(self, job: ShardJob, errors: dict[int, list[TdxError]]) -> None:
        self._job, self._errors = job, errors
        self._done: list[tuple[int, TdxError | None]] = []
        self.submitted: list[int] = []

    def submit(self, shards: Sequence[int]) -> None:
        for shard in shards:
            self.submitted.append(shard)
            errors = self._errors.get(shard)
            self._done.append((shard, errors.pop(0) if errors else self._job(shard)))

    def collect(self, seconds: float) -> list[tuple[int, TdxError | None]]:
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        assert not self._done


def run_inline(
    folder: Path, monkeypatch: pytest.MonkeyPatch, errors: dict[int, list[TdxError]], **options: Any
) -> tuple[Any, list[int]]:
    """Record shards with :class:`InlineEngine`; return the result and the submitted shards."""
    found: list[InlineEngine] = []

    def create(job: ShardJob, workers: int | None) -> InlineEngine:
        found.append(InlineEngine(job, errors))
        return found[0]

    monkeypatch.setitem(ENGINES, "local", create)
    wanted = request(goal=Goal(steps=SHARDS * 3))
    return roll_out_shards(wanted, folder, SHARDS, **options), found[0].submitted


def test_failures_are_retried_after_the_other_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: dict[int, list[TdxError]] = {0: [WorkerError("lost"), WorkerError("lost again")]}
    result, submitted = run_inline(tmp_path / "dump", monkeypatch, errors)
    assert (result.committed, result.failures) == (SHARDS, ())
    assert submitted == [0, 1, 2, 0, 0]


def test_shard_locked_by_another_process_is_submitted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: dict[int, list[TdxError]] = {2: [LockedError("shard 2 is locked") for _ in range(3)]}
    result, submitted = run_inline(tmp_path / "dump", monkeypatch, errors, retries=0)
    assert (result.committed, result.failures) == (SHARDS, ())
    assert submitted.count(2) == 4


def test_error_that_affects_all_shards_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: dict[int, list[TdxError]] = {1: [OutputError("cannot write x: no space left")]}
    with pytest.raises(OutputError, match="no space left"):
        run_inline(tmp_path / "dump", monkeypatch, errors)
    assert open_dump(tmp_path / "dump").manifest.shards == (1, SHARDS)
