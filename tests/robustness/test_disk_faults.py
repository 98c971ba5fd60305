"""A sample of failing calls and power losses; ``tests.robustness.disk_faults`` runs all.

Each writer takes seconds to prepare, and each state runs commands several times, so one writer of
each mechanism is here: dumps that grow, are replaced, sharded and repaired, a file that a library
writes, a replaced folder, a replaced file, and a file that is appended to.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.programs import exhaustive, require_program

SAMPLE = (
    ("resume", "rollout --force", "shards", "repair"),
    ("export hdf5", "buffer save", "check --fix", "watch"),
)


@pytest.mark.parametrize("names", SAMPLE)
@exhaustive
def test_failing_disk_leaves_the_old_or_the_new_state(names: tuple[str, ...]) -> None:
    require_program("gcc")
    options = [word for name in names for word in ("--only", name)]
    command = (sys.executable, "-m", "tests.robustness.disk_faults", "--states", "3", *options)
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
