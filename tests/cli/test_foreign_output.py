"""Stdout holds the result and nothing else, whoever prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

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
