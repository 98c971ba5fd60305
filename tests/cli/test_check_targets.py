"""``tdx check`` of several targets in one process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tdx.foundation.container import Container
from tdx.rollouts.dump.manifest import Manifest
from tests.cli.conftest import assert_fits
from tests.programs import exhaustive

if TYPE_CHECKING:
    from tests.cli.conftest import Tdx

CLEAN = "version: 1\nenv: Pendulum-v1\ntransforms:\n  - RewardSum\n"
CLIPPED = (
    "version: 1\nenv: Pendulum-v1\ntransforms:\n"
    "  - RewardClipping: {clamp_min: -1, clamp_max: 1}\n  - RewardScaling: {loc: 0, scale: 0.1}\n"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a folder with a clean, a suspicious and a broken pipeline, and other files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipes" / "old").mkdir(parents=True)
    (tmp_path / "pipes" / ".hidden").mkdir()
    (tmp_path / "pipes" / "clean.yaml").write_text(CLEAN)
    (tmp_path / "pipes" / "clipped.yaml").write_text(CLIPPED)
    (tmp_path / "pipes" / "other.yaml").write_text("services: {}\n")
    (tmp_path / "pipes" / "old" / "broken.yaml").write_text(f"{CLEAN}  - [\n")
    (tmp_path / "pipes" / ".hidden" / "unseen.yaml").write_text(CLIPPED)
    return tmp_path


def test_broken_file_does_not_stop_the_others(folder: Path, tdx: Tdx) -> None:
    outcome = tdx("check", "missing.yaml", "pipes", "CartPole-v1", "--format", "json")
    assert outcome.code == 2
    document = json.loads(outcome.out)
    codes = {target["target"]: target["exit_code"] for target in document["targets"]}
    assert codes == {
        "missing.yaml": 2,
        "pipes/clean.yaml": 0,
        "pipes/clipped.yaml": 1,
        "pipes/old/broken.yaml": 2,
        "CartPole-v1": 0,
    }
    assert not document["ok"]


def test_last_line_counts_targets_and_fixable_findings(folder: Path, tdx: Tdx) -> None:
    outcome = tdx("check", "pipes", columns=80)
    assert_fits(outcome.out, 80)
    assert "pipes/clipped.yaml:4:5: TDX421" in outcome.out
    last = " ".join(outcome.out[outcome.out.index("Checked ") :].split())
    assert last == (
        "Checked 3 targets: 1 without issues, 1 with issues, 1 could not be checked; "
        "1 error, 1 warning (1 fixable with --unsafe-fixes)"
    )


def test_statistics_count_findings_by_rule(folder: Path, tdx: Tdx) -> None:
    outcome = tdx("check", "pipes", "--statistics", "--exclude", "old", "--format", "jsonl")
    assert outcome.code == 1
    (rule,) = [json.loads(line) for line in outcome.out.splitlines()]
    assert (rule["code"], rule["count"], rule["fixable"]) == ("TDX421", 1, 1)


def test_exclude_leaves_out_folders_and_files(folder: Path, tdx: Tdx) -> None:
    outcome = tdx("check", "pipes", "--exclude", "old,clip*")
    assert outcome.code == 0
    assert outcome.out == "Checked 1 target: 1 without issues\n"
    assert tdx("check", "pipes", "--exclude", "pipes").code == 2


def test_diff_of_several_files_is_one_patch(folder: Path, tdx: Tdx) -> None:
    (folder / "second.yaml").write_text(CLIPPED)
    outcome = tdx("check", "pipes", "second.yaml", "--diff", "--unsafe-fixes")
    assert outcome.out.count("--- ") == 2
    assert "Checked" not in outcome.out
    assert "error: pipes/old/broken.yaml: " in outcome.err


@exhaustive
def test_fix_writes_every_file(folder: Path, tdx: Tdx) -> None:
    (folder / "second.yaml").write_text(CLIPPED)
    tdx("check", "pipes/clipped.yaml", "second.yaml", "--fix", "--unsafe-fixes")
    assert tdx("check", "pipes/clipped.yaml", "second.yaml").code == 0


def test_sarif_of_several_targets_is_one_run(folder: Path, tdx: Tdx) -> None:
    log = json.loads(tdx("check", "pipes", "--format", "sarif").out)
    (only,) = log["runs"]
    uris = {
        result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        for result in only["results"]
    }
    assert uris == {"pipes/clipped.yaml", "pipes/old/broken.yaml"}


@exhaustive
def test_contract_is_read_and_a_damaged_one_is_a_finding(folder: Path, tdx: Tdx) -> None:
    assert tdx("freeze", "Pendulum-v1", "-t", "RewardSum", "--out", "contract").code == 0
    outcome = tdx("check", "contract", "pipes/clean.yaml")
    assert outcome.code == 0
    assert "no env is compared with it" in outcome.out
    (folder / "contract" / "contract.yaml").write_text("damaged")
    outcome = tdx("check", "contract", "pipes/clean.yaml")
    assert outcome.code != 0
    assert "1 without issues, 1 could not be checked" in outcome.out


def test_against_takes_one_target(folder: Path, tdx: Tdx) -> None:
    outcome = tdx("check", "pipes/clean.yaml", "CartPole-v1", "--against", "contract")
    assert outcome.code == 2
    assert "--against takes one target" in outcome.err


@pytest.fixture
def dump(folder: Path, tdx: Tdx) -> Path:
    """Record a dump with counts from 0 to 20."""
    pipeline = ("Pendulum-v1", "-t", "StepCounter", "--seed", "0")
    assert tdx("rollout", *pipeline, "--steps", "20", "--out", "recorded").code == 0
    return folder / "recorded"


def test_data_of_a_dump_is_checked(dump: Path, tdx: Tdx) -> None:
    outcome = tdx("check", "recorded", "--format", "json")
    assert outcome.code == 0, outcome.out
    document = json.loads(outcome.out)
    assert document["parts"] == "1 stage; 20 steps of 3 features"
    assert document["hidden"] == []


def test_recorded_values_outside_their_spec_are_found(dump: Path, tdx: Tdx) -> None:
    manifest = Manifest.load(dump)
    for spec in manifest.specs:
        if spec["key"] == ["step_count"]:
            spec["high"] = 12
    with Container.open(dump) as root:
        manifest.save(root)
    outcome = tdx("check", "recorded")
    assert outcome.code == 1
    text = " ".join(outcome.out.split())
    assert "TDX628" in text
    assert "'step_count': it holds 13, outside [0, 12], first at step 13, in 7 values" in text
    assert tdx("check", "recorded", "--ignore", "TDX628").code == 0


BROKEN_ENV = """
import gymnasium as gym
import numpy as np


