"""Changes of the specs by a chain."""

from __future__ import annotations

import json

import pytest

from tdx.foundation.errors import KeyNotFoundError
from tdx.foundation.keys import NestedKey
from tdx.inspection.spec_report import KeyChange, SpecReport, inspect_spec
from tdx.pipeline import Pipeline, build_checked_env
from tdx.specs import TensorSpec, leaf


def report_of(*stages: str) -> SpecReport:
    env = build_checked_env(Pipeline.of("Pendulum-v1", *stages))
    try:
        return inspect_spec(env, "Pendulum-v1")
    finally:
        env.close()


def one(report: SpecReport, part: str, key: str) -> KeyChange:
    (found,) = [each for each in report.changes if (each.part, each.key) == (part, key)]
    return found


def test_env_without_a_chain_has_no_changes() -> None:
    report = report_of()
    assert {change.change for change in report.changes} == {"same"}
    assert report.stages == ()


def test_changes_name_their_stages() -> None:
    report = report_of(
        "StepCounter(max_steps=3)",
        'CatFrames(2, dim=-1, in_keys=["observation"])',
        'RenameTransform(["reward"], ["prize"])',
        'CatFrames(3, dim=-1, in_keys=["observation"])',
    )
    assert one(report, "observation", "step_count").change == "added"
    assert one(report, "observation", "step_count").stages == (0,)
    stacked = one(report, "observation", "observation")
    assert (stacked.change, stacked.stages) == ("changed", (1, 3))
    assert stacked.fields == ("shape", "domain")
    assert stacked.after is not None
    assert stacked.after.shape == (18,)
    assert one(report, "reward", "reward").change == "gone"
    assert one(report, "reward", "prize").stages == (2,)
    assert one(report, "action", "action").change == "same"


def test_stage_reports_only_its_own_changes() -> None:
    report = report_of("StepCounter", "RewardSum")
    changed = [
        {str(change.key) for change in stage.changes if change.change != "same"}
        for stage in report.stages
    ]
    assert changed == [{"step_count"}, {"episode_reward"}]
    assert [stage.name for stage in report.stages] == ["StepCounter", "RewardSum"]


def test_report_of_one_key() -> None:
    report = report_of("StepCounter", "RewardSum").only("step_count")
    assert {change.key for change in report.changes} == {"step_count"}
    with pytest.raises(KeyNotFoundError, match="did you mean step_count"):
        report.only("step_coun")


def test_report_is_json_serializable() -> None:
    report = report_of("StepCounter")
    data = report.to_dict()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert data["before"] == {"batch_size": [], "device": "cpu"}
    assert [stage["transform"] for stage in data["stages"]] == ["StepCounter"]


def test_env_has_the_name_of_its_class_by_default() -> None:
    from tdx import PendulumEnv, StepCounter, TransformedEnv

    report = inspect_spec(TransformedEnv(PendulumEnv(batch_size=[2]), StepCounter()))
    assert report.env == "PendulumEnv"
    assert report.after.batch_size == (2,)


def test_specs_that_no_stage_changes_are_converted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    converted: list[NestedKey] = []

    def record(part: leaf.Part, key: NestedKey, spec: TensorSpec) -> leaf.LeafSpec:
        converted.append(key)
        return leaf_spec(part, key, spec)

    leaf_spec = leaf.leaf_spec
    monkeypatch.setattr(leaf, "leaf_spec", record)
    stages = [f'ObservationNorm(0.0, 2.0, out_keys=["scaled_{index}"])' for index in range(9)]
    report = report_of(*stages)
    assert converted.count("observation") == 1
    assert one(report, "observation", "scaled_8").stages == (8,)
