"""A few kills; ``python -m tests.robustness.kills`` runs hundreds."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.programs import exhaustive, sampled
from tests.robustness.kills import CONFIGURATIONS, kill_rollouts, kill_saves


@sampled(3)
@pytest.mark.parametrize("name", ["episodes", "raw", "vector"])
def test_killed_rollout_loses_no_steps(name: str, tmp_path: Path) -> None:
    tally = kill_rollouts(CONFIGURATIONS[name], 2, tmp_path, Random(0))
    assert tally.kills == 2
    assert not tally.lost


@exhaustive
def test_killed_save_keeps_the_old_or_the_new_buffer(tmp_path: Path) -> None:
    tally = kill_saves(8, tmp_path, Random(0))
    assert tally.kills == 8
    assert not tally.lost
