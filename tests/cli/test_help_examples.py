"""Every ``--help`` has at least two examples that work."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import pytest

from tdx.cli.commands import NESTED, SUMMARIES, build_root
from tdx.cli.help import EXAMPLE
from tdx.cli.process import run
from tdx.inspection.watch import watch
from tests.programs import sampled
from tests.rollouts.recordings import in_memory

if TYPE_CHECKING:
    from tests.cli.conftest import Tdx

ONLY_PARSED = ("tui", "serve", "doctor", "config edit")
MOST_STEPS = 20
CHAIN = "version: 1\nenv: Pendulum-v1\ntransforms: [{}]\n"
TRAIN = """import gymnasium

def make_env():
    return gymnasium.wrappers.TimeLimit(gymnasium.make("Pendulum-v1"), 50)
"""


def commands(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and the command object of each command in a group."""
    names = command.list_commands(None) if hasattr(command, "list_commands") else []
    for name in names:
        inner = command.get_command(None, name)
        yield from commands(inner, f"{path} {name}".strip())
    if not names and path:
        yield path, command


ROOT = build_root()
COMMANDS = dict(commands(ROOT))
for outer, words in NESTED.items():
    COMMANDS |= {f"{outer} {word}": ROOT.get_command(None, f"{outer} {word}") for word in words}


def examples(command: Any) -> list[str]:
    """Return the examples in the help of a command."""
    lines = command.help.partition("Examples:\n")[2].splitlines()
    return [line.strip() for line in lines]


@pytest.fixture(scope="module")
def samples() -> Iterator[Path]:
    """Yield a folder with the files that the examples use."""
    with in_memory() as parent, chdir(parent):
        for name, stages in {
            "pendulum": "RewardSum, VecNorm",
            "old": "",
            "new": "StepCounter",
        }.items():
            Path(f"{name}.yaml").write_text(CHAIN.format(stages))
        Path("train.py").write_text(TRAIN)
        Path("pipelines").mkdir()
        Path("pipelines/pendulum.yaml").write_text(CHAIN.format("RewardSum"))
        Path("evaluate.py").write_text(TRAIN)
        rollout = ("rollout", "Pendulum-v1", "--steps", "30", "--seed", "0", "-o")
        profile = ("profile", "Pendulum-v1", "--steps", "5", "--passes", "none", "--save")
        for words in (
            (*rollout, "runs/pendulum", "-t", "RewardSum"),
            (*rollout, "runs/raw"),
            ("export", "runs/pendulum", "--to", "parquet", "-o", "pendulum.parquet"),
            ("export", "runs/raw", "--to", "jsonl", "-o", "steps.txt"),
            ("export", "runs/raw", "--to", "lerobot", "-o", "dataset"),
            (*profile, "base.json"),
            (*profile, "now.json"),
            ("contract", "record", "train.py:make_env", "--allow-code"),
            ("contract", "record", "pendulum.yaml", "--out", "pendulum"),
        ):
            assert run(words) == 0
        env = gymnasium.make("Pendulum-v1")
        env.reset()
        with watch(env, every=1, to="runs/watch.jsonl"):
            env.step(env.action_space.sample())
        shutil.copy("runs/watch.jsonl", "watch.jsonl")
        yield Path(parent)


def test_each_group_has_examples(tdx: Tdx) -> None:
    for group in ("inspect", "contract", "list", "show", "profile", "config"):
        shown = tdx(group, "--help").out
        assert re.search(r"^ +tdx |=\S+ tdx ", shown, re.MULTILINE), group


@pytest.mark.parametrize("name", [path for path in COMMANDS if " " not in path])
def test_summaries_in_the_help_of_the_program_equal_the_docstrings(name: str) -> None:
    """Compare the table of summaries, which imports no command, with the docstrings."""
    assert COMMANDS[name].help.partition("\n\n")[0] == SUMMARIES[name]


def test_paragraphs_in_the_help_have_no_hard_line_breaks(
    tdx: Tdx, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    text = tdx("verify", "--help").out
    assert "Exits with 0 if the dump is valid, else with 1. --repair reports what was lost " in text


@pytest.mark.parametrize("path", COMMANDS)
@sampled(5)
def test_examples_run(
    tdx: Tdx, samples: Path, tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = examples(COMMANDS[path])
    assert found
    assert all(EXAMPLE.match(each) for each in found)
    folder = shutil.copytree(samples, tmp_path / "folder")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TDX_CONFIG", str(tmp_path / "config.toml"))
    for example in found:
        words = words_of(example, monkeypatch)
        if path in ONLY_PARSED:
            COMMANDS[path].make_context(path, words[len(path.split()) :])
            continue
        outcome = tdx(*words)
        assert outcome.code in (0, 1), (example, outcome.err)
        assert "error:" not in outcome.err, (example, outcome.err)
        assert outcome.out or outcome.err


def words_of(example: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Set the variables of an example and return its arguments, with few steps."""
    words = shlex.split(example.partition(" > ")[0])
    while words[0] != "tdx":
        name, _, value = words.pop(0).partition("=")
        monkeypatch.setenv(name, value)
    for place, word in enumerate(words):
        if word == "--steps" and "--dry-run" not in words:
            words[place + 1] = str(min(int(words[place + 1]), MOST_STEPS))
    if "profile" in words and "compare" not in words:
        words += ["--steps", f"{MOST_STEPS}"]
    assert os.environ["TDX_CONFIG"]
    return words[1:]
