"""The whole app in a terminal with bad input: reported, and the app survives."""

from __future__ import annotations

import os
import resource
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.processes import all_ended, becomes_true, family
from tests.programs import exhaustive
from tests.tui.bad_envs import NAME
from tests.tui.tmux import Terminal, terminal

ROOT = Path(__file__).parents[2]
Mood = Callable[[str], object]
BAD = "tests.tui.bad_envs"
CHAIN = "version: 1\nenv: Pendulum-v1  # mine\ntransforms:\n  - RewardSum\n"


@pytest.fixture
def mood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mood:
    """Return a function that sets the next fault of the env."""
    file = tmp_path / "mood"
    file.write_text("")
    monkeypatch.setenv("TDX_STATE_DIR", str(tmp_path / "kept"))
    return file.write_text


def bad_env(folder: Path, *stages: str) -> list[str]:
    """Return the arguments that open the app with the faulty env."""
    kwargs = f"mood={str(folder / 'mood')!r}"
    given = ["tui", "--allow-code", "--env", f"{BAD}:Bad", "--env-kwargs", kwargs]
    return [*given, *(word for stage in stages for word in ("--t", stage))]


def resize(app: Terminal, columns: int, rows: int) -> None:
    """Resize the terminal."""
    app.tmux("resize-window", "-x", str(columns), "-y", str(rows))


def rewrite(file: Path, text: str) -> None:
    """Replace a file atomically, as an editor does; a partial file would be another change."""
    other = file.with_name("other")
    other.write_text(text)
    other.replace(file)


def workers(app: Terminal) -> list[int]:
    """Return the process IDs of the workers, which one process of the app forks."""
    return family(app.pid)[2:]


def new_worker(app: Terminal, before: list[int]) -> int:
    """Wait for a new worker; return its process ID."""
    assert becomes_true(lambda: bool(set(workers(app)) - set(before)))
    return next(iter(set(workers(app)) - set(before)))


@exhaustive
def test_rollout_survives_failing_envs_and_stages(tmp_path: Path, mood: Mood) -> None:
    stage = f"{BAD}:FailsLate(at=1001)"
    with terminal(*bad_env(tmp_path, stage), folder=tmp_path) as app:
        app.sees("6 keys")
        # A stage that fails at step 1,000: the earlier traces remain.
        app.press("3")
        app.sees("paused · step 0")
        app.press(*"+++++++")
        app.sees("full speed")
        app.press("Space")
        app.sees(
            "0 FailsLate, reward", "it raised ValueError in", "step 1000:", f"{NAME} overflows"
        )
        app.press("Left", "Left")
        app.sees("reward@0", gone="◉ live")
        # An env that raises, prints a lot, and returns nan: the session continues after each.
        mood("raise step")
        app.press("s")
        app.sees("the env raised ValueError", f"{NAME} is stuck")
        mood("print step")
        app.press("s")
        app.sees("paused · step 1,001", gone="is stuck")
        assert "NOISE" not in app.screen()
        mood("nan step")
        app.press("s")
        app.sees("it holds nan after a step")
        mood("inf step")
        app.press("s")
        app.sees("it holds inf after a step", "-inf")
        # A crash; `test_live_worker.py` has a hanging and a killed worker.
        mood("crash step")
        app.press("s")
        app.sees("the worker process crashed with SIGSEGV")
        mood("")
        app.press("r")
        app.sees("paused · step 0", gone="SIGSEGV")


@exhaustive
def test_env_that_cannot_be_created_and_workers_that_are_killed(tmp_path: Path, mood: Mood) -> None:
    mood("hang made")
    with terminal(*bad_env(tmp_path, "RewardSum"), folder=tmp_path) as app:
        app.sees("inspecting for", "Ctrl+K kills the worker")
        app.press("C-k")
        app.sees("cancelled", "press Ctrl+K to inspect the chain again")
        mood("exit made")
        app.press("C-k")
        app.sees("the worker process exited with code 3", "F12 shows the output; press Ctrl+K")
        app.press("F12")
        app.sees("Problems", "the simulator gave up")
        app.press("q")
        mood("raise made")
        app.press("C-k")
        app.sees("Bad() raised ValueError", f"{NAME} is stuck", gone="Problems")
        mood("")
        app.press("C-k")
        app.sees("8 keys", gone="Bad() raised")
        # A worker that is killed while idle is restarted.
        assert becomes_true(lambda: len(workers(app)) == 1)
        before = workers(app)
        os.kill(before[0], signal.SIGKILL)
        new_worker(app, before)
        app.sees("8 keys")
        # A worker that is killed while it measures.
        mood("slow step")
        app.press("4")
        app.sees("r measure")
        before = workers(app)
        app.press("r")
        measuring = new_worker(app, before)
        app.sees("Stop")
        os.kill(measuring, signal.SIGKILL)
        app.sees("killed by SIGKILL", "Run", gone="Stop")


