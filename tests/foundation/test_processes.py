"""Child processes: their pipe, what they inherit, and why they ended."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tdx.foundation.processes import (
    ExitReason,
    ForkedChild,
    FunctionChild,
    ProgramChild,
    WarmProgram,
    kill_all,
)
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
WARM = """
import os, sys, threading, time
from tdx.foundation.processes import open_parent_pipe, serve_forks
program = '''
import os, sys
from tdx.foundation.processes import open_parent_pipe
pipe = open_parent_pipe()
pipe.send((os.getpid(), os.getppid(), os.getsid(0), sys.argv[1:], "started"))
os._exit(pipe.recv())
'''
def run():
    pipe = open_parent_pipe()
    pipe.send((os.getpid(), os.getppid(), os.getsid(0), sys.argv[1:], "forked"))
    os._exit(pipe.recv())
print("imported", flush=True)
how = sys.argv[1]
if how == "hangs":
    time.sleep(1000)
if how == "fails":
    sys.exit(5)
if how == "threads":
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
serve_forks(run, program)
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


class Finalized:
    """Object in a cycle whose finalizer writes a file, as a native library would free memory."""

    def __init__(self, file: Path) -> None:
        self.itself, self.file = self, file

    def __del__(self) -> None:
        self.file.touch()


def collect(pipe: Connection) -> None:
    """Collect garbage, and say so."""
    gc.collect()
    pipe.send("collected")


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


def test_a_fork_does_not_free_the_garbage_of_its_parent(
    children: list[FunctionChild], tmp_path: Path
) -> None:
    file = tmp_path / "finalized"
    gc.disable()
    try:
        Finalized(file)
        children.append(FunctionChild(collect, name="a child", method="fork"))
        assert children[0].connection.recv() == "collected"
        assert not file.exists()
    finally:
        gc.enable()
    gc.collect()
    assert file.exists()


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


class Forks:
    """Children of one warm process, with what they print."""

    def __init__(self, how: str) -> None:
        self.warm = WarmProgram(WARM, [how], environ=os.environ)
        self.children: list[ForkedChild] = []
        self.outputs: list[bytearray] = []
        self.started: list[str] = []

    def fork(self, name: str) -> ForkedChild:
        output = bytearray()
        child = ForkedChild(
            self.warm,
            [name],
            on_output=output.extend,
            on_start=lambda: self.started.append(name),
        )
        self.children.append(child)
        self.outputs.append(output)
        return child


@pytest.fixture
def make_forks() -> Iterator[Callable[[str], Forks]]:
    """Make warm processes, which are ended after the test with their forks."""
    made: list[Forks] = []

    def make(how: str) -> Forks:
        made.append(Forks(how))
        return made[-1]

    yield make
    for forks in made:
        forks.warm.kill()
        assert all_ended([child.pid for child in forks.children if child.pid])
        for child in forks.children:
            child.kill()
            child.connection.close()


@pytest.mark.parametrize(("how", "said"), [("imports", "forked"), ("threads", "started")])
def test_a_warm_program_starts_processes_and_reports_their_end(
    make_forks: Callable[[str], Forks], how: str, said: str
) -> None:
    forks = make_forks(how)
    parents = set()
    for name in ("one", "two"):
        child = forks.fork(name)
        pid, parent, session, arguments, kind = child.connection.recv()
        assert (pid, arguments, kind) == (child.pid, [how, name], said)
        assert session == pid
        parents.add(parent)
    one, two = forks.children
    assert len(parents) == 1
    assert forks.started == ["one", "two"]
    one.connection.send(7)
    assert one.wait() == 7
    assert two.wait(0) is None
    two.kill()
    assert two.exit_reason == ExitReason(-signal.SIGKILL)
    # What the imports print belongs to the process that waits for them.
    assert [bytes(output) for output in forks.outputs] == [b"imported\n", b""]


def test_a_killed_warm_program_ends_its_forks(make_forks: Callable[[str], Forks]) -> None:
    forks = make_forks("imports")
    child = forks.fork("one")
    child.connection.recv()
    assert not forks.warm.has_ended
    forks.warm.kill()
    assert forks.warm.has_ended
    assert child.wait() == -signal.SIGKILL
    assert all_ended([child.pid])


def test_a_fork_that_waits_for_an_import_is_killed_with_it(
    make_forks: Callable[[str], Forks],
) -> None:
    forks = make_forks("hangs")
    child = forks.fork("one")
    child.kill()
    assert forks.warm.has_ended
    assert (child.pid, child.exit_reason) == (0, ExitReason(-signal.SIGKILL))


def test_an_import_that_fails_is_the_exit_of_the_fork(make_forks: Callable[[str], Forks]) -> None:
    forks = make_forks("fails")
    child = forks.fork("one")
    with pytest.raises(EOFError):
        child.connection.recv()
    assert child.wait() == 5
    child.kill()
    assert forks.outputs[0] == b"imported\n"
    assert forks.started == []
