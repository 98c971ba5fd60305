"""Errors: one line, a hint and an exit code."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control.pendulum import PendulumEnv

from tdx.foundation.errors import EnvError

if TYPE_CHECKING:
    from tests.cli.conftest import Tdx

SPEC = ("inspect", "spec")
PENDULUM = (*SPEC, "--env", "Pendulum-v1")


@pytest.mark.parametrize(
    ("arguments", "code", "message", "hint"),
    [
        (("inspekt",), 2, "no such command: tdx inspekt", "inspect?"),
        (("list", "transform"), 2, "no such command: tdx list transform", "transforms?"),
        (("compare", "a.yaml", "b.yaml"), 2, "no such command: tdx compare", "diff?"),
        (("contract", "compare"), 2, "no such command: tdx contract compare", "diff?"),
        (("frobnicate",), 2, "no such command", "inspect, diff, report"),
        ((*SPEC, "--envv", "x"), 2, "no such option: --envv", "--env"),
        ((*SPEC, "--env"), 2, "requires an argument", "write the value after the option"),
        ((*SPEC, "chain.yaml"), 2, "cannot read chain.yaml", "standard input"),
        ((*PENDULUM, "Pendulum-v1"), 2, "cannot be combined", "remove"),
        ((*SPEC, "Pendulum-v1", "RewardSum"), 2, "unexpected extra argument", "-t RewardSum"),
        (("schema", "extra"), 2, "unexpected extra argument", "--help"),
        (("list", "envs", "--format", "jsno"), 2, "invalid value 'jsno' for --format", "json"),
        (("list", "envs", "--color", "alway"), 2, "invalid value 'alway' for --color", "always?"),
        (
            (*PENDULUM, "--batching", "serail"),
            2,
            "invalid value 'serail' for --batching",
            "serial?",
        ),
        (
            (*PENDULUM, "--num-envs", "two"),
            2,
            "--num-envs must be an integer of at least 1",
            "",
        ),
        ((*PENDULUM, "--num-envs", "0"), 2, "integer of at least 1", "--help"),
        (SPEC, 2, "no env is given", "tdx list envs"),
        ((*PENDULUM, "--pipeline", "x.yaml"), 2, "cannot be combined", "remove one"),
        ((*SPEC, "--pipeline", "missing.yaml"), 2, "missing.yaml", ""),
        ((*PENDULUM, "--env-kwargs", "[1"), 2, "--env-kwargs", "--env-kwargs '{"),
        ((*PENDULUM, "--t", "StepCouter"), 2, "stage 0", "StepCounter?"),
        ((*PENDULUM, "--t", "StepCounter(max_stesp=1)"), 2, "max_stesp", "max_steps?"),
        ((*PENDULUM, "--t", "StepCounter(max_steps='a')"), 2, "stage 0 (StepCounter)", ""),
        (
            (*PENDULUM, "--t", "RewardSum", "--t", "RewardClipping(2, 1)"),
            *(2, "stage 1 (RewardClipping)", ""),
        ),
        (
            (*PENDULUM, "--t", "CatFrames(4, dim=-1, padding='sam')"),
            2,
            "padding",
            "did you mean same?",
        ),
        ((*PENDULUM, "--t", "ObservationNorm(0., 1., in_keys=['obs'])"), 2, "'obs'", "observation"),
        ((*PENDULUM, "--t", "StepCounter("), 2, "stage 0", "Name(argument=value)"),
        ((*PENDULUM, "--t", "StepCounter(max_steps=exit())"), 2, "stage 0", ""),
        ((*PENDULUM, "--t", "my_module:Thing"), 2, "my_module:Thing", "--allow-code"),
        ((*PENDULUM, "--key", "observatoin"), 2, "unknown key 'observatoin'", "observation?"),
        ((*SPEC, "--env", "Pendulm-v1"), 2, "Pendulm-v1", "Pendulum-v1"),
        ((*SPEC, "--env", "highway-v0"), 3, "highway-env", "pip install highway-env"),
        ((*PENDULUM, "--device", "cudaa"), 3, "cudaa", ""),
        ((*PENDULUM, "--env-kwargs", "gg=1"), 2, "'gg'", "g?"),
        (("inspect", "keys", "observatoin", *PENDULUM[2:]), 2, "'observatoin'", "observation?"),
        (
            ("inspect", "keys", *PENDULUM[2:], "--format", "mermad"),
            *(2, "invalid value 'mermad' for --format", "mermaid?"),
        ),
        (("inspect", "chain", *PENDULUM[2:], "--t", "StepCouter"), 2, "stage 0", "StepCounter?"),
        (("show", "transform", "StepCouter"), 2, "StepCouter", "StepCounter?"),
        (("show", "transform"), 2, "NAME", "--help"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_error_is_one_line_and_a_hint(
    tdx: Tdx, arguments: tuple[str, ...], code: int, message: str, hint: str
) -> None:
    outcome = tdx(*arguments)
    assert (outcome.code, outcome.out) == (code, ""), outcome.err
    error, *hints = outcome.err.splitlines()
    assert error.startswith("error: ")
    assert message in error
    assert len(hints) <= 1
    assert all(line.startswith("hint: ") for line in hints)
    assert hint in "".join(hints)


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("version: 1\nenv: [Pendulum-v1\n", ":3:1:", ""),
        ("version: 99\nenv: Pendulum-v1\n", ":1:", "version 99"),
        ("version: 1\nenv: Pendulum-v1\ntransforms:\n  - StepCouter\n", ":4", "StepCouter"),
        ("version: 1\nenvs: Pendulum-v1\n", ":2:", "envs"),
    ],
    ids=["yaml", "version", "transform", "key"],
)
def test_error_in_a_file_names_the_line(
    tdx: Tdx, tmp_path: Path, text: str, place: str, message: str
) -> None:
    file = tmp_path / "chain.yaml"
    file.write_text(text)
    outcome = tdx(*SPEC, "--pipeline", str(file))
    assert outcome.code == 2
    assert f"{file}{place}" in outcome.err
    assert message in outcome.err


def test_error_is_json_with_format_json(tdx: Tdx) -> None:
    outcome = tdx(*PENDULUM, "--t", "RewardSum", "--t", "StepCouter", "--format", "json")
    assert (outcome.code, outcome.out) == (2, "")
    document = json.loads(outcome.err)
    assert document["schema_version"] == 1
    assert document["kind"] == "error"
    error = document["error"]
    assert error["code"] == "TDX103"
    assert error["hint"] == "did you mean StepCounter?"
    assert error["where"] == {"stage": 1, "transform": "StepCouter"}
    assert error["exit_code"] == 2


def test_usage_error_is_json_with_format_json(tdx: Tdx) -> None:
    outcome = tdx("list", "envs", "--format=json", "--serach", "x")
    assert json.loads(outcome.err)["error"]["message"] == "no such option: --serach"


def test_debug_shows_the_traceback_before_the_line(tdx: Tdx) -> None:
    outcome = tdx(*PENDULUM, "--t", "StepCouter", "--debug")
    assert outcome.err.startswith("Traceback")
    assert "\nerror: stage 0 (StepCouter)" in outcome.err


def test_unexpected_error_is_one_line(tdx: Tdx, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(words: str, *, missing: bool) -> None:
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr("tdx.inspection.envs.find_envs", fail)
    outcome = tdx("list", "envs")
    assert outcome.code == 3
    assert outcome.err == (
        "error: unexpected ZeroDivisionError: division by zero\nhint: --debug shows the traceback\n"
    )


def test_interrupt_is_silent(tdx: Tdx, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(words: str, *, missing: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tdx.inspection.envs.find_envs", interrupt)
    outcome = tdx("list", "envs")
    assert (outcome.code, outcome.out, outcome.err) == (130, "", "")


def test_env_that_raises_in_a_step_is_an_env_error(
    tdx: Tdx, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: object, action: object) -> None:
        raise RuntimeError("the motor is hot")

    monkeypatch.setattr("gymnasium.envs.classic_control.pendulum.PendulumEnv.step", fail)
    outcome = tdx("check", "--env", "Pendulum-v1")
    assert outcome.code == EnvError.exit_code
    assert "the motor is hot" in outcome.err
    assert len(outcome.err.splitlines()) <= 2


def test_gymnasium_warning_is_one_plain_line(tdx: Tdx) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        outcome = tdx(*PENDULUM, "--env-kwargs", "render_mode='humann'")
    assert outcome.code == 0
    (line,) = outcome.err.splitlines()
    assert line.startswith(
        "warning: The environment is being initialised with render_mode='humann'"
    )


def test_deprecation_warnings_of_libraries_are_hidden(
    tdx: Tdx, monkeypatch: pytest.MonkeyPatch
) -> None:
    reset = PendulumEnv.reset

    def warn(self: PendulumEnv, **kwargs: Any) -> Any:
        warnings.warn("old name", DeprecationWarning, stacklevel=1)
        spaces.Box(-1.0, np.array([1.0]), (1,))
        warnings.warn("the motor is warm", UserWarning, stacklevel=1)
        return reset(self, **kwargs)

    monkeypatch.setattr(PendulumEnv, "reset", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        outcome = tdx("check", "Pendulum-v1")
    assert outcome.code == 0
    assert set(outcome.err.splitlines()) == {"warning: the motor is warm"}


def test_no_command_shows_the_help(tdx: Tdx) -> None:
    outcome = tdx()
    assert outcome.code == 2
    assert "inspect" in outcome.out + outcome.err
    assert "error:" not in outcome.err