@pytest.mark.skipif(find_spec("miniworld") is not None, reason="miniworld is installed")
@exhaustive
def test_invalid_settings_changing_files_and_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").write_text("theme = [\n")
    (tmp_path / "kept").write_text("no folder")
    monkeypatch.setenv("TDX_STATE_DIR", str(tmp_path / "kept"))
    file = tmp_path / "[red]ü[b.yaml"
    file.write_text(
        "version: 1\nenv: MiniWorld-Hallway-v0\ntransforms:\n  - RewardSun\n  - RewardSum\n"
    )
    # Line breaks of a notice depend on the path: search for one word of each.
    with terminal("tui", str(file), folder=tmp_path) as app:
        app.sees("TOML:", file.name)  # notices may disappear before the chain is inspected
        app.sees("unknown transform Rewa")
        app.sees("pip install miniworld")
        # The file on disk is replaced; then it is invalid, deleted, and a folder.
        rewrite(file, CHAIN)
        app.sees(f"{file.name} changed on disk")
        app.press("r")
        app.sees("autosave failed", "directory")
        app.sees("◆ Pendulum-v1", "8 keys", gone="RewardSun")
        rewrite(file, "env: [")
        app.sees("changed on disk")
        app.press("r")
        app.sees("Not reloaded", "not YAML", "◆ Pendulum-v1")
        file.unlink()
        app.sees("was deleted")
        file.mkdir()
        app.sees("changed on disk")
        app.press("Escape")
        app.sees("8 keys", gone="changed on disk")
        file.rmdir()
        # A full disk is reported in one line, and the edits are kept.
        app.press("Down", "c")
        app.sees("1 RewardSum")
        space = resource.prlimit(app.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        app.press("C-s")
        assert "autosave has kept" not in app.sees("Not saved", "large")
        assert not file.exists()
        resource.prlimit(app.pid, resource.RLIMIT_FSIZE, space)
        app.press("C-s")
        app.sees("saved [red]")
    assert file.read_text().count("- RewardSum") == 2


@exhaustive
def test_terminals_of_any_size_with_an_env_of_many_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TDX_STATE_DIR", str(tmp_path / "kept"))
    arguments = ["tui", "--allow-code", "--env", f"{BAD}:Huge", "--t", "RewardSum"]
    with terminal(*arguments, folder=tmp_path, size=(40, 10)) as app:
        app.sees("tdx needs 60×16", "this", "terminal has 40×10")
        resize(app, 120, 40)
        app.sees("310 keys", "⏎ edit")  # the chain has the focus
        app.press("2")
        app.sees("sensor_0", "only changes")
        app.press("/")
        app.sees("search keys")
        app.type("ключ")
        app.sees(NAME)
        app.press("Enter")
        app.sees(f"lineage of {NAME}", "only changes")
        app.press("3")
        app.sees("paused · step 0", "sensor_0@0")
        resize(app, 60, 16)
        app.press("Space")
        for columns in range(1, 160, 12):
            resize(app, columns, columns % 47 + 1)
        resize(app, 60, 24)
        app.sees("◆ tests.tui", "pause")
        resize(app, 1, 1)
        resize(app, 120, 40)
        app.sees("values", "plots", "sensor_0@0")
        kin = family(app.pid)
        app.close()
        assert all_ended(kin)


@pytest.mark.programs
@exhaustive
def test_without_a_terminal_the_headless_command_is_named(tmp_path: Path) -> None:
    (tmp_path / "garbage.yaml").write_text("env: [")

    def called(*arguments: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "tdx", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout, done.stderr

    code, out, err = called("tui", "garbage.yaml")
    assert (code, out) == (2, "")
    assert "hint: without one: tdx inspect spec --stages garbage.yaml\n" in err
    code, out, err = called()
    assert "Usage: tdx" in out
    call = shlex.join(["TERM=dumb", f"PYTHONPATH={ROOT}", sys.executable, "-m", "tdx", "tui"])
    then = f"echo ended: $?; env {call}; echo then: $?; sleep 100"
    with terminal("tui", "garbage.yaml", folder=tmp_path, then=then) as app:
        app.sees("error: garbage.yaml:1", "not YAML", "ended: 2")
        app.sees("needs a terminal, and TERM is dumb", "then: 2")
