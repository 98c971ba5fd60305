"""A few kills; ``python -m tests.robustness.kills`` runs hundreds."""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.programs import exhaustive
from tests.robustness.kills import CONFIGURATIONS, kill_rollouts, kill_saves


def test_killed_rollout_loses_no_steps(tmp_path: Path) -> None:
    tally = kill_rollouts(CONFIGURATIONS["episodes"], 2, tmp_path, Random(0))
    assert tally.kills == 2
    assert not tally.lost


@exhaustive
def test_killed_save_keeps_the_old_or_the_new_buffer(tmp_path: Path) -> None:
    tally = kill_saves(4, tmp_path, Random(0))
    assert tally.kills == 4
    assert not tally.lost
