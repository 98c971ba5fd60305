"""What the checks of a pipeline find."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdx.errors import EnvError, EnvNotFoundError
from tdx.inspection.check_report import CheckReport, check_pipeline
from tdx.pipeline import Pipeline, PipelineFile

LIAR = '''
"""Transforms that do not keep their word."""
import torch
from tdx import Transform, Unbounded

class Silent(Transform):
    """Declares a key and never writes it."""

    def transform_observation_spec(self, observation_spec):
        observation_spec = observation_spec.clone()
        observation_spec["promised"] = Unbounded((1,))
        return observation_spec

class Wrong(Transform):
    """Writes another dtype than it declares."""

    def _apply_transform(self, value):
        return value.double()
'''


def check(*stages: str, env: str = "Pendulum-v1", allow_code: bool = False) -> CheckReport:
    return check_pipeline(Pipeline.of(env, *stages), allow_code=allow_code)


def test_nothing_to_find() -> None:
    report = check("StepCounter(max_steps=2)", "RewardSum")
    assert report.ok
    assert report.checks == ("arguments", "specs", "steps", "lints")
    assert report.to_dict()["findings"] == []


def test_every_wrong_argument_is_found_at_once() -> None:
    report = check("StepCouter", "StepCounter(max_stesp=1)", "RewardSum(nothing=1)")
    assert report.checks == ("arguments",)
    assert [finding.where.stage for finding in report.findings] == [0, 1, 2]
    assert report.findings[0].hint == "did you mean StepCounter?"


def test_key_that_is_not_there() -> None:
    report = check('ObservationNorm(0.0, 2.0, in_keys=["obs"])')
    (finding,) = report.findings
    assert (finding.check, finding.where.stage, finding.where.key) == ("specs", 0, "obs")
    assert "observation" in (finding.hint or "")


def test_stage_that_raises_in_a_step_is_a_finding() -> None:
    pipeline = Pipeline.of("Pendulum-v1", "RewardSum", "ObservationNorm")
    (finding,) = check_pipeline(pipeline, rules=()).findings
    assert (finding.check, finding.code, finding.where.stage) == ("steps", "TDX202", 1)
    (better,) = check_pipeline(pipeline).findings
    assert (better.check, better.code, better.where.stage) == ("steps", "TDX446", 1)


def test_finding_in_a_file_has_its_line() -> None:
    text = "version: 1\nenv: Pendulum-v1\ntransforms:\n  - RewardSum\n  - StepCouter\n"
    (finding,) = check_pipeline(PipelineFile(text, "chain.yaml").pipeline).findings
    assert (finding.where.file, finding.where.line) == ("chain.yaml", 5)


@pytest.mark.parametrize(
    ("name", "lie", "key"), [("Silent", "missing", "promised"), ("Wrong", "dtype", "observation")]
)
def test_stage_that_lies_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, lie: str, key: str
) -> None:
    (tmp_path / "liar_transforms.py").write_text(LIAR)
    monkeypatch.syspath_prepend(str(tmp_path))
    arguments = '(in_keys=["observation"], out_keys=["observation"])' if name == "Wrong" else ""
    report = check("RewardSum", f"liar_transforms:{name}{arguments}", allow_code=True)
    assert report.checks == ("arguments", "specs", "steps", "lints")
    first = report.findings[0]
    assert (first.lie, first.where.stage, first.where.key) == (lie, 1, key)
    assert first.where.transform == name


def test_env_that_fails_is_an_error_and_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvNotFoundError):
        check(env="Pendulm-v1")

    def fail(self: object, **kwargs: object) -> None:
        raise RuntimeError("no power")

    monkeypatch.setattr("gymnasium.envs.classic_control.pendulum.PendulumEnv.reset", fail)
    with pytest.raises(EnvError, match=r"Pendulum-v1.*no power"):
        check()
