"""D1: overhead of a shard on Ray, and memory of the driver."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tdx import Pipeline
from tdx.rollouts import DumpRequest, Goal, roll_out_shards
from tests.benchmarks.bars import SHARD_MEMORY, SHARD_SHARE
from tests.benchmarks.conftest import Note
from tests.processes import STATM, resident_bytes

FEW, MANY, LONG_SECONDS = 64, 512, 30.0
PIPELINE = Pipeline.of("Pendulum-v1", "RewardSum")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start a Ray cluster with two cores in this process."""
    ray: Any = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # The workers import from this folder.
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False}
    ray.init("local", num_cpus=2, logging_level=logging.ERROR, **options)
    yield
    ray.shutdown()


def run_short_shards(folder: Path, shards: int) -> float:
    """Record shards of one step, one at a time; return the seconds per shard."""
    request = DumpRequest(PIPELINE, Goal(steps=shards), seed=0)
    start = time.perf_counter()
    result = roll_out_shards(request, folder, shards, engine="ray", workers=1)
    assert result.committed == shards
    return (time.perf_counter() - start) / shards


@pytest.mark.usefixtures("cluster")
@pytest.mark.skipif(not STATM.exists(), reason="reads the process's memory from /proc")
def test_overhead_and_memory_of_shards(note: Note, tmp_path: Path) -> None:
    # The first run starts the process of Ray for all shards.
    seconds = run_short_shards(tmp_path / "few", FEW)
    note(SHARD_SHARE, "tdx", seconds / (LONG_SECONDS + seconds))
    before = resident_bytes()
    run_short_shards(tmp_path / "many", MANY)
    note(SHARD_MEMORY, "tdx", max(resident_bytes() - before, 0))
