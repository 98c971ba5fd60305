"""The target of a command: an env, a file, a dump or a function."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tests.cli.conftest import Tdx

PIPELINE = "version: 1\nenv: {id: Pendulum-v1}\ntransforms:\n  - StepCounter\n"
FACTORY = """import gymnasium
def make():
    return gymnasium.wrappers.FrameStackObservation(gymnasium.make("Pendulum-v1"), 2)
"""
COMMANDS = (
    ("inspect", "spec"),
    ("inspect", "chain"),
    ("inspect", "keys"),
    ("inspect", "values", "--seed", "0"),
    ("inspect", "state"),
    ("inspect", "plan"),
    ("check",),
    ("rollout", "--steps", "3", "--dry-run"),
    ("profile", "--dry-run"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_accepts_an_env_and_a_file(
    tdx: Tdx, tmp_path: Path, command: tuple[str, ...]
) -> None:
    file = tmp_path / "chain.yaml"
    file.write_text(PIPELINE)
    of_env = tdx(*command, "Pendulum-v1", "-t", "StepCounter")
    of_file = tdx(*command, str(file))
    assert of_env.code == of_file.code == 0, of_env.err + of_file.err
    assert tdx(*command, "--env", "Pendulum-v1", "--t", "StepCounter").code == 0


def test_target_and_option_give_the_same_output(
    tdx: Tdx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "chain.yaml"
    file.write_text(PIPELINE)
    expected = tdx("inspect", "spec", "--pipeline", str(file))
    assert tdx("inspect", "spec", str(file)).out == expected.out
    monkeypatch.setattr("sys.stdin", io.StringIO(PIPELINE))
    assert tdx("inspect", "spec", "-").out == expected.out
    by_env = tdx("inspect", "spec", "--env", "Pendulum-v1", "--t", "StepCounter")
    assert tdx("inspect", "spec", "Pendulum-v1", "-t", "StepCounter").out == by_env.out


def test_dump_as_target_uses_its_pipeline(tdx: Tdx, tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    arguments = ("Pendulum-v1", "-t", "StepCounter", "--steps", "3", "--out", str(folder))
    assert tdx("rollout", *arguments).code == 0
    outcome = tdx("inspect", "spec", str(folder))
    assert outcome.code == 0, outcome.err
    assert "step_count" in outcome.out


def test_folder_named_like_an_env_is_not_read_as_a_dump(
    tdx: Tdx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "CartPole-v1").mkdir()
    monkeypatch.chdir(tmp_path)
    assert tdx("inspect", "spec", "CartPole-v1").out.startswith("CartPole-v1")


def test_function_requires_allow_code(tdx: Tdx, tmp_path: Path) -> None:
    file = tmp_path / "envs.py"
    file.write_text(FACTORY)
    refused = tdx("inspect", "spec", f"{file}:make")
    assert refused.code == 2
    assert "--allow-code" in refused.err
    allowed = tdx("inspect", "spec", f"{file}:make", "--allow-code")
    assert "FrameStackObservation" in allowed.out


def test_first_word_of_inspect_keys_is_the_target_unless_an_option_names_it(tdx: Tdx) -> None:
    by_option = tdx("inspect", "keys", "reward", "--env", "Pendulum-v1", "--t", "RewardSum")
    assert tdx("inspect", "keys", "Pendulum-v1", "reward", "-t", "RewardSum").out == by_option.out
    assert "reward@0" in by_option.out


def test_help_shows_the_target_and_hides_the_options_it_replaces(tdx: Tdx) -> None:
    text = tdx("inspect", "spec", "--help").out
    assert "[TARGET]" in text
    assert "--pipeline" not in text


def test_completion_offers_envs_files_and_dumps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tdx.cli.completion import complete_target

    (tmp_path / "pendulum.yaml").write_text(PIPELINE)
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "manifest.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    words = [word for word, _ in complete_target("p")]
    assert words[0] == "pendulum.yaml"
    assert ("runs/one", "dump") in complete_target("runs/")
    assert "Pendulum-v1" in [word for word, _ in complete_target("Pend")]
