"""The table of commands in docs/stacks.md matches what the commands do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tdx.stacks import kinds
from tests.plugins.installed import install, installed
from tests.programs import sampled
from tests.stacks import toy_package

if TYPE_CHECKING:
    from tests.cli.conftest import Tdx

DOCS = Path(__file__).parents[2] / "docs" / "stacks.md"
SOURCE = """
import gymnasium as gym
from gymnasium import wrappers

def make_tdx():
    import tdx
    return tdx.TransformedEnv(tdx.PendulumEnv(), tdx.RewardSum())

def make_gymnasium():
    return wrappers.ClipReward(gym.make("Pendulum-v1", max_episode_steps=5), -1, 1)

def make_sb3():
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
    return VecNormalize(DummyVecEnv([make_gymnasium, make_gymnasium]))

def make_torchrl():
    from torchrl.envs import GymEnv, StepCounter, TransformedEnv
    return TransformedEnv(GymEnv("Pendulum-v1"), StepCounter(5))

def make_other():
    from tests.stacks.toy_framework import make
    return make()
"""
COLUMNS = {
    "tdx": ("make_tdx", "RewardSum"),
    "Gymnasium": ("make_gymnasium", "ClipReward"),
    "Stable-Baselines3": ("make_sb3", "VecNormalize"),
    "TorchRL": ("make_torchrl", "StepCounter"),
    "other kinds": ("make_other", "Scale"),
}
"""Factory and name of the outermost stage, by column of the table."""
SHORT = ("--steps", "2", "--warmup", "0", "--repeat", "2")
COMMANDS = {
    "inspect spec": ("inspect", "spec", "ENV"),
    "inspect chain": ("inspect", "chain", "ENV"),
    "inspect keys": ("inspect", "keys", "ENV"),
    "inspect values": ("inspect", "values", "ENV"),
    "inspect state": ("inspect", "state", "ENV", "--steps", "2"),
    "inspect plan": ("inspect", "plan", "ENV"),
    "check": ("check", "ENV", "--format", "json"),
    "report": ("report", "ENV", "--steps", "2", "-o", "-"),
    "profile": ("profile", "ENV", *SHORT, "--detail"),
    "profile --mode": ("profile", "ENV", *SHORT, "--detail", "--mode", "eager", "--passes", "none"),
    "profile --sweep": ("profile", "ENV", *SHORT, "--passes", "none", "--sweep", "steps=1,2"),
    "rollout": ("rollout", "ENV", "--steps", "12", "--out", "dump"),
    "replay": ("replay", "dump", "--t", "RewardSum", "--allow-code"),
    "diff": ("diff", "FILE", "FILE", "--allow-code", "--steps", "2"),
    "any command with -t": ("inspect", "spec", "ENV", "--t", "RewardScaling(0.0, 0.5)"),
}
"""Command line of each row."""


def read_table() -> dict[str, dict[str, str]]:
    """Return the cells of the table by row and column."""
    section = DOCS.read_text().partition("## Commands")[2].partition("\n## ")[0]
    lines = section.splitlines()
    rows = [
        [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("|")
    ]
    header, _, *body = rows
    return {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in body}


def test_table_lists_each_command_and_kind() -> None:
    table = read_table()
    assert list(table) == list(COMMANDS)
    assert all(list(row) == list(COLUMNS) for row in table.values())


@pytest.mark.parametrize("column", COLUMNS)
@sampled(3)
def test_each_cell_matches_the_command(
    column: str, tdx: Tdx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "site", {kinds.GROUP: {"toy": f"{toy_package.__name__}:KIND"}})
    with installed(tmp_path / "site"):
        _check_cells(column, tdx, tmp_path, monkeypatch)


def _check_cells(column: str, tdx: Tdx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    factory, stage = COLUMNS[column]
    Path("all_kinds.py").write_text(SOURCE)
    Path("pipeline.yaml").write_text(f"version: 1\nenv: all_kinds.py:{factory}\n")
    env = ("--env", f"all_kinds.py:{factory}", "--allow-code")
    for name, row in read_table().items():
        line: list[str] = []
        for part in COMMANDS[name]:
            line += env if part == "ENV" else ["pipeline.yaml" if part == "FILE" else part]
        if name == "replay" and row[column] == "no":
            continue
        outcome = tdx(*line)
        if row[column] == "no":
            # A sweep reports the problem of each combination before it fails.
            assert outcome.code == (3 if name == "profile --sweep" else 2), name
            (error,) = [text for text in outcome.err.splitlines() if text.startswith("error: ")]
            assert re.search("cannot be the env of a rollout", error), name
            assert "leave out -t" in outcome.err
            continue
        assert outcome.code == 0, (name, outcome.err)
        if row[column] == "stages" and name not in (
            "check",
            "rollout",
            "replay",
            "profile --sweep",
        ):
            assert stage in outcome.out, name
