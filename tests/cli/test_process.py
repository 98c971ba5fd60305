"""``tdx`` as a process: terminals, pipes and signals."""

from __future__ import annotations

import faulthandler
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tdx.cli.process import run as run_here
from tests.cli.processes import run, start
from tests.programs import exhaustive

ROOT = Path(__file__).parents[2]
TDX = (sys.executable, "-m", "tdx")
SPEC = ("inspect", "spec", "--env", "Pendulum-v1", "--t", "StepCounter")


@pytest.fixture
def environ() -> dict[str, str]:
    plain = {name: text for name, text in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    return {**plain, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}


def on_terminal(arguments: tuple[str, ...], columns: int, environ: dict[str, str]) -> str:
    """Return the output of ``tdx`` on a terminal with ``columns`` columns."""

    def before() -> None:
        os.environ.clear()
        os.environ.update(environ, COLUMNS=str(columns))

    terminal, slave = pty.openpty()
    process = start(arguments, dict.fromkeys(range(3), slave), before)
    os.close(slave)
    shown = b""
    while True:
        try:
            block = os.read(terminal, 65536)
        except OSError:
            break
        if not block:
            break
        shown += block
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    return shown.decode().replace("\r\n", "\n")


@exhaustive
def test_terminal_of_60_columns_is_colored_and_fits(environ: dict[str, str]) -> None:
    shown = on_terminal(SPEC, 60, environ)
    golden = Path(__file__).parent / "golden" / "spec.ansi"
    wanted = golden.read_text().replace("StepCounter(max_steps=200)", "StepCounter")
    assert shown == wanted
    plain = on_terminal(("list", "transforms"), 60, {**environ, "NO_COLOR": "1"})
    assert "\x1b[" not in plain
    assert max(map(len, plain.splitlines())) <= 60


def test_pipe_is_complete_and_not_colored() -> None:
    done = run(*SPEC, before=lambda: os.environ.update(COLUMNS="40"))
    assert (done.code, done.err) == (0, "")
    assert "\x1b[" not in done.out
    assert "[3]  float32  ±[1, 1, 8]" in done.out


def test_pipeline_from_stdin() -> None:
    completed = run(
        *("inspect", "spec", "--pipeline", "-", "--format", "json", "--t", "RewardSum"),
        stdin="version: 1\nenv: Pendulum-v1\ntransforms:\n  - StepCounter: {max_steps: 3}\n",
    )
    report = json.loads(completed.out)
    assert [stage["call"] for stage in report["stages"]] == [
        "StepCounter(max_steps=3)",
        "RewardSum",
    ]


@exhaustive
def test_reader_that_exits_is_not_an_error(environ: dict[str, str]) -> None:
    with subprocess.Popen(
        [*TDX, "list", "envs", "--all", "--format", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


@exhaustive
def test_interrupt_exits_with_130_and_prints_nothing(
    environ: dict[str, str], tmp_path: Path
) -> None:
    """Interrupt a command that waits for a pipeline file."""
    file = tmp_path / "pipeline"
    os.mkfifo(file)
    with (
        subprocess.Popen(
            [*TDX, "check", "--pipeline", str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
        ) as process,
        file.open("w"),
    ):
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (130, "", "")


def test_crash_of_an_env_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "crashing.py").write_text(
        "import signal\n"
        "from gymnasium.envs.classic_control import PendulumEnv\n"
        "class Crashing(PendulumEnv):\n"
        "    def step(self, action):\n"
        "        signal.raise_signal(signal.SIGSEGV)\n"
    )

    def before() -> None:
        sys.path.insert(0, str(tmp_path))
        # That of pytest writes elsewhere.
        faulthandler.disable()

    done = run(
        *("rollout", "crashing:Crashing", "--steps", "5", "--out", str(tmp_path / "dump")),
        "--allow-code",
        before=before,
    )
    assert done.code == -signal.SIGSEGV
    assert "Segmentation fault" in done.err
    assert 'crashing.py", line 5 in step' in done.err


def test_end_of_file_in_a_library_is_not_an_abort(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise EOFError("the pipe was closed")

    monkeypatch.setattr("tdx.rollouts.verify", fail)
    assert run_here(["verify", "dump"]) == 3
    assert "unexpected EOFError: the pipe was closed" in capsys.readouterr().err
