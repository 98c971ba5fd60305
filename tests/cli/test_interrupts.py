"""Ctrl-C at any time: exit code 130, at most one line of output, no remaining process."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.processes import start
from tests.processes import becomes_true
from tests.programs import exhaustive

TIMEOUT_SECONDS = 300.0
PARALLEL = ("--env", "CartPole-v1", "--num-envs", "2", "--batching", "parallel", "--t", "RewardSum")
LONG = ("--steps", "10000000")
COMMANDS = {
    "rollout": ("rollout", "--env", "Pendulum-v1", *LONG, "--out", "dump"),
    "rollout --shards": (
        *("rollout", "--env", "Pendulum-v1", "--shards", "4", "--workers", "2"),
        *(*LONG, "--out", "dump"),
    ),
    "check": ("check", *PARALLEL),
    "profile": ("profile", *PARALLEL, *LONG),
}
STUCK = """
import pathlib
import time


def make():
    pathlib.Path("waits").touch()
    while True:
        try:
            time.sleep(1000)
        except KeyboardInterrupt:
            pass
"""
STARTED = """
import pathlib

import gymnasium


def make():
    pathlib.Path("started").touch()
    return gymnasium.make("Pendulum-v1")
"""


class Interrupted:
    """Process of ``tdx`` in its own session, to be interrupted."""

    def __init__(self, arguments: tuple[str, ...]) -> None:
        reading, writing = os.pipe()
        self._streams = [os.memfd_create("out"), os.memfd_create("err")]

        def before() -> None:
            os.setsid()
            os.write(writing, b"x")

        self.pid = start(arguments, dict(enumerate(self._streams, 1)), before)
        os.close(writing)
        assert os.read(reading, 1) == b"x"
        os.close(reading)

    def wait(self, happened: Callable[[], bool]) -> None:
        """Wait until a condition holds."""
        limit = time.monotonic() + TIMEOUT_SECONDS
        while not happened():
            assert time.monotonic() < limit
            time.sleep(0.02)

    def wait_for_work(self, seconds: float) -> None:
        """Wait until the session has used an amount of processor time, or the command has ended."""
        self.wait(lambda: self.has_ended or self.processor_time() >= seconds)

    @property
    def has_ended(self) -> bool:
        """True if the command has ended; its process is not collected yet."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2][0] == "Z"

    def processor_time(self) -> float:
        """Return the processor time of all running processes of the session, in seconds."""
        ticks = sum(int(ticks) for line in self.others() for ticks in line.split()[13:15])
        return ticks / os.sysconf("SC_CLK_TCK")

    def press(self) -> tuple[int, str]:
        """Send SIGINT; return the exit code and stderr."""
        os.kill(self.pid, signal.SIGINT)
        status: list[int] = []

        def has_ended() -> bool:
            pid, found = os.waitpid(self.pid, os.WNOHANG)
            status.extend([found] if pid else [])
            return bool(pid)

        self.wait(has_ended)
        os.lseek(self._streams[1], 0, os.SEEK_SET)
        with open(self._streams[1], encoding="utf-8") as file:
            return os.waitstatus_to_exitcode(status[0]), file.read()

    def others(self) -> list[str]:
        """Return the lines in ``/proc`` of the running processes of the session."""
        return [line for line in _processes() if line.split()[5:6] == [str(self.pid)]]

    def end(self) -> None:
        """Kill the session after a failed test."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def _processes() -> Iterator[str]:
    """Yield the line in ``/proc`` of each process that is not a zombie."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            pid, _, rest = stat.read_text().partition(" (")
            name, _, numbers = rest.rpartition(") ")
            if not numbers.startswith("Z"):
                yield f"{pid} {name.replace(' ', '_')} {numbers}"


@pytest.fixture
def interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Interrupted]]:
    monkeypatch.chdir(tmp_path)
    processes: list[Interrupted] = []

    def start(*arguments: str) -> Interrupted:
        processes.append(Interrupted(arguments))
        return processes[-1]

    yield start
    for process in processes:
        process.end()


@pytest.mark.parametrize(
    ("command", "moment"),
    [
        ("rollout", 0.05),
        ("rollout --shards", 0.3),
        pytest.param("check", 0.9, marks=exhaustive),
        ("profile", 1.8),
    ],
)
def test_interrupt_at_any_time_exits_with_130(
    interrupted: Callable[..., Interrupted], command: str, moment: float
) -> None:
    process = interrupted(*COMMANDS[command])
    # Processor time of the command and its workers, in seconds: what it does in them depends on
    # the load.
    process.wait_for_work(moment)
    code, err = process.press()
    # The check may finish before the signal, which then ends the process at once.
    assert code == 130 or (command == "check" and code in (0, -signal.SIGINT))
    assert len(err.splitlines()) <= 1, err
    assert "Traceback" not in err
    # A worker that was still starting exits when it detects that its parent has exited.
    process.wait(lambda: process.others() == [])


@pytest.fixture
def without_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a command all the time that it needs to end after Ctrl-C."""
    monkeypatch.setattr("tdx.cli.runtime.GRACE_SECONDS", TIMEOUT_SECONDS)


@pytest.mark.usefixtures("without_haste")
def test_message_on_a_terminal_is_on_its_own_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(".")
    Path("started.py").write_text(STARTED)
    terminal, stderr = os.openpty()
    arguments = ("inspect", "values", "--env", "started:make", "--allow-code", *LONG)
    with open(os.devnull, "r+b") as nothing:
        child = start(arguments, {0: nothing.fileno(), 1: nothing.fileno(), 2: stderr}, os.setsid)
    os.close(stderr)
    assert becomes_true(Path("started").exists)
    os.kill(child, signal.SIGINT)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    assert os.read(terminal, 10_000).endswith(b"\r\x1b[Kinterrupted\r\n")
    os.close(terminal)


@pytest.mark.usefixtures("without_haste")
def test_interrupt_before_the_first_chunk_does_not_suggest_resume(
    interrupted: Callable[..., Interrupted], tmp_path: Path
) -> None:
    arguments = COMMANDS["rollout"]
    process = interrupted(*arguments, "--chunk", "5000000")
    process.wait((tmp_path / "dump").exists)
    code, err = process.press()
    assert code == 130
    assert err.startswith("interrupted before the first chunk; ")
    assert "--resume" not in err


def test_unresponsive_run_is_killed(
    interrupted: Callable[..., Interrupted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use an env that swallows Ctrl-C and continues."""
    Path("stuck.py").write_text(STUCK)
    monkeypatch.syspath_prepend(".")
    process = interrupted("check", "--env", "stuck:make", "--allow-code")
    process.wait(Path("waits").exists)
    assert process.press() == (130, "")
    assert process.others() == []
