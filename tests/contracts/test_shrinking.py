"""A difference is reduced to the fewest steps, as files that show it again."""

from __future__ import annotations

import os
import pickle
import runpy
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.wrappers import FrameStackObservation, TransformObservation
from safetensors.torch import load_file

import tdx
from tdx.cli.process import run
from tdx.contracts.shrinking import build_stage_alone, shrink_contract
from tdx.stacks import open_stack
from tests.contracts import envs as made
from tests.programs import exhaustive

MAKERS = """
import gymnasium
from gymnasium.wrappers import TransformObservation

def train():
    return TransformObservation(gymnasium.make("Pendulum-v1"), lambda x: x, None)

def deploy():
    return TransformObservation(gymnasium.make("Pendulum-v1"), lambda x: x[[1, 0, 2]], None)
"""


def stacked(padding: str = "reset", limit: float = np.inf) -> gymnasium.Env:
    env = gymnasium.make("Pendulum-v1")
    limited = TransformObservation(env, lambda x: np.clip(x, -limit, limit), None)
    return FrameStackObservation(limited, 3, padding_type=padding)


def reproduce_here(capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run the script without its process, whose imports take seconds; return code and output."""

    def run_here(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        before = os.getcwd()
        os.chdir(cwd)
        code = run(command[command.index("tdx") + 1 :])
        os.chdir(before)
        return subprocess.CompletedProcess(command, code)

    capsys.readouterr()
    with patch("subprocess.run", run_here), pytest.raises(SystemExit) as ended:
        runpy.run_path("small/reproduce.py")
    assert isinstance(ended.value.code, int)
    return ended.value.code, "".join(capsys.readouterr())


@pytest.mark.parametrize("target", [stacked("zero"), stacked(limit=2.5)], ids=["padding", "clip"])
@exhaustive
def test_fewest_steps_show_the_same_difference(target: gymnasium.Env) -> None:
    contract = tdx.freeze(stacked())
    report = tdx.check_contract(target, contract)
    smallest = shrink_contract(target, contract, report)
    found = smallest.report
    assert smallest.contract.steps < contract.steps
    assert smallest.stage is None
    assert report.first is not None
    assert found.first is not None
    assert (found.first.stage, found.first.kind) == (report.first.stage, report.first.kind)


@exhaustive
def test_fewest_rewards_that_show_a_scale() -> None:
    reference, target = (
        tdx.TransformedEnv(tdx.GymEnv("Pendulum-v1"), tdx.RewardScaling(0, scale))
        for scale in (0.1, 0.2)
    )
    contract = tdx.freeze(reference, compare=("observation", "reward"))
    report = tdx.check_contract(target, contract)
    smallest = shrink_contract(target, contract, report)
    # Two numbers would be scaled or shifted.
    assert (smallest.contract.steps, smallest.stage) == (3, 0)
    (cause,) = smallest.report.causes
    assert cause.message == "scale is 0.2 instead of 0.1"
    assert cause.explanation is not None
    assert cause.explanation.text == "it is multiplied by 2"


@exhaustive
def test_a_report_with_explanations_can_be_sent_to_another_process() -> None:
    report = tdx.check_contract(stacked("zero"), tdx.freeze(stacked()))
    copied = pickle.loads(pickle.dumps(report))
    assert copied.first.explanation == report.first.explanation  # type: ignore[union-attr]
    assert "zeros instead of" in copied.first.explanation.text


@exhaustive
def test_written_script_shows_the_difference_until_it_is_corrected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    makers = tmp_path / "makers.py"
    makers.write_text(MAKERS)
    assert run(["contract", "record", "makers.py:train", "--allow-code", "-o", "contract"]) == 0
    arguments = ("makers.py:deploy", "--allow-code", "--against", "contract", "--shrink", "small")
    assert run(["contract", "check", *arguments]) == 1
    shown = capsys.readouterr()
    assert "features 0 and 1 are swapped" in shown.out
    assert "wrote small (1 step of 12)" in shown.err
    values = load_file("small/values.safetensors")
    assert values["elements"].tolist() == [0, 1]
    assert values["obtained"].tolist() == values["expected"][[1, 0, 2]].tolist()

    code, said = reproduce_here(capsys)
    assert (code, "features 0 and 1 are swapped" in said) == (1, True), said
    makers.write_text(MAKERS.replace("[[1, 0, 2]]", ""))
    # The module of this process is the one before the correction.
    command = [sys.executable, str(Path("small/reproduce.py").resolve())]
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stdout + again.stderr


CHAIN = """
version: 1
env: {id: Pendulum-v1}
transforms:
  - ObservationNorm: {loc: 0.5, scale: 1.0, in_keys: [observation]}
  - ClipTransform: {in_keys: [observation], low: -8.0, high: 1.7}
  - CatFrames: {N: 3, dim: -1, in_keys: [observation]}
  - RewardSum
"""


@pytest.mark.parametrize(
    ("command", "right", "wrong", "stage"),
    [
        ("diff", "scale: 1.0", "scale: 1.5", 0),
        ("check", "high: 1.7", "high: 1.2", 1),
        ("check", "N: 3", "N: 3, padding: constant", 2),
        ("diff", "loc: 0.5, scale: 1.0", "loc: [0.5, 0.5, 0.5], scale: [1.0, 1.0, 2.0]", 0),
    ],
)
@exhaustive
def test_a_stage_of_tdx_is_shown_alone_until_it_is_corrected(
    command: str,
    right: str,
    wrong: str,
    stage: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(CHAIN)
    changed = CHAIN.replace(right, wrong)
    Path("b.yaml").write_text(changed)
    if command == "diff":
        assert run(["diff", "a.yaml", "b.yaml", "--shrink", "small"]) == 1
    else:
        assert run(["contract", "record", "a.yaml", "-o", "contract"]) == 0
        check = ["contract", "check", "b.yaml", "--against", "contract", "--shrink", "small"]
        assert run(check) == 1
    shown = capsys.readouterr()
    assert f"of 12, stage {stage} alone)" in shown.err
    small = tdx.load_contract("small/contract")
    # One record does not tell the scale of a feature from a clip.
    assert small.steps <= 2
    assert [record.index for record in small.stages] == [-1, 0]
    code, said = reproduce_here(capsys)
    assert code == 1, said
    case = next(line for line in shown.out.splitlines() if "smallest case" in line)
    # A step that stands alone follows its own reset.
    assert case.partition("feature")[2] in said
    # The script is about this stage only.
    Path("b.yaml").write_text(CHAIN.replace("- RewardSum", "- RewardSum: {out_keys: [total]}"))
    code, said = reproduce_here(capsys)
    assert code == 0, said


@exhaustive
def test_an_extra_stage_is_shown_until_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(CHAIN)
    extra = "  - ObservationNorm: {loc: 0.0, scale: 2.0, in_keys: [observation]}\n"
    Path("b.yaml").write_text(CHAIN.replace("  - CatFrames", extra + "  - CatFrames"))
    assert run(["contract", "diff", "a.yaml", "b.yaml", "--shrink", "small"]) == 1
    assert "Runs the whole target" in Path("small/reproduce.py").read_text()
    assert reproduce_here(capsys)[0] == 1
    Path("b.yaml").write_text(CHAIN)
    assert reproduce_here(capsys)[0] == 0


@exhaustive
def test_a_contract_of_one_sub_env_shows_the_difference(tmp_path: Path) -> None:
    a, b = (
        tdx.TransformedEnv(
            tdx.PendulumEnv(batch_size=[3]),
            tdx.Compose(
                tdx.ObservationNorm(loc=0.0, scale=2.0, in_keys=["observation"]),
                tdx.ClipTransform(in_keys=["observation"], low=-9.0, high=high),
            ),
        )
        for high in (9.0, 1.5)
    )
    contract = tdx.freeze(a)
    report = tdx.check_contract(b, contract)
    smallest = shrink_contract(b, contract, report)
    assert (smallest.stage, smallest.contract.inputs[0].rows) == (1, 1)
    tdx.save_contract(smallest.contract, tmp_path / "contract")
    stored = tdx.load_contract(tmp_path / "contract")
    found, corrected = (
        tdx.check_contract(build_stage_alone(open_stack(env), 1), stored) for env in (b, a)
    )
    assert found.first is not None
    assert found.first.smallest is not None
    assert corrected.same


@exhaustive
def test_a_target_that_agrees_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["contract", "record", "Pendulum-v1", "-o", "contract"]) == 0
    check = ["contract", "check", "Pendulum-v1", "--against", "contract", "--shrink", "small"]
    assert run(check) == 0
    assert "nothing differs" in capsys.readouterr().err
    assert not Path("small").exists()
    assert run([*check[:-1], "contract"]) == 2
    assert "choose the path of a new folder" in capsys.readouterr().err


@exhaustive
def test_reports_show_one_number_with_what_the_stage_received() -> None:
    report = tdx.check_contract(stacked(limit=2.5), tdx.freeze(stacked()))
    assert report.first is not None
    case = report.first.smallest
    assert case is not None
    assert case.obtained == 2.5 < case.expected
    assert (
        case.received[case.key].split(", ")[case.element[0]].strip("[]") == f"{case.expected:.6g}"
    )
    assert case.text.endswith(f"expected {case.expected:.6g}, obtained 2.5")
    assert report.first.to_dict()["smallest"]["text"] == case.text


@pytest.mark.parametrize("is_extra", [True, False])
@exhaustive
def test_smallest_case_of_a_stage_that_one_side_lacks(is_extra: bool) -> None:
    plain, clipped = (
        tdx.TransformedEnv(tdx.PendulumEnv(), tdx.Compose(*stages))
        for stages in ([], [tdx.ClipTransform(in_keys=["observation"], low=-0.5, high=0.5)])
    )
    a, b = (plain, clipped) if is_extra else (clipped, plain)
    difference = tdx.diff_stacks(a, b).first
    assert difference is not None
    case = difference.smallest
    assert case is not None
    ours, theirs = (case.obtained, case.expected) if is_extra else (case.expected, case.obtained)
    assert abs(ours) == 0.5 < abs(theirs)


@exhaustive
def test_smallest_case_of_another_state_is_a_value_that_it_changes() -> None:
    a, b = (
        tdx.TransformedEnv(
            tdx.PendulumEnv(), tdx.ObservationNorm(loc=0.0, scale=scale, in_keys=["observation"])
        )
        for scale in (1.0, 2.0)
    )
    difference = tdx.diff_stacks(a, b).first
    assert difference is not None
    assert difference.key == "scale"
    case = difference.smallest
    assert case is not None
    assert (case.key, case.step) == ("observation", None)
    assert case.obtained == pytest.approx(2 * case.expected)


@exhaustive
def test_element_of_an_image_is_that_of_the_image_not_of_its_thumbnail(tmp_path: Path) -> None:
    def images(bottom: float) -> tdx.TransformedEnv:
        env = tdx.GymWrapper(made.Camera(size=100))
        keys = ["pixels"]
        resized = tdx.Compose(tdx.ToTensorImage(in_keys=keys), tdx.Resize(84, 84, in_keys=keys))
        factor = torch.ones(3, 84, 84)
        factor[:, 60] = bottom
        norm = tdx.ObservationNorm(loc=torch.zeros(3, 1, 1), scale=factor, in_keys=keys)
        return tdx.TransformedEnv(env, tdx.Compose(resized, norm))

    tdx.save_contract(tdx.freeze(images(1.0)), tmp_path / "contract")
    contract = tdx.load_contract(tmp_path / "contract")
    report = tdx.check_contract(images(3.0), contract)
    assert report.first is not None
    assert report.first.smallest is not None
    assert report.first.smallest.element[1] == 60
    assert shrink_contract(images(3.0), contract, report).stage == 1
