"""Child processes: their pipe, what they inherit, and why they ended."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tdx.foundation.processes import Child, ExitReason, FunctionChild, ProgramChild, kill_all
from tests.processes import all_ended

ANSWER = """
import os, sys
from multiprocessing.connection import Connection
pipe = Connection(int(sys.argv[1]))
print("it says", sys.argv[2], flush=True)
pipe.send((os.getsid(0) == os.getpid(), sys.path[:1]))
pipe.recv()
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
def children() -> Iterator[list[Child]]:
    """Children that are ended after the test."""
    started: list[Child] = []
    yield started
    kill_all(started)
    for child in started:
        child.connection.close()
    assert all_ended([child.pid for child in started])


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_function_inherits_environment_and_folder(
    children: list[Child], method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    children: list[Child], message: int, reason: str, hint: str | None
) -> None:
    child = FunctionChild(answer, ("",), name="a child", method="fork")
    children.append(child)
    child.connection.send(message)
    with pytest.raises(EOFError):
        child.connection.recv()
    assert str(child.exit_reason) == reason
    assert child.exit_reason.hint is None if hint is None else hint in str(child.exit_reason.hint)


def test_a_program_has_its_own_session_and_its_output_in_a_file(children: list[Child]) -> None:
    with tempfile.TemporaryFile() as output:
        child = ProgramChild(ANSWER, ["hello"], output=output, environ=os.environ)
        children.append(child)
        has_own_session, path = child.connection.recv()
        assert has_own_session
        assert path != [""]
        assert child.wait(0) is None
        child.kill()
        assert child.exit_reason == ExitReason(-signal.SIGKILL)
        output.seek(0)
        assert output.read() == b"it says hello\n"
