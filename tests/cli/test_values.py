"""``tdx inspect values``: output, spec violations and errors of envs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

if TYPE_CHECKING:
    from tests.cli.conftest import Golden, Layout, Tdx

ROOT = Path(__file__).parents[2]
VALUES = (
    *("inspect", "values", "--env", "Pendulum-v1", "--seed", "0", "--steps", "4"),
    *("--t", "RewardClipping(-1, 1)", "--t", "StepCounter(3)", "--t", "ActionScaling"),
    *("--t", 'CatFrames(2, dim=-1, in_keys=["observation"])'),
)
BATCH = ("inspect", "values", "--env", "CartPole-v1", "--num-envs", "3", "--seed", "0")

CROOKED = """
import gymnasium
from tdx import Bounded, Transform

class Crooked(Transform):
    def __init__(self):
        super().__init__(in_keys=["reward"])

    def _call(self, next_tensordict):
        next_tensordict["surprise"] = next_tensordict["reward"] * float("nan")
        next_tensordict["reward"] = next_tensordict["reward"] * 0 + 7
        return next_tensordict

class Breaks(gymnasium.Wrapper):
    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == 3:
            raise ValueError("out of fuel")
        return super().step(action)

def broken():
    return Breaks(gymnasium.make("Pendulum-v1"))
"""


@pytest.fixture
def crooked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create a module with a transform that violates its spec and an env that fails."""
    (tmp_path / "crooked.py").write_text(CROOKED)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "crooked", raising=False)


@pytest.mark.parametrize(
    ("name", "arguments"), [("values", VALUES), ("values_batch", BATCH)], ids=["chain", "batch"]
)
def test_table_matches_the_golden_file(
    layout: Layout, name: str, arguments: tuple[str, ...]
) -> None:
    layout(name, *arguments)


def test_json_matches_the_golden_file(tdx: Tdx, golden: Golden) -> None:
    outcome = tdx(*VALUES, "--format", "json")
    assert outcome.code == 0, outcome.err
    golden("values.json", outcome.out)


def test_each_option_lists_single_steps(tdx: Tdx) -> None:
    report = json.loads(tdx(*VALUES, "--each", "--format", "json").out)
    ranges = [(phase["phase"], phase["first"], phase["count"]) for phase in report["phases"]]
    steps = [("step", index, 1) for index in range(4)]
    assert ranges == [("reset", 0, 1), *steps[:3], ("reset", 3, 1), steps[3]]


@pytest.mark.usefixtures("crooked")
def test_spec_violation_is_reported_and_the_exit_code_is_0(tdx: Tdx, golden: Golden) -> None:
    outcome = tdx(
        *("inspect", "values", "--env", "Pendulum-v1", "--seed", "0", "--steps", "3"),
        *("--t", "RewardClipping(-1, 1)", "--t", "crooked:Crooked", "--t", "RewardScaling(0, 1)"),
        "--allow-code",
    )
    assert (outcome.code, outcome.err) == (0, "")
    golden("values_violations.txt", outcome.out)


@pytest.mark.usefixtures("crooked")
def test_values_before_an_env_error_are_shown(tdx: Tdx) -> None:
    broken = (
        *("inspect", "values", "--env", "crooked:broken", "--allow-code", "--steps", "9"),
        *("--t", "RewardSum", "--format", "json"),
    )
    outcome = tdx(*broken)
    assert outcome.code == 3
    assert "out of fuel, in step 2" in outcome.err
    report = json.loads(outcome.out)
    assert report["steps"] == 2
    assert report["error"]["code"] == "TDX301"
    steps = next(phase for phase in report["phases"] if phase["phase"] == "step")
    sums = next(stage for stage in steps["stages"] if stage["name"] == "RewardSum")
    assert sums["values"][0]["elements"] == 2


def test_error_of_a_stage_names_its_line(
    tdx: Tdx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "brittle.py").write_text(
        "def brittle(tensordict):\n    return tensordict['reward'] and tensordict\n"
    )
    file = tmp_path / "brittle.yaml"
    file.write_text(
        "version: 1\nenv: Pendulum-v1\ntransforms:\n  - RewardSum\n  - brittle:brittle\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    outcome = tdx("inspect", "values", "--pipeline", str(file), "--allow-code")
    assert outcome.code == 2
    assert f"{file}:5" in outcome.err
    assert "in the reset before step 0" in outcome.err
    assert "observation@0" in outcome.out


@pytest.mark.parametrize("steps", ["0", "-3", "many"])
def test_invalid_number_of_steps_is_refused(tdx: Tdx, steps: str) -> None:
    outcome = tdx(*BATCH, "--steps", steps)
    assert outcome.code == 2
    assert f"--steps must be an integer of at least 1, got '{steps}'" in outcome.err


def test_policy_option_overrides_the_file(
    tdx: Tdx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("actions.json").write_text("[0.5, 0.5, 0.5]")
    torch.save(TensorDictModule(nn.Linear(3, 1), ["observation"], ["action"]), "policy.pt")
    Path("chain.yaml").write_text("version: 1\nenv: Pendulum-v1\npolicy: sequence:actions.json\n")
    asked = ("inspect", "values", "--pipeline", "chain.yaml", "--format", "json")

    def action(*more: str) -> tuple[float, float]:
        outcome = tdx(*asked, "--steps", "3", *more)
        assert (outcome.code, outcome.err) == (0, "")
        (stage,) = [
            stage
            for phase in json.loads(outcome.out)["phases"]
            for stage in phase["stages"]
            if stage["kind"] == "policy"
        ]
        (value,) = stage["values"]
        return value["min"], value["max"]

    assert action() == (0.5, 0.5)
    assert action("--policy", "zero") == (0.0, 0.0)
    drawn = action("--policy", "random")
    assert drawn[0] < drawn[1]
    learnt = action("--policy", "module:policy.pt", "--allow-code")
    assert learnt[0] < learnt[1]
    for arguments, code, message in [
        (("--steps", "4"), 2, "has 3 actions, the rollout needs 4"),
        (("--policy", "sequence:nowhere.json"), 3, "cannot read nowhere.json"),
        (("--policy", "zeroo"), 2, "unknown policy 'zeroo'"),
        (("--policy", "my_code:act"), 2, "--allow-code"),
    ]:
        outcome = tdx(*asked, *arguments)
        assert (outcome.code, outcome.out) == (code, "")
        assert message in outcome.err


def test_one_key(tdx: Tdx) -> None:
    result = tdx(*VALUES, "--key", "reward", "--format", "json")
    assert result.code == 0, result.err
    stages = [stage for phase in json.loads(result.out)["phases"] for stage in phase["stages"]]
    assert {value["key"] for stage in stages for value in stage["values"]} == {"reward"}
    assert [stage["name"] for stage in stages] == ["GymEnv", "RewardClipping"]
    result = tdx(*VALUES, "--key", "rewrd")
    assert result.code == 2
    assert "did you mean reward?" in result.err
