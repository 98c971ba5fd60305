"""Profiles that are interrupted or fail show the measurements so far."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tdx.cli.process import run
from tdx.profiling.saved import read_profile
from tests.cli.processes import run as in_a_process
from tests.profiling.sample_profile import sample_profile

if TYPE_CHECKING:
    from tests.cli.conftest import Tdx

ENVS = """
import os, signal
import gymnasium

class Ending(gymnasium.Wrapper):
    made = 0

    def step(self, action):
        self.made += 1
        return self.ended(*super().step(action))

class Failing(Ending):
    def ended(self, *step):
        if self.made > 25:
            raise RuntimeError("the motor broke")
        return step

class FailingAtOnce(Ending):
    def ended(self, *step):
        raise RuntimeError("no motor")

class Interrupted(Ending):
    def ended(self, *step):
        if self.made == 25:
            os.kill(os.getpid(), signal.SIGINT)
        return step

class Short(Ending):
    def ended(self, observation, reward, terminated, truncated, info):
        return observation, reward, True, truncated, info

def of(kind):
    return lambda: kind(gymnasium.make("Pendulum-v1"))

failing, failing_at_once, interrupted, short = map(of, [Failing, FailingAtOnce, Interrupted, Short])
"""
SHORT = ("--allow-code", "--steps", "10", "--warmup", "0", "--repeat", "4", "--passes", "none")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "ending_envs.py").write_text(ENVS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("mode", ["eager", "planned"])
def test_env_error_shows_the_rows_so_far(tdx: Tdx, folder: Path, mode: str) -> None:
    found = tdx("profile", "--env", "ending_envs:failing", *SHORT, "--mode", mode)
    assert found.code == 3
    assert "env " in found.out
    assert "incomplete: " in found.out
    assert "the motor broke" in found.err
    assert found.err.count("\n") == 2
    as_json = tdx(
        *("profile", "--env", "ending_envs:failing", *SHORT, "--mode", mode, "--format", "json")
    )
    assert json.loads(as_json.out)["modes"][0]["error"]
    assert json.loads(as_json.err)["error"]["exit_code"] == 3


def test_env_error_in_the_first_step_writes_an_empty_profile(tdx: Tdx, folder: Path) -> None:
    found = tdx("profile", "--env", "ending_envs:failing_at_once", *SHORT, "--save", "p.json")
    assert found.code == 3
    assert "no steps" in found.out
    assert "no motor" in found.err
    assert read_profile("p.json").modes[0].error is not None
    for kind in ("html", "trace", "speedscope"):
        again = tdx(
            *("profile", "--env", "ending_envs:failing_at_once", *SHORT, f"--{kind}", f"p.{kind}")
        )
        assert again.code == 3
        assert (folder / f"p.{kind}").exists()


def test_recorded_trace_is_read_back_by_stage(tdx: Tdx, folder: Path) -> None:
    recorded = ("--record-trace", "run.json.gz", "--passes", "none")
    short = ("--steps", "10", "--warmup", "0", "--repeat", "1")
    shown = tdx("profile", "Pendulum-v1", "-t", "RewardSum", *short, *recorded)
    assert shown.code == 0
    assert shown.err.endswith("wrote run.json.gz\n")
    trace = json.loads(tdx("profile", "--trace", "run.json.gz", "--format", "json").out)
    ranges = {each["label"]: each for each in trace["ranges"]}
    assert ranges["env Pendulum-v1 step"]["calls"] == 10
    assert ranges["0 RewardSum forward"]["host_us"] > 0
    table = tdx("profile", "--trace", "run.json.gz").out
    assert "0 RewardSum forward" in table
    assert "the trace has no work of a device" in table
    again = tdx("profile", "Pendulum-v1", *short, *recorded)
    assert (again.code, "run.json.gz already exists" in again.err) == (2, True)
    modes = tdx("profile", "Pendulum-v1", *short, *recorded, "--force", "--mode", "all")
    assert (modes.code, "a trace is recorded in one mode" in modes.err) == (2, True)
    failing = ("profile", "--env", "ending_envs:failing_at_once", *SHORT)
    failed = tdx(*failing, "--record-trace", "failed.json")
    assert (failed.code, "wrote" in failed.err) == (3, False)
    assert not (folder / "failed.json").exists()


def test_profile_of_episodes_with_one_step(tdx: Tdx, folder: Path) -> None:
    found = tdx(
        "profile", "--env", "ending_envs:short", *SHORT, "--format", "json", "--mode", "all"
    )
    assert found.code == 0, found.err
    for mode in json.loads(found.out)["modes"]:
        assert mode["steps"] == [10] * 4
        resets = [
            row["n"]
            for row in mode["rows"]
            if (row["part"]["work"], row["lane"]) == ("env", "reset")
        ]
        assert max(resets) >= 40


def test_interrupt_shows_the_rows_so_far(tdx: Tdx, folder: Path) -> None:
    found = tdx("profile", "--env", "ending_envs:interrupted", *SHORT, "--mode", "eager,planned")
    assert found.code == 130
    assert "env " in found.out
    assert "whole step" in found.out
    assert "interrupted" in found.err


def test_interrupted_process_exits_with_130(folder: Path) -> None:
    done = in_a_process("profile", "--env", "ending_envs:interrupted", *SHORT)
    assert done.code == 130
    assert "whole step" in done.out
    assert done.err == "interrupted: showing the measurements so far\n"


def test_closed_pipe_is_not_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("tdx.profiling.run.profile_env", lambda *_: sample_profile())
    monkeypatch.setattr("sys.stdout", Closed())
    assert run(("profile", "--env", "Pendulum-v1", *SHORT)) == 0
    assert capsys.readouterr().err == ""
