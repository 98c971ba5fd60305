"""Modules in the current folder, beside a pipeline: no command and no process imports them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import exhaustive

MODULES = (
    *("_pickle", "copyreg", "ctypes", "json", "logging", "multiprocessing", "pickle", "random"),
    *("runpy", "selectors", "signal", "socket", "struct", "tempfile", "threading", "typing"),
    *(
        "cloudpickle",
        "gymnasium",
        "numpy",
        "rich",
        "sitecustomize",
        "submitit",
        "tdx",
        "tensordict",
    ),
    *("textual", "torch", "typer"),
)
"""Modules of Python, of dependencies and of tdx that a child process imports."""
PIPELINE = """
version: 1
env:
  id: CartPole-v1
  num_envs: 2
  batching: parallel
transforms:
  - StepCounter
"""
LAUNCHER = "from tdx.cli import main\nif __name__ == '__main__':\n    main()\n"
"""What the console script does: ``python LAUNCHER`` has the folder of the script on its path."""
LIBRARY = """
import subprocess, sys
import gymnasium
from tdx.cli import main
def make():
    subprocess.run([sys.executable, "-c", "import ctypes"], check=True)
    return gymnasium.make("CartPole-v1")
if __name__ == "__main__":
    gymnasium.register("Library-v0", make)
    main()
"""
START_WORKER = """
import threading
from tdx.tui.backend.process import WorkerProcess
ended = threading.Event()
worker = WorkerProcess(print, ended.set)
worker.start()
worker.kill() if ended.wait(3.0) else None
worker.kill()
"""
SUBMIT = """
import sys
from tdx.engines import SlurmEngine
from tdx.rollouts.recording.shards import ShardJob
class Job:
    noun, log_folder = "task", "logs"
    def __call__(self, task):
        return task
if __name__ == "__main__":
    engine = SlurmEngine(Job(), cluster="local")
    engine.submit([0])
    while not (results := engine.collect(60.0)):
        pass
    print(results)
"""
ASYNC = """
import multiprocessing
import gymnasium
from tdx import GymEnv
if __name__ == "__main__":
    multiprocessing.set_start_method("forkserver")
    env = GymEnv("CartPole-v1", num_envs=2, vectorization_mode="async")
    print(env.rollout(2).shape)
    env.close()
"""
COMMANDS = (
    ("rollout", "p.yaml", "--steps", "4", "--shards", "1", "--out", "dump"),
    ("doctor",),
)
"""Each starts processes: the first workers of a shard and of an env, the other probes."""
CODE = (("makers.py:make", "parallel"), ("makers:make", "serial"))
FACTORY = """
import gymnasium
import neighbor
def make():
    return gymnasium.make(neighbor.ID)
"""


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Return a folder with a pipeline and modules that write their names into a file."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in MODULES:
        marker = tmp_path / "imported"
        (folder / f"{name}.py").write_text(f"open({str(marker)!r}, 'a').write('{name} ')\n")
    (folder / "p.yaml").write_text(PIPELINE)
    return folder


def start(hostile: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of another folder in the hostile one, and check that nothing was imported."""
    script = hostile.parent / "script" / "launch.py"
    script.parent.mkdir(exist_ok=True)
    script.write_text(program)
    completed = subprocess.run(
        [sys.executable, str(script), *arguments],
        cwd=hostile,
        capture_output=True,
        text=True,
        check=False,
    )
    marker = hostile.parent / "imported"
    assert not marker.exists(), marker.read_text()
    return completed


@pytest.mark.parametrize(
    "arguments",
    COMMANDS,
    ids=lambda arguments: arguments[0],
)
@exhaustive
def test_commands_import_nothing_from_the_current_folder(
    hostile: Path, arguments: tuple[str, ...]
) -> None:
    completed = start(hostile, LAUNCHER, *arguments)
    assert completed.returncode == 0, completed.stdout + completed.stderr


@exhaustive
def test_processes_of_a_library_import_nothing_from_the_current_folder(hostile: Path) -> None:
    completed = start(hostile, LIBRARY, "inspect", "spec", "Library-v0")
    assert completed.returncode == 0, completed.stdout + completed.stderr


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(START_WORKER, id="app"),
        pytest.param(SUBMIT, id="slurm", marks=exhaustive),
        pytest.param(ASYNC, id="async", marks=exhaustive),
    ],
)
def test_processes_import_nothing_from_the_current_folder(hostile: Path, program: str) -> None:
    completed = start(hostile, program)
    assert completed.returncode == 0, completed.stdout + completed.stderr


@exhaustive
def test_served_app_imports_nothing_from_the_current_folder(
    hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = pytest.importorskip("tdx.tui.serving.serve")
    monkeypatch.chdir(hostile)
    completed = subprocess.run(serve.app_command(["--help"]), capture_output=True, check=False)
    assert completed.returncode == 0, completed.stderr
    assert not (hostile.parent / "imported").exists()


@exhaustive
@pytest.mark.parametrize(("reference", "batching"), CODE)
def test_allowed_code_of_the_current_folder_runs_in_workers(
    hostile: Path, reference: str, batching: str
) -> None:
    (hostile / "makers.py").write_text(FACTORY)
    (hostile / "neighbor.py").write_text("ID = 'CartPole-v1'\n")
    pipeline = PIPELINE.replace("CartPole-v1", reference).replace("parallel", batching)
    (hostile / "p.yaml").write_text(pipeline)
    completed = start(hostile, LAUNCHER, "check", "p.yaml", "--allow-code")
    assert completed.returncode == 0, completed.stdout + completed.stderr
