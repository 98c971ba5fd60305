"""P27: statistics of a large LeRobot dataset, in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.benchmarks.bars import STATISTICS, STATISTICS_MEMORY
from tests.benchmarks.conftest import Note
from tests.stacks.checkpoints.folders import STATE

STEPS, WIDTH, FILES = 10_000_000, 32, 10
_PROGRAM = """
import json, re, sys, time
from pathlib import Path
from tdx.inspection.dataset_check import read_facts
from tdx.rollouts.datasets import read_data

start = time.perf_counter()
facts = read_facts(read_data(sys.argv[1]))
seconds = time.perf_counter() - start
(statistics,) = facts.computed.values()
# Not ru_maxrss, which a process inherits from the one that forked it.
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
print(json.dumps([statistics.count, seconds, peak]))
"""


def test_statistics_of_a_dataset(note: Note, tmp_path: Path) -> None:
    feature = {"dtype": "float32", "shape": [WIDTH], "names": None}
    info = {"fps": 30, "total_frames": STEPS, "features": {STATE: feature}}
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "info.json").write_text(json.dumps(info))
    (tmp_path / "data").mkdir()
    rng = np.random.default_rng(0)
    for index in range(FILES):
        values = rng.standard_normal(STEPS // FILES * WIDTH, np.float32)
        column = pa.FixedSizeListArray.from_arrays(pa.array(values), WIDTH)
        table = pa.table({STATE: column})
        pq.write_table(table, tmp_path / "data" / f"file-{index:03}.parquet", use_dictionary=False)
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    count, seconds, peak = json.loads(done.stdout)
    assert count == STEPS
    note(STATISTICS, "tdx", seconds)
    note(STATISTICS_MEMORY, "tdx", peak)
