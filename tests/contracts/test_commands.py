"""``tdx contract``, its former names, and ``diff`` of stacks."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tdx.cli.process import run
from tests.programs import exhaustive

NORMALIZED = ["--env", "Pendulum-v1", "--t", "ObservationNorm(0.0, 2.0, in_keys=['observation'])"]
OTHER = ["--env", "Pendulum-v1", "--t", "ObservationNorm(0.0, 4.0, in_keys=['observation'])"]
MODULE = """
import gymnasium as gym


def train():
    return gym.wrappers.RescaleAction(gym.make("Pendulum-v1"), -1.0, 1.0)


def deploy():
    return gym.make("Pendulum-v1")


def positive_rewards():
    return gym.wrappers.ClipReward(train(), 0.0, 1.0)


def negative_rewards():
    return gym.wrappers.ClipReward(train(), -1.0, 0.0)


def hostile():
    class Wrapper(gym.ObservationWrapper):
        def observation(self, observation):
            return observation * 2

    Wrapper.__name__ = "<script>\\x1b[2J"
    return Wrapper(gym.make("Pendulum-v1"))
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("envs.py").write_text(
        MODULE.replace("-1.0, 1.0", "*map(_f, (-1, 1))").replace(
            "import gymnasium as gym\n",
            "import gymnasium as gym\nfrom numpy import float32 as _f\n",
            1,
        )
    )


@exhaustive
def test_chain_of_a_pipeline_is_recorded_and_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["contract", "record", *NORMALIZED]) == 0
    assert "wrote contract (1 stages)" in capsys.readouterr().err.replace("stage)", "stages)")
    assert run(["contract", "check", *NORMALIZED, "--against", "contract"]) == 0
    assert run(["contract", "check", *OTHER, "--against", "contract"]) == 1
    out = capsys.readouterr().out
    assert "stage 0 (ObservationNorm)" in out
    assert run(["contract", "record", *NORMALIZED]) == 2
    assert "use --force" in capsys.readouterr().err
    assert run(["contract", "record", *NORMALIZED, "--force"]) == 0


@exhaustive
def test_formats_have_the_same_differences(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["contract", "record", *NORMALIZED]) == 0
    texts = {}
    for form in ("json", "jsonl", "csv", "md"):
        capsys.readouterr()
        assert run(["contract", "check", *OTHER, "--against", "contract", "--format", form]) == 1
        texts[form] = capsys.readouterr().out
    document = json.loads(texts["json"])
    found = [*document["differences"], *document["follows"]]
    lines = [json.loads(line) for line in texts["jsonl"].splitlines()]
    assert [line["message"] for line in lines] == [each["message"] for each in found]
    rows = list(csv.DictReader(io.StringIO(texts["csv"])))
    assert [row["code"] for row in rows] == [each["code"] for each in found]
    assert rows[0]["root"] == "True"


@pytest.mark.parametrize("diff", [["diff"], ["contract", "diff"]], ids=" ".join)
@exhaustive
def test_diff_of_functions_writes_html(diff: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    command = [*diff, "envs.py:train", "envs.py:deploy", "--allow-code"]
    assert run([*command, "--html", "report.html"]) == 1
    assert "stage 3 (RescaleAction) of the reference, key 'action'" in capsys.readouterr().out
    page = Path("report.html").read_text()
    assert "smallest case" in page
    assert "RescaleAction" in page
    assert "missing stage" in page
    assert "python report-smallest/reproduce.py" in page
    assert Path("report-smallest/contract/contract.yaml").exists()
    Path("report.html").unlink()
    capsys.readouterr()
    assert run([*command, "--html", "report.html"]) == 2
    assert "report-smallest already exists" in capsys.readouterr().err
    assert run([*command, "--html", "report.html", "--force"]) == 1
    assert run([*diff, "envs.py:train", "envs.py:train", "--allow-code"]) == 0


def test_check_writes_a_page_and_the_smallest_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["contract", "record", *NORMALIZED]) == 0
    check = ["contract", "check", *OTHER, "--against", "contract"]
    assert run([*check, "-o", "report.html"]) == 1
    shown = capsys.readouterr()
    assert "first difference" in shown.out
    assert "wrote report-smallest" in shown.err
    assert "python report-smallest/reproduce.py" in Path("report.html").read_text()
    assert run(["contract", "check", *NORMALIZED, "--against", "contract", "-o", "-"]) == 0
    assert capsys.readouterr().out.startswith("<!doctype html>")
    assert not Path("--smallest").exists()


