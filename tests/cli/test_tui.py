"""``tdx tui`` with and without a terminal."""

from __future__ import annotations

import sys
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


def test_tdx_on_a_terminal_opens_the_app(opened: list[Any]) -> None:
    assert run([]) == 0
    assert opened == [None]


def test_stages_require_an_env(opened: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tui", "--t", "RewardSum"]) == 2
    assert opened == []
