"""Ctrl-C and the exit of the parent process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.processes import PATIENCE, becomes_true, session_members
from tests.programs import exhaustive

ROOT = Path(__file__).parents[3]

PROGRAM = """
import os
import sys
from functools import partial

from tdx.envs.batched import ParallelEnv
from tests.envs.mocks import FaultyEnv


class HangingEnv(FaultyEnv):
    def _go_wrong(self, prefix):
        if self.fault == f"{prefix}hang":
            os.write(1, b"hangs\\n")  # at once: two workers share the stream
        super()._go_wrong(prefix)


def main():
    fault, at, method = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    print("imported", flush=True)
    if method == "both":
        others = ParallelEnv(2, partial(HangingEnv, "none", 0))
        others.rollout(3)
        method = "fork"
    env = ParallelEnv(2, partial(HangingEnv, fault, at), mp_start_method=method)
    print("made", flush=True)
    while True:
        env.rollout(3)
        print("played", flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts the program in a new session and waits for a word."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    running: list[subprocess.Popen[str]] = []

    def run(
        word: str, *, fault: str = "none", at: int = 2, method: str = "forkserver"
    ) -> subprocess.Popen[str]:
        program = subprocess.Popen(
            [sys.executable, str(script), fault, str(at), method],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        running.append(program)
        assert program.stdout is not None
        while (line := program.stdout.readline()).strip() != word:
            if not line:
                pytest.fail(f"the program ended: {program.communicate()[1]}")
        return program

    yield run
    for program in running:
        for pid in session_members(program.pid):
            os.kill(pid, signal.SIGKILL)
        program.communicate()


def interrupt(program: subprocess.Popen[str]) -> tuple[int, str]:
    """Send SIGINT to every process of the session; return the exit code and stderr."""
    os.killpg(program.pid, signal.SIGINT)
    _, stderr = program.communicate(timeout=PATIENCE)
    return program.returncode, stderr


def nothing_runs(program: subprocess.Popen[str]) -> bool:
    return becomes_true(lambda: not session_members(program.pid))


@exhaustive
def test_ctrl_c_in_a_rollout_ends_all_processes_without_traceback(start: Start) -> None:
    program = start("played")
    assert interrupt(program) == (130, "")
    assert nothing_runs(program)


@pytest.mark.parametrize(
    "processes", [pytest.param(2, marks=exhaustive), 3, pytest.param(5, marks=exhaustive)]
)
def test_ctrl_c_while_the_workers_start(start: Start, processes: int) -> None:
    """The program starts the resource tracker, the fork server and two workers."""
    program = start("imported")
    assert becomes_true(lambda: len(session_members(program.pid)) >= processes)
    assert interrupt(program) == (130, "")
    assert nothing_runs(program)


@exhaustive
def test_ctrl_c_while_a_forked_worker_hangs(start: Start) -> None:
    program = start("hangs", fault="hang", method="fork")
    assert interrupt(program) == (130, "")
    assert nothing_runs(program)


@exhaustive
def test_workers_end_with_a_parent_that_is_killed(start: Start) -> None:
    """Workers of the fork server that wait, and forked ones of which one hangs."""
    program = start("hangs", fault="hang", method="both")
    assert len(session_members(program.pid)) >= 5
    program.kill()
    assert nothing_runs(program)


ATTACHING = """
import os
import sys
import time
from functools import partial
from pathlib import Path

import torch

from tdx.envs.batched import protocol
from tdx.envs.batched.env_creator import create_env_factories
from tdx.envs.batched.shared_memory import Field, TensorBlock
from tdx.envs.batched.worker_pool import ProcessOptions, WorkerPool
from tests.envs.mocks import FaultyEnv

folder = Path(sys.argv[1])


class Slow:
    def __reduce__(self):
        return rebuild, (folder,)


def rebuild(folder):
    (folder / "attaching").touch()
    while not (folder / "interrupted").exists():
        time.sleep(0.001)
    (folder / "attached").touch()
    return TensorBlock({"": Field(torch.Size((1,)), torch.uint8)})


def main():
    factories = create_env_factories(1, partial(FaultyEnv, "none", 0), None)
    pool = WorkerPool(factories, [range(1)], ProcessOptions("forkserver", 1, True, None, 1.0))
    print("made", flush=True)
    pool.attach(protocol.MEMORY, {0: Slow()})


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
"""


@exhaustive
def test_ctrl_c_waits_for_a_worker_that_receives_its_memory(tmp_path: Path) -> None:
    """A worker that is killed then makes a thread of the parent print a traceback."""
    script = tmp_path / "attaching.py"
    script.write_text(ATTACHING)
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        assert becomes_true((tmp_path / "attaching").exists)
        os.killpg(program.pid, signal.SIGINT)
        # The interrupt has arrived when it is no longer pending; nothing else shows it.
        time.sleep(0.3)
        (tmp_path / "interrupted").touch()
        _, stderr = program.communicate(timeout=PATIENCE)
    assert (program.returncode, stderr) == (130, "")
    assert (tmp_path / "attached").exists()
