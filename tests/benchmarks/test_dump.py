"""P10: a rollout with a dump compared with the rollout alone, and its memory."""

from __future__ import annotations

import itertools
import shutil
import time
from pathlib import Path

import pytest

from tdx import EnvConfig, Pipeline, build_env
from tdx.rollouts import DumpRequest, Goal, Progress, roll_out
from tests.benchmarks.bars import DUMP, DUMP_MEMORY
from tests.benchmarks.conftest import Compare, Note, Run
from tests.benchmarks.test_memory import WARM_UP_CHUNKS
from tests.processes import STATM, resident_bytes

STEPS, LONG = 100_000, 1_000_000
PIPELINE = Pipeline.of(
    EnvConfig("Pendulum-v1"),
    'ObservationNorm(0.1, 2.0, in_keys=["observation"])',
    "RewardScaling(0.0, 0.1)",
    "RewardClipping(-1, 1)",
    "RewardSum",
    "InitTracker",
    'CatFrames(4, dim=-1, in_keys=["observation"])',
)


def test_rollout_with_a_dump(compare: Compare, tmp_path: Path) -> None:
    env = build_env(PIPELINE)
    request = DumpRequest(PIPELINE, Goal(steps=STEPS), seed=0)
    folders = (tmp_path / str(number) for number in itertools.count())

    def rolled_out() -> None:
        for _ in env.iter_rollout(STEPS):
            pass

    def dumped() -> None:
        made = roll_out(request, next(folders))
        assert made.steps == STEPS

    runs = {"tdx": Run(dumped, STEPS), "bare": Run(rolled_out, STEPS)}
    compare(DUMP, runs, rounds=7, clock=time.perf_counter)
    shutil.rmtree(tmp_path)


@pytest.mark.skipif(not STATM.exists(), reason="reads the process's memory from /proc")
def test_memory_of_a_long_dump(note: Note, tmp_path: Path) -> None:
    seen: list[int] = []

    def on_chunk(progress: Progress) -> None:
        seen.append(resident_bytes())

    made = roll_out(
        DumpRequest(PIPELINE, Goal(steps=LONG), seed=0), tmp_path / "dump", on_chunk=on_chunk
    )
    assert made.steps == LONG
    start = seen[WARM_UP_CHUNKS]
    note(DUMP_MEMORY, "tdx", max(abs(size - start) for size in seen[WARM_UP_CHUNKS:]))
    shutil.rmtree(tmp_path)
