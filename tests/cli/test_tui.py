"""``tdx tui``: what it does without a terminal, and what it opens on one."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tdx.cli.process import run
from tdx.pipeline import Pipeline


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the app is opened with, as if on a terminal."""
    found: list[Any] = []

    def open_app(pipeline: object = None, **options: object) -> int:
        found.append(pipeline)
        return 0

    monkeypatch.setattr("tdx.tui.open_app", open_app)
    monkeypatch.setattr("tdx.cli.commands.tui.on_terminal", lambda: True)
    return found


def test_without_a_terminal_it_ends_at_once_and_names_the_command(
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


def test_without_a_terminal_tdx_alone_is_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    run([])
    assert "Usage: tdx" in capsys.readouterr().out


def test_on_a_terminal_it_opens_the_pipeline(opened: list[Any]) -> None:
    assert run(["tui", "--env", "Pendulum-v1", "--t", "RewardSum", "--num-envs", "2"]) == 0
    (pipeline,) = opened
    assert isinstance(pipeline, Pipeline)
    assert (pipeline.env.num_envs, pipeline.transforms[0].name) == (2, "RewardSum")


def test_on_a_terminal_tdx_alone_opens_it_empty(opened: list[Any]) -> None:
    assert run([]) == 0
    assert opened == [None]


def test_stages_without_an_env_are_a_mistake(
    opened: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tui", "--t", "RewardSum"]) == 2
    assert opened == []