@exhaustive
def test_diff_of_functions_compares_rewards(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["diff", "envs.py:positive_rewards", "envs.py:negative_rewards", "--allow-code"]
    assert run(command) == 1
    assert (
        "(ClipReward), key 'reward': min_reward is -1.0 instead of 0.0" in capsys.readouterr().out
    )


@exhaustive
def test_diff_of_a_contract_and_a_function(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["contract", "record", "envs.py:train", "--allow-code"]) == 0
    assert run(["diff", "contract", "envs.py:train", "--allow-code"]) == 0
    assert run(["diff", "contract", "envs.py:deploy", "--allow-code"]) == 1
    assert run(["diff", "envs.py:deploy", "contract", "--allow-code"]) == 2
    assert "run tdx diff contract envs.py:deploy" in capsys.readouterr().err
    fixed = ["contract", "envs.py:train", "--allow-code"]
    assert run(["diff", *fixed, "--steps", "3"]) == 2
    assert run(["contract", "diff", *fixed, "--seed", "1"]) == 2


def test_code_needs_permission(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["contract", "record", "envs.py:train"]) == 2
    assert "--allow-code" in capsys.readouterr().err
    assert not Path("contract").exists()


def test_missing_contract_gets_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["contract", "check", *NORMALIZED, "--against", "nowhere"]) == 3
    assert "cannot read the contract nowhere" in capsys.readouterr().err


def test_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["contract", "record", *NORMALIZED, "--compare", "observation,rewrd"]) == 2
    assert "'rewrd'" in capsys.readouterr().err


@exhaustive
def test_compared_parts_are_stored(capsys: pytest.CaptureFixture[str]) -> None:
    scaled = ["--env", "Pendulum-v1", "--t", "RewardScaling(0.0, 0.1)"]
    plain = ["--env", "Pendulum-v1"]
    for parts, code in ((["--compare", "observation,reward"], 1), ([], 0)):
        assert run(["contract", "record", *scaled, *parts, "--force"]) == 0
        assert run(["contract", "check", *plain, "--against", "contract"]) == code
    capsys.readouterr()


@exhaustive
def test_names_of_strangers_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["diff", "envs.py:deploy", "envs.py:hostile", "--allow-code", "--html", "report.html"]
    assert run(command) == 1
    assert "\x1b" not in capsys.readouterr().out
    page = Path("report.html").read_text()
    assert "<script>" not in page
    assert "\x1b" not in page


def test_codes_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "TDX509"]) == 0
    assert "statistics are fresh" in capsys.readouterr().out


@exhaustive
def test_stage_for_monitoring_on_one_side_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["contract", "record", "Pendulum-v1", "-t", "RewardSum"]) == 0
    assert "wrote contract (1 stage)\n" in capsys.readouterr().err
    assert run(["contract", "check", "Pendulum-v1", "--against", "contract"]) == 0
    note = "note: only the contract has stage 0 (RewardSum), which writes episode_reward"
    assert note in capsys.readouterr().out
    assert (
        run(["contract", "check", "Pendulum-v1", "-t", "RewardSum", "--against", "contract"]) == 0
    )
    assert "note:" not in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--fix", "--strict", "--unsafe-fixes"])
def test_options_of_rules_do_not_apply_to_a_contract(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", "Pendulum-v1", "--against", "contract", option]) == 2
    assert f"{option} does not apply to a contract" in capsys.readouterr().err


@exhaustive
def test_former_names_do_the_same_and_are_in_no_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["freeze", *NORMALIZED, "--out", "former"]) == 0
    assert run(["contract", "record", *NORMALIZED]) == 0
    for name in ("contract.yaml", "golden.safetensors"):
        assert (Path("former") / name).read_bytes() == (Path("contract") / name).read_bytes()
    capsys.readouterr()
    assert run(["check", *OTHER, "--against", "contract"]) == 1
    former = capsys.readouterr().out
    assert run(["contract", "check", *OTHER]) == 1
    assert capsys.readouterr().out == former
    assert run(["--help"]) == 0
    assert "freeze" not in capsys.readouterr().out
    assert run(["check", "--help"]) == 0
    assert "--against" not in capsys.readouterr().out


@exhaustive
def test_contents_of_a_contract_are_shown_without_running_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["contract", "record", "envs.py:train", "--allow-code"]) == 0
    Path("envs.py").unlink()
    capsys.readouterr()
    assert run(["contract", "show"]) == 0
    shown = capsys.readouterr().out
    assert "compared: observation, action" in shown
    assert "RescaleAction" in shown
    assert run(["contract", "show", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    stages = {stage["name"]: stage for stage in document["stages"]}
    assert stages["RescaleAction"]["writes"] == ["inverse action"]
    assert run(["contract", "show", "nowhere"]) == 3
