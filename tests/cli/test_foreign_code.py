"""What envs do to the process: print, exit, swallow Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tdx.cli.interrupts import foreign_code
from tdx.errors import EnvError

ROOT = Path(__file__).parents[2]

CHATTY = """
import ctypes
import os
import gymnasium

LIBC = ctypes.CDLL(None)

def make():
    print("from Python")
    os.system("echo from a child")
    LIBC.puts(b"from C")
    return gymnasium.make("Pendulum-v1")
"""


def test_sys_exit_in_an_env_is_an_error() -> None:
    with pytest.raises(EnvError, match=r"called sys.exit\(5\)"), foreign_code():
        sys.exit(5)


def test_an_interrupt_that_an_env_swallows_still_interrupts() -> None:
    with pytest.raises(KeyboardInterrupt), foreign_code(), suppress(BaseException):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_caller_stays_in_force() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        with foreign_code():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]


def test_what_an_env_prints_goes_to_stderr(tmp_path: Path) -> None:
    (tmp_path / "chatty.py").write_text(CHATTY)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tdx", "check", "--format", "json"),
            *("--env", "chatty:make", "--num-envs", "2", "--batching", "parallel", "--allow-code"),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"] is True
    for source in ("Python", "a child", "C"):
        assert f"from {source}\n" in done.stderr