class Broken(gym.Env):
    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.ones(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        first = np.nan if self.steps == 3 else self.steps
        return np.array([first, 1], np.float32), 0.0, False, False, {}


def make():
    return Broken()
"""


@pytest.mark.filterwarnings("ignore::tdx.rollouts.dump.entries.NotFiniteWarning")
def test_constant_and_infinite_features_of_a_dump_are_found(folder: Path, tdx: Tdx) -> None:
    Path("broken.py").write_text(BROKEN_ENV)
    options = ("--allow-code", "--steps", "20", "--seed", "0", "--out", "recorded")
    assert tdx("rollout", "broken.py:make", *options).code == 0
    outcome = tdx("check", "recorded", "--allow-code", "--format", "json")
    found = {
        (finding["code"], finding["severity"], finding["message"])
        for finding in json.loads(outcome.out)["findings"]
    }
    message = "'observation' hardly moves at 1: its standard deviation is 0"
    # Envs observe constants: no fault of a recording.
    assert ("TDX625", "suggestion", message) in found
    assert ("TDX624", "error", "'observation' is NaN or infinite in 1 of 20 steps") in found


def test_what_is_not_checked_of_a_dump_is_said(
    dump: Path, tdx: Tdx, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasketches", None)
    outcome = tdx("check", "recorded", "--format", "json")
    assert outcome.code == 0
    (reason,) = json.loads(outcome.out)["hidden"]
    assert "the statistics of its data are not checked: datasketches is not installed" in reason
    (dump / "data" / "action.memmap").write_bytes(bytes(80))
    (reason,) = json.loads(tdx("check", "recorded", "--format", "json").out)["hidden"]
    assert reason.endswith("its files are damaged: run tdx verify recorded")
