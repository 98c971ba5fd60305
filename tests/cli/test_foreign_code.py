"""Code of envs that prints, exits or ignores Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tdx.cli.runtime import third_party_code
from tdx.foundation.errors import EnvError
from tests.cli.processes import run
from tests.programs import exhaustive

ROOT = Path(__file__).parents[2]
CHATTY = """
import ctypes
import os
import gymnasium

LIBC = ctypes.CDLL(None)

def make():
    # One write: two workers print to one pipe.
    print("from Python\\n", end="")
    os.system("echo from a child")
    LIBC.puts(b"from C")
    # Workers that are forks exit without flushing the buffers of C.
    LIBC.fflush(None)
    return gymnasium.make("Pendulum-v1")
"""

NATIVE = """
import _imp
import os
import signal
import sys
import time
from importlib.machinery import ExtensionFileLoader, ModuleSpec

def initialize(spec):
    try:
        signal.raise_signal(signal.SIGINT)
        print("initialized", file=sys.stderr)
    except BaseException:
        os.abort()

_imp.create_dynamic = initialize
loader = ExtensionFileLoader("native", "native.so")
loader.create_module(ModuleSpec("native", loader))
try:
    while True:
        time.sleep(0.01)
finally:
    print("interrupted afterwards", file=sys.stderr)
"""
"""An extension module that, like those of C++, does not survive an exception while it starts."""
SLOW_EXIT = """
import atexit
import signal
import gymnasium

def make():
    atexit.register(signal.raise_signal, signal.SIGINT)
    return gymnasium.make("Pendulum-v1")
"""


def test_sys_exit_in_an_env_is_an_error() -> None:
    with pytest.raises(EnvError, match=r"called sys.exit\(5\)"), third_party_code():
        sys.exit(5)


def test_swallowed_interrupt_is_raised_again() -> None:
    with pytest.raises(KeyboardInterrupt), third_party_code(), suppress(BaseException):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_signal_handler_of_the_caller_is_kept() -> None:
    signals: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: signals.append(number))
    try:
        with third_party_code():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert signals == [signal.SIGINT]


def test_output_of_an_env_goes_to_stderr(tmp_path: Path) -> None:
    (tmp_path / "chatty.py").write_text(CHATTY)
    completed = run(
        *("check", "--format", "json", "--env", "chatty:make", "--num-envs", "2"),
        *("--batching", "parallel", "--allow-code"),
        before=lambda: sys.path.insert(0, str(tmp_path)),
    )
    assert completed.code == 0, completed.err
    assert json.loads(completed.out)["ok"] is True
    for source in ("Python", "a child", "C"):
        assert f"from {source}\n" in completed.err


def test_output_of_a_worker_that_exits_without_flushing_is_shown(tmp_path: Path) -> None:
    """As is one that is killed since it closes slowly."""
    (tmp_path / "quits.py").write_text(
        "import os\ndef make():\n    print('last words')\n    os._exit(3)\n"
    )
    completed = run(
        *("check", "--env", "quits:make", "--num-envs", "2"),
        *("--batching", "parallel", "--allow-code"),
        before=lambda: sys.path.insert(0, str(tmp_path)),
    )
    assert completed.code == 3
    assert "last words\n" in completed.err


def test_ctrl_c_waits_for_the_initialization_of_an_extension_module(tmp_path: Path) -> None:
    (tmp_path / "slow_import.py").write_text(NATIVE)
    completed = run(
        *("check", "--env", "slow_import:make", "--allow-code"),
        before=lambda: sys.path.insert(0, str(tmp_path)),
    )
    assert completed.code == 130
    assert completed.err == "initialized\ninterrupted afterwards\n"


def run_process(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run ``tdx`` in a process of its own, for what happens when it exits."""
    return subprocess.run(
        [sys.executable, "-m", "tdx", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"},
        capture_output=True,
        text=True,
    )


@exhaustive
def test_ctrl_c_after_the_result_ends_the_process(tmp_path: Path) -> None:
    """Interrupt a callback at exit: Python ignores the exceptions of callbacks."""
    (tmp_path / "slow_exit.py").write_text(SLOW_EXIT)
    done = run_process("check", "--env", "slow_exit:make", "--allow-code", folder=tmp_path)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
    assert "all checks passed" in done.stdout


@exhaustive
def test_objects_of_an_env_are_released_at_exit(tmp_path: Path) -> None:
    """ale-py lists what is left of its objects when the process ends."""
    pytest.importorskip("ale_py")
    done = run_process("inspect", "values", "ALE/Pong-v5", "--steps", "10", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
