"""Code of envs that prints, exits or ignores Ctrl-C."""

from __future__ import annotations

import json
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tdx.cli import runtime
from tdx.cli.runtime import third_party_code
from tdx.errors import EnvError
from tests.cli.processes import run

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

COLLECTING = """
import gc
import sys
import gymnasium

def make():
    print("collects after", gc.get_threshold()[0], gc.get_freeze_count() > 50_000, file=sys.stderr)
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


def test_garbage_is_collected_as_usual_once_everything_is_imported(tmp_path: Path) -> None:
    (tmp_path / "collecting.py").write_text(COLLECTING)
    completed = run(
        *("inspect", "spec", "--env", "collecting:make", "--allow-code"),
        before=lambda: sys.path.insert(0, str(tmp_path)),
    )
    assert completed.code == 0, completed.err
    shown = {line for line in completed.err.splitlines() if line.startswith("collects")}
    assert shown == {f"collects after {runtime._USUAL_THRESHOLDS[0]} True"}
