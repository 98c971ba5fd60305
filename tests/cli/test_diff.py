"""``tdx diff``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.programs import exhaustive

if TYPE_CHECKING:
    from tests.cli.conftest import Golden, Layout, Tdx

A = """version: 1
env: Pendulum-v1
transforms:
  - RewardSum
  - StepCounter: {max_steps: 200}
  - InitTracker
  - DoubleToFloat
"""
B = """version: 1
env: {id: Pendulum-v1, seed: 3}
transforms:
  - InitTracker
  - RewardClipping: {clamp_min: -1.0, clamp_max: 0.0}
  - RewardSum
  - StepCounter: {max_steps: 100}
  - ActionScaling
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(A)
    (tmp_path / "b.yaml").write_text(B)
    return tmp_path


@pytest.mark.usefixtures("files")
def test_table_matches_the_golden_file(layout: Layout) -> None:
    layout("diff", "diff", "a.yaml", "b.yaml", "--steps", "0", code=1)


@pytest.mark.usefixtures("files")
def test_json_matches_the_golden_file(tdx: Tdx, golden: Golden) -> None:
    outcome = tdx("diff", "a.yaml", "b.yaml", "--steps", "0", "--format", "json")
    assert (outcome.code, outcome.err) == (1, "")
    golden("diff.json", outcome.out)


def test_exit_code_is_1_for_different_pipelines(tdx: Tdx, files: Path) -> None:
    (files / "reordered.yaml").write_text(A.replace("{max_steps: 200}", "[200]"))
    same = tdx("diff", "a.yaml", "reordered.yaml", "--steps", "3")
    assert (same.code, same.err) == (0, "")
    assert "same" in same.out.splitlines()[0]
    assert tdx("diff", "a.yaml", "b.yaml", "--steps", "0").code == 1


def test_values_list_the_first_different_step(tdx: Tdx, files: Path) -> None:
    (files / "c.yaml").write_text(A.replace("max_steps: 200", "max_steps: 2"))
    report = json.loads(
        tdx("diff", "a.yaml", "c.yaml", "--steps", "5", "--seed", "1", "--format", "json").out
    )
    values = {each["key"]: each for each in report["values"]}
    assert (report["steps"], report["seed"]) == (5, 1)
    assert values["next.truncated"]["first_step"] == 1
    assert values["observation"]["first_step"] == 2
    assert values["action"]["status"] == "same"


@exhaustive
def test_values_that_differ_are_explained_at_the_first_stage(tdx: Tdx, files: Path) -> None:
    chain = """version: 1
env: Pendulum-v1
transforms:
  - RewardSum
  - ObservationNorm: {loc: LOC, scale: 2.0, in_keys: [observation]}
"""
    (files / "a.yaml").write_text(chain.replace("LOC", "0.5"))
    (files / "b.yaml").write_text(chain.replace("LOC", "0.0"))

    found = tdx("diff", "a.yaml", "b.yaml", "--steps", "10", "--format", "json")

    (difference,) = json.loads(found.out)["differences"]
    assert difference["stage"] == 1
    assert difference["explanation"]["kind"] == "scale"
    assert difference["explanation"]["parameters"] == {"factor": 1.0, "offset": -0.5}
    shown = tdx("diff", "a.yaml", "b.yaml", "--steps", "10").out
    assert "it is shifted by -0.5" in shown
    assert "explanation" not in tdx("diff", "a.yaml", "a.yaml", "--steps", "10").out
    without_rollouts = json.loads(tdx("diff", "a.yaml", "b.yaml", "--format", "json").out)
    assert without_rollouts["steps"] is None
    assert without_rollouts["differences"][0]["explanation"] == difference["explanation"]


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("a.yaml",), "missing argument", "tdx diff --help"),
        (("a.yaml", "missing.yaml"), "cannot read missing.yaml", ""),
        (("-", "-"), "cannot both be stdin", "name a file"),
        (("a.yaml", "b.yaml", "--seed", "1", "--steps", "0"), "--seed has no effect", "remove"),
        (("a.yaml", "b.yaml", "--steps", "-1"), "--steps must be an integer", ""),
    ],
)
def test_usage_errors_exit_with_2(
    tdx: Tdx, arguments: tuple[str, ...], message: str, hint: str
) -> None:
    outcome = tdx("diff", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err.lower()
    assert hint in outcome.err


def test_diff_with_an_env_without_stages(tdx: Tdx, tmp_path: Path) -> None:
    file = tmp_path / "counted.yaml"
    file.write_text("version: 1\nenv: Pendulum-v1\ntransforms: [StepCounter]\n")
    assert tdx("diff", "Pendulum-v1", "Pendulum-v1").code == 0
    outcome = tdx("diff", "Pendulum-v1", str(file), "--steps", "0")
    assert outcome.code == 1
    assert "+  0  StepCounter" in outcome.out
    misspelt = tdx("diff", "Pendulum-v1", "Pendlum")
    assert misspelt.code == 2
    assert "did you mean Pendulum-v1?" in misspelt.err
