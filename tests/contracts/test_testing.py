"""The assertions and the plugin for pytest."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import tdx
from tdx.testing import assert_matches_contract, assert_same_pipeline
from tests.contracts import envs as made
from tests.programs import exhaustive

MODULE = """
from pathlib import Path

import gymnasium as gym
import pytest


@pytest.mark.parametrize("scale", [float(line) for line in Path("scales.txt").read_text().split()])
def test_preprocessing(check_contract, scale):
    env = gym.make("Pendulum-v1")
    check_contract(gym.wrappers.TransformObservation(env, lambda x: x * scale, None), "pendulum")
"""


def test_equal_pipelines_pass() -> None:
    assert tdx.testing.assert_same_pipeline is assert_same_pipeline
    assert_same_pipeline(made.rescaled(), made.rescaled(), steps=3)


@exhaustive
def test_message_names_stage_key_size_and_hint() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_same_pipeline(made.gym_normalized(), made.gym_normalized(count=0), steps=3)
    text = str(caught.value)
    assert "TDX509 state fresh: stage 3 (NormalizeObservation), key 'observation'" in text
    assert "observation differs by up to" in text
    assert "smallest case: the reset, feature " in text
    assert "the stage received: observation [" in text
    assert "hint: load the statistics of the reference" in text


@exhaustive
def test_contract_is_given_as_object_or_folder(tmp_path: Path) -> None:
    contract = tdx.freeze(made.gym_normalized())
    tdx.save_contract(contract, tmp_path / "contract")
    for given in (contract, tmp_path / "contract", str(tmp_path / "contract")):
        assert_matches_contract(made.gym_normalized(), given)
        with pytest.raises(AssertionError, match="still learning"):
            assert_matches_contract(made.gym_normalized(learning=True), given, evaluation=True)


def test_number_of_steps_is_limited() -> None:
    with pytest.raises(tdx.ArgumentError, match="steps must be 1 to 500"):
        assert_same_pipeline(made.rescaled(), made.rescaled(), steps=0)


@exhaustive
def test_fixture_writes_and_checks_contracts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_pytest(*options: str) -> str:
        # Python imports the module anew for each run.
        monkeypatch.delitem(sys.modules, "test_it", raising=False)
        plugins = ["no:cacheprovider", "no:unraisableexception", "no:threadexception"]
        plugins += [] if _is_installed() else ["tdx.testing"]
        selected = [f"-p{plugin}" for plugin in plugins]
        pytest.main(["-q", "-s", "--import-mode=importlib", *selected, *options, "test_it.py"])
        return capsys.readouterr().out

    monkeypatch.chdir(tmp_path)
    Path("test_it.py").write_text(MODULE)
    Path("scales.txt").write_text("2.0")
    assert "1 passed" in run_pytest("--update-contracts")
    assert Path("contracts/pendulum/contract.yaml").exists()
    Path("scales.txt").write_text("2.0\n3.0")
    output = run_pytest()
    assert "1 failed, 1 passed" in output
    assert "FAILED test_it.py::test_preprocessing[3.0]" in output


def _is_installed() -> bool:
    """Return True if the installed package already declares the plugin."""
    from importlib.metadata import entry_points

    return any(each.value == "tdx.testing" for each in entry_points(group="pytest11"))
