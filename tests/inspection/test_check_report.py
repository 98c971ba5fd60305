"""Checks of a pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdx.foundation.errors import EnvError, EnvNotFoundError
from tdx.inspection.check_report import CheckReport, check_pipeline
from tdx.pipeline import Pipeline, PipelineFile

VIOLATIONS = '''
"""Transforms that violate their specs."""
import torch
from tdx import Transform, Unbounded

class Unwritten(Transform):
    """Declares a key but does not write it."""

    def transform_observation_spec(self, observation_spec):
        observation_spec = observation_spec.clone()
        observation_spec["declared"] = Unbounded((1,))
        return observation_spec

class Wrong(Transform):
    """Writes another dtype than it declares."""

    def _apply_transform(self, value):
        return value.double()
'''


def check(*stages: str, env: str = "Pendulum-v1", allow_code: bool = False) -> CheckReport:
    return check_pipeline(Pipeline.of(env, *stages), allow_code=allow_code)


def test_valid_pipeline_has_no_findings() -> None:
    report = check("StepCounter(max_steps=2)", "RewardSum")
    assert report.ok
    assert report.checks == ("arguments", "specs", "steps", "lints")
    assert report.to_dict()["findings"] == []


def test_all_invalid_arguments_are_reported() -> None:
    report = check("StepCouter", "StepCounter(max_stesp=1)", "RewardSum(nothing=1)")
    assert report.checks == ("arguments",)
    assert [finding.where.stage for finding in report.findings] == [0, 1, 2]
    assert report.findings[0].hint == "did you mean StepCounter?"


def test_missing_key_is_reported() -> None:
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
    ("name", "violation", "key"),
    [("Unwritten", "missing", "declared"), ("Wrong", "dtype", "observation")],
)
def test_stage_with_a_spec_violation_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, violation: str, key: str
) -> None:
    (tmp_path / "violating_transforms.py").write_text(VIOLATIONS)
    monkeypatch.syspath_prepend(str(tmp_path))
    arguments = '(in_keys=["observation"], out_keys=["observation"])' if name == "Wrong" else ""
    report = check("RewardSum", f"violating_transforms:{name}{arguments}", allow_code=True)
    assert report.checks == ("arguments", "specs", "steps", "lints")
    first = report.findings[0]
    assert (first.violation, first.where.stage, first.where.key) == (violation, 1, key)
    assert first.where.transform == name


def test_failure_of_the_env_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvNotFoundError):
        check(env="Pendulm-v1")

    def fail(self: object, **kwargs: object) -> None:
        raise RuntimeError("no power")

    monkeypatch.setattr("gymnasium.envs.classic_control.pendulum.PendulumEnv.reset", fail)
    with pytest.raises(EnvError, match=r"Pendulum-v1.*no power"):
        check()
