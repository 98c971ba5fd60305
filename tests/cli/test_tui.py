"""``tdx tui`` with and without a terminal."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from tdx.cli.process import run
from tdx.pipeline import Pipeline


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list of the pipelines that the app is opened with, as if on a terminal."""
    found: list[Any] = []

    def open_app(pipeline: object = None, **options: object) -> int:
        found.append(pipeline)
        return 0

    monkeypatch.setattr("tdx.tui.open_app", open_app)
    monkeypatch.setattr("tdx.cli.commands.tui.is_interactive", lambda: True)
    return found


def test_tui_without_a_terminal_suggests_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["tui", "--env", "Pendulum-v1", "--t", "StepCounter(max_steps=5)"]
    monkeypatch.setattr(sys, "argv", ["tdx", *arguments])
    assert run(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "needs a terminal" in said.err
    command = "tdx inspect spec --stages --env Pendulum-v1 --t 'StepCounter(max_steps=5)'"
    assert command in said.err


def test_tdx_without_a_terminal_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    run([])
    assert "Usage: tdx" in capsys.readouterr().out


def test_tui_opens_the_pipeline(opened: list[Any]) -> None:
    assert run(["tui", "--env", "Pendulum-v1", "--t", "RewardSum", "--num-envs", "2"]) == 0
    (pipeline,) = opened
    assert isinstance(pipeline, Pipeline)
    assert (pipeline.env.num_envs, pipeline.transforms[0].name) == (2, "RewardSum")


def test_the_app_takes_a_policy_for_an_env(
    opened: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tui", "Pendulum-v1", "--policy", "zero"]) == 0
    assert opened[0].policy == "zero"
    assert run(["tui", "--policy", "zero"]) == 2
    assert "--policy needs a target" in capsys.readouterr().err


def test_a_folder_of_models_or_checkpoints_names_the_next_step(
    opened: list[Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = tmp_path / "run" / "005000" / "pretrained_model"
    checkpoint.mkdir(parents=True)
    (checkpoint / "policy_preprocessor.json").write_text('{"name": "p", "steps": []}')
    assert run(["tui", "run"]) == 2
    assert "name a checkpoint in it: run/005000/pretrained_model" in capsys.readouterr().err
    Path("sb3").mkdir()
    Path("sb3/model.zip").write_bytes(b"PK")
    assert run(["tui", "sb3"]) == 2
    command = "tdx tui ENV --policy sb3:sb3/model.zip --allow-code"
    assert f"name its env: {command}" in capsys.readouterr().err


def test_tdx_on_a_terminal_opens_the_app(opened: list[Any]) -> None:
    assert run([]) == 0
    assert opened == [None]


def test_stages_require_an_env(opened: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tui", "--t", "RewardSum"]) == 2
    assert opened == []


def test_code_of_a_file_is_asked_for_once_and_again_when_it_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TDX_STATE_DIR", str(tmp_path / "state"))
    allowed: list[bool] = []

    def open_app(pipeline: object, *, allow_code: bool, samples: str | None) -> int:
        allowed.append(allow_code)
        return 0

    monkeypatch.setattr("tdx.tui.open_app", open_app)
    monkeypatch.setattr("tdx.cli.commands.tui.is_interactive", lambda: True)
    code = tmp_path / "envs" / "mine.py"
    code.parent.mkdir()
    code.write_text("raise SystemExit('it ran')\ndef make():\n    return None\n")

    def start(answer: str) -> tuple[bool, bool]:
        """Return whether the app may run code, and whether the user was asked."""
        monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
        assert run(["tui", f"{code}:make"]) == 0
        return allowed[-1], "Run it?" in capsys.readouterr().err

    assert start("n\n") == (False, True)
    assert start("y\n") == (True, True)
    assert start("") == (True, False)
    # What the file imports is code, too.
    (code.parent / "helper.py").write_text("VALUE = 1\n")
    assert start("n\n") == (False, True)
    assert start("y\n") == (True, True)
    assert start("") == (True, False)
    code.write_text(f"{code.read_text()}# changed\n")
    assert start("n\n") == (False, True)
    (tmp_path / "state" / "allowed_code.json").write_text('{"broken')
    assert start("y\n") == (True, True)
    assert start("") == (True, False)


def test_the_question_breaks_between_words(
    opened: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TDX_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("tdx.cli.commands.tui.is_interactive", lambda: True)
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("")
    run(["tui", "mine.py:make"])
    first, second, _ = capsys.readouterr().err.splitlines()
    assert first == "mine.py is Python code. It runs with your rights, and so"
    assert second == "does the code of any pipeline that you open in this app."


@pytest.mark.parametrize("name", ["Pendulum-v1", "no_such_file.py:make"])
def test_nothing_is_asked_where_no_file_is_named(
    name: str, opened: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run(["tui", name])
    assert "Run it?" not in capsys.readouterr().err


def test_a_folder_of_a_checkpoint_opens(opened: list[Any], tmp_path: Path) -> None:
    (tmp_path / "policy_preprocessor.json").write_text('{"name": "p", "steps": []}')
    assert run(["tui", str(tmp_path)]) == 0
    (pipeline,) = opened
    assert pipeline.env.id == str(tmp_path)
