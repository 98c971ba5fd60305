"""P8: startup of whole processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.benchmarks.bars import COMPLETION, HELP, INSPECT, LIST, Bar
from tests.benchmarks.conftest import Measure

ROUNDS = 5
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
    ("bar", "arguments", "variables", "shown"),
    [
        (HELP, ["--help"], {}, "inspect"),
        (LIST, ["list", "envs"], {}, "Pendulum-v1"),
        (COMPLETION, [], COMPLETE, "Pendulum-v1"),
        (
            INSPECT,
            ["inspect", "spec", "--env", "Pendulum-v1", "--t", "StepCounter"],
            {},
            "step_count",
        ),
    ],
    ids=["help", "list", "completion", "inspect"],
)
def test_startup(
    measure: Measure, bar: Bar, arguments: list[str], variables: dict[str, str], shown: str
) -> None:
    command = ["-m", "tdx", *arguments]
    assert shown in run(command, variables)
    measure(bar, "tdx", lambda: run(command, variables), rounds=ROUNDS)


def test_typer_alone(measure: Measure) -> None:
    assert "Usage" in run(["-c", TYPER])
    measure(HELP, "bare", lambda: run(["-c", TYPER]), rounds=ROUNDS)


def test_import_of_torch_and_tensordict(measure: Measure) -> None:
    command = ["-c", "import torch, tensordict"]
    assert run(command) == ""
    measure(INSPECT, "bare", lambda: run(command), rounds=ROUNDS)
