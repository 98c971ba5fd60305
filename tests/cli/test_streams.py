"""Streams with other encodings, closed streams and full disks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tdx.cli.output import wrap_text
from tests.cli.processes import run
from tests.programs import exhaustive, require_program

ROOT = Path(__file__).parents[2]
SPEC = ("inspect", "spec", "--env", "Pendulum-v1", "--t", "StepCounter")
FULL = Path("/dev/full")

on_a_full_disk = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")


def tdx(
    *arguments: str, shell: str = "", program: str = "/bin/sh", **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run ``tdx`` from a shell with redirections."""
    command = [sys.executable, "-m", "tdx", *arguments]
    encoding = environ.get("PYTHONIOENCODING", "utf-8")
    options: dict[str, Any] = {"capture_output": True, "encoding": encoding, "check": False}
    return subprocess.run(
        [program, "-c", f'"$@" {shell}', "sh", *command],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        **options,
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_unencodable_characters_become_ascii(encoding: str) -> None:
    completed = run(*SPEC, encoding=encoding)
    assert (completed.code, completed.err) == (0, "")
    assert "-2 ... 2" in completed.out
    assert ">= 0" in completed.out


@exhaustive
def test_json_is_the_same_in_each_encoding(tmp_path: Path) -> None:
    file = tmp_path / "chain.yaml"
    file.write_text("version: 1\nenv: Pendülum-v1\n", encoding="utf-8")
    check = ("check", "--pipeline", str(file), "--format", "json")
    first, second = (json.loads(run(*check, encoding=name).err) for name in ("ascii", "utf-8"))
    assert first == second
    assert first["error"]["where"]["env"] == "Pendülum-v1"


@pytest.mark.parametrize(("shell", "code"), [(">&-", 2), ("2>&-", 2), (">&- 2>&-", 2), ("<&-", 2)])
@exhaustive
def test_closed_streams_do_not_change_the_exit_code(shell: str, code: int) -> None:
    done = tdx("show", "transform", "NoSuch", shell=shell)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


@exhaustive
def test_closed_stdout_discards_the_result() -> None:
    done = tdx("list", "transforms", shell=">&-")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@exhaustive
def test_closed_stdin_is_a_usage_error() -> None:
    done = tdx("check", "--pipeline", "-", shell="<&-")
    assert done.returncode == 2
    assert done.stderr.startswith("error: standard input is closed\nhint: ")


@pytest.mark.programs
@exhaustive
def test_reader_of_help_that_exits_is_not_an_error() -> None:
    done = tdx(
        "rollout",
        "--help",
        shell="| read -r -N 1; exit ${PIPESTATUS[0]}",
        program=require_program("bash"),
    )
    assert (done.returncode, done.stderr) == (0, "")


@on_a_full_disk
@pytest.mark.parametrize("arguments", [("list", "transforms"), ("schema",), ("--help",)])
@exhaustive
def test_full_disk_is_a_one_line_error(arguments: tuple[str, ...]) -> None:
    done = tdx(*arguments, shell="> /dev/full")
    assert done.returncode == 3
    assert done.stderr == (
        "error: cannot write to stdout: No space left on device\n"
        "hint: free some disk space, or redirect the output elsewhere\n"
    )


@on_a_full_disk
@pytest.mark.parametrize("unbuffered", ["", "1"])
@exhaustive
def test_unwritable_stderr_does_not_change_the_exit_code(
    unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    assert tdx("show", "transform", "NoSuch", shell="2> /dev/full").returncode == 2


def test_text_is_wrapped_for_a_dumb_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert max(map(len, wrap_text("word " * 40, 30))) <= 30
