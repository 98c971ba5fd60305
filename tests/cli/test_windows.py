"""The commands that Windows users need run without the POSIX parts of Python."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.programs import exhaustive

ROOT = Path(__file__).parents[2]


def run(*commands: tuple[str, ...]) -> list[str]:
    """Run commands in one process; return what each prints."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.windows", *map(json.dumps, commands)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "unexpected" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr
    *printed, rest = re.split(r"^exit [01]\n", done.stdout, flags=re.MULTILINE)
    assert (len(printed), rest) == (len(commands), ""), done.stdout
    return printed


@exhaustive
def test_commands_and_the_app_without_posix(tmp_path: Path) -> None:
    pipeline = "sample_pipelines/pendulum.yaml"
    contract, dump = str(tmp_path / "contract"), str(tmp_path / "dump")
    commands = {
        ("inspect", "spec", "--env", "Pendulum-v1", "--t", "StepCounter"): "step_count",
        ("check", "sample_pipelines/checkpoints/renamed_statistics"): "TDX601",
        ("check", "sample_pipelines/wrapped_pendulum.py:make", "--allow-code"): "TDX405",
        ("diff", pipeline, "sample_pipelines/cartpole_batch.yaml"): "step_count",
        ("profile", pipeline, "--steps", "50"): "RewardSum",
        ("contract", "record", pipeline, "--out", contract): "",
        ("contract", "check", pipeline, "--against", contract): "same: ",
        ("rollout", pipeline, "--steps", "50", "--out", dump): "",
        ("rollout", pipeline, "--steps", "60", "--out", dump, "--force"): "",
        ("show", dump): "60",
    }
    *printed, app = run(*commands, ("tui",))
    for (command, expected), text in zip(commands.items(), printed, strict=True):
        assert expected in text, command
    assert not list(tmp_path.rglob("*.tmp"))
    assert "paused · step 1" in app
    assert "step_count" in app
    # Not only the app, but also what steps the env; and nothing printed disturbs the messages.
    assert "a worker as on Windows" in app
