"""P10, memory: a rollout of a million steps in chunks."""

from __future__ import annotations

import pytest

from tests.benchmarks.bars import MEMORY
from tests.benchmarks.chains import chain_6_env
from tests.benchmarks.conftest import Note
from tests.processes import STATM, resident_bytes

STEPS = 1_000_000
WARM_UP_CHUNKS = 3


@pytest.mark.skipif(not STATM.exists(), reason="reads the process's memory from /proc")
def test_memory_of_a_long_rollout(note: Note) -> None:
    env = chain_6_env("tdx")
    env.set_seed(0)
    made, seen = 0, []
    for chunk in env.iter_rollout(STEPS):
        made += chunk.shape[0]
        seen.append(resident_bytes())
    start = seen[WARM_UP_CHUNKS]
    note(MEMORY, "tdx", max(abs(size - start) for size in seen[WARM_UP_CHUNKS:]))
    assert made == STEPS
