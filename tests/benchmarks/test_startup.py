"""P8, P21: startup time of processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.benchmarks.bars import CHECK_CODE, COMPLETION, HELP, INSPECT, LIST, Bar, Contestant
from tests.benchmarks.conftest import Compare, Run

ROUNDS = 9
TYPER = "import typer; app = typer.Typer(); app.command()(lambda: None); app(['--help'])"
COMPLETE = {
    "_TDX_COMPLETE": "complete_bash",
    "COMP_WORDS": "tdx inspect spec --env Pend",
    "COMP_CWORD": "4",
}


def run(arguments: list[str], variables: dict[str, str] | None = None) -> str:
    """Return the standard output of a Python process."""
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **(variables or {})},
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize(
    ("bar", "arguments", "variables", "shown", "baseline"),
    [
        (HELP, ["--help"], {}, "inspect", TYPER),
        (LIST, ["list", "envs"], {}, "Pendulum-v1", None),
        (COMPLETION, [], COMPLETE, "Pendulum-v1", None),
        (
            INSPECT,
            ["inspect", "spec", "--env", "Pendulum-v1", "--t", "StepCounter"],
            {},
            "step_count",
            "import torch, tensordict",
        ),
    ],
    ids=["help", "list", "completion", "inspect"],
)
def test_startup_of_a_command(
    compare: Compare,
    bar: Bar,
    arguments: list[str],
    variables: dict[str, str],
    shown: str,
    baseline: str | None,
) -> None:
    command = ["-m", "tdx", *arguments]
    assert shown in run(command, variables)
    runs: dict[Contestant, Run] = {"tdx": Run(lambda: run(command, variables))}
    if baseline is not None:
        runs["bare"] = Run(lambda: run(["-c", baseline]))
    compare(bar, runs, rounds=ROUNDS, clock=time.perf_counter)


WRAPPERS = """
import gymnasium
from gymnasium.wrappers import FrameStackObservation, RecordEpisodeStatistics, TransformReward

def make():
    env = TransformReward(gymnasium.make("CartPole-v1"), lambda reward: reward * 0.1)
    return RecordEpisodeStatistics(FrameStackObservation(env, 4))
"""


def child_cpu_seconds() -> float:
    """Return the CPU time of the child processes that have ended."""
    used = os.times()
    return used.children_user + used.children_system


def test_check_of_a_function(compare: Compare, tmp_path: Path) -> None:
    file = tmp_path / "wrappers.py"
    file.write_text(WRAPPERS)
    command = ["-m", "tdx", "check", f"{file}:make", "--allow-code"]
    assert "all checks passed" in run(command)
    runs: dict[Contestant, Run] = {
        "tdx": Run(lambda: run(command)),
        "bare": Run(lambda: run(["-c", "import torch, tensordict, gymnasium"])),
    }
    compare(CHECK_CODE, runs, rounds=ROUNDS, clock=child_cpu_seconds)
