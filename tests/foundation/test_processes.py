"""Child processes: their pipe, what they inherit, and why they ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tdx.foundation.processes import ExitReason, FunctionChild, ProgramChild, kill_all
from tests.processes import all_ended

ANSWER = """
import os, subprocess, sys
from tdx.foundation.processes import open_parent_pipe
os.write(1, b"printed at start-up\\n")
pipe = open_parent_pipe()
print("it says", sys.argv[1], flush=True)
inner = "import sys; sys.stdin.read(); print('a child says'); print('this too', file=sys.stderr)"
subprocess.run([sys.executable, "-c", inner])
while True:
    pipe.send((os.getsid(0) == os.getpid(), sys.path[:1], pipe.recv()))
"""


def answer(pipe: Connection, suffix: str) -> None:
    """Answer with what the process inherited, until the message is an exit code or a signal."""
    while True:
        message = pipe.recv()
        if isinstance(message, signal.Signals):
            os.kill(os.getpid(), message)
        if isinstance(message, int):
            os._exit(message)
        pipe.send((message + suffix, os.environ.get("TDX_TEST"), os.getcwd()))


@pytest.fixture
def children() -> Iterator[list[FunctionChild]]:
    """Children that are ended after the test."""
    started: list[FunctionChild] = []
    yield started
    kill_all(started)
    for child in started:
        child.connection.close()
    assert all_ended([child.pid for child in started])


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_function_inherits_environment_and_folder(
    children: list[FunctionChild], method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        # The fork server keeps those of the first child.
        monkeypatch.setenv("TDX_TEST", name)
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        child = FunctionChild(answer, ("!",), name=name, method=method, siblings=children)
        children.append(child)
        child.connection.send("hello")
        assert child.connection.recv() == ("hello!", name, str(folder))


@pytest.mark.parametrize(
    ("message", "reason", "hint"),
    [
        (0, "exited", None),
        (7, "exited with code 7", None),
        (signal.SIGKILL, "was killed by SIGKILL", "memory runs out"),
    ],
)
def test_the_reason_of_an_exit_is_named(
    children: list[FunctionChild], message: int, reason: str, hint: str | None
) -> None:
    child = FunctionChild(answer, ("",), name="a child", method="fork")
    children.append(child)
    child.connection.send(message)
    with pytest.raises(EOFError):
        child.connection.recv()
    assert str(child.exit_reason) == reason
    assert child.exit_reason.hint is None if hint is None else hint in str(child.exit_reason.hint)


def test_a_program_has_its_own_session_and_its_output_is_captured() -> None:
    output = bytearray()
    child = ProgramChild(ANSWER, ["hello"], on_output=output.extend, environ=os.environ)
    large = b"message" * 100_000
    child.connection.send(large)
    has_own_session, path, echoed = child.connection.recv()
    assert has_own_session
    assert path != [""]
    assert echoed == large
    assert child.wait(0) is None
    child.kill()
    assert child.exit_reason == ExitReason(-signal.SIGKILL)
    lines = ["printed at start-up", "it says hello", "a child says", "this too"]
    assert sorted(output.decode().splitlines()) == sorted(lines)
    with pytest.raises(EOFError):
        child.connection.recv()
    child.connection.close()
    with pytest.raises(BrokenPipeError):
        child.connection.send("nobody receives it")
    assert all_ended([child.pid])
