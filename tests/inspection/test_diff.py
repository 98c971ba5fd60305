"""Comparison of two pipelines."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest
import torch
from tensordict import TensorDict

from tdx.inspection.diff import (
    DiffReport,
    PipelineSide,
    align_stages,
    compare_pipelines,
    compare_values,
)
from tdx.pipeline import Pipeline, StageConfig, parse_stage


def report_of(a: Pipeline, b: Pipeline, steps: int | None = None, seed: int = 0) -> DiffReport:
    sides = PipelineSide("a", a), PipelineSide("b", b)
    try:
        return compare_pipelines(*sides, steps=steps, seed=seed)
    finally:
        for side in sides:
            side.close()


def stages(*texts: str) -> list[StageConfig]:
    return [parse_stage(text) for text in texts]


def outline(a: Sequence[StageConfig], b: Sequence[StageConfig]) -> list[tuple[object, ...]]:
    return [(each.status, each.a_index, each.b_index) for each in align_stages(a, b)]


COUNT, SUM, INIT = "StepCounter(max_steps=9)", "RewardSum", "InitTracker"


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([], [], []),
        ([COUNT], ["StepCounter(9)"], [("same", 0, 0)]),
        ([COUNT], ["StepCounter"], [("changed", 0, 0)]),
        ([COUNT], [INIT, "StepCounter"], [("added", None, 0), ("changed", 0, 1)]),
        ([SUM, INIT], [SUM], [("same", 0, 0), ("removed", 1, None)]),
        ([SUM], [INIT, SUM], [("added", None, 0), ("same", 0, 1)]),
        ([SUM, INIT, COUNT], [COUNT, SUM, INIT], [("moved", 2, 0), ("same", 0, 1), ("same", 1, 2)]),
        (
            [SUM, COUNT],
            [INIT, "StepCounter"],
            [("removed", 0, None), ("added", None, 0), ("changed", 1, 1)],
        ),
        (
            ["RewardClipping(0, 1)", "RewardClipping(0, 2)"],
            ["RewardClipping(0, 2)", "RewardClipping(0, 3)"],
            [("removed", 0, None), ("same", 1, 0), ("added", None, 1)],
        ),
    ],
    ids=lambda value: "",
)
def test_stages_are_paired(a: list[str], b: list[str], expected: list[tuple[object, ...]]) -> None:
    assert outline(stages(*a), stages(*b)) == expected


def test_every_stage_of_both_sides_occurs_once() -> None:
    a = stages(SUM, INIT, COUNT, "DoubleToFloat", SUM)
    b = stages(COUNT, "DoubleToFloat", "RewardClipping(0, 1)", SUM, "StepCounter")
    changes = align_stages(a, b)
    left = [each.a_index for each in changes if each.a_index is not None]
    right = [each.b_index for each in changes if each.b_index is not None]
    assert (sorted(left), right) == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])


def test_changed_arguments_are_listed() -> None:
    (change,) = align_stages(
        stages("CatFrames(4, -1)"), stages("CatFrames(N=3, dim=-1, padding='zeros')")
    )
    assert [(each.name, each.a, each.b) for each in change.arguments] == [
        ("N", "4", "3"),
        ("padding", "default", '"zeros"'),
    ]


def test_pipeline_equals_itself() -> None:
    pipeline = Pipeline.of("Pendulum-v1", COUNT, "NoopResetEnv(3)")
    report = report_of(pipeline, pipeline, steps=12, seed=5)
    assert report.same
    assert {value.status for value in report.values} == {"same"}


def test_specs_and_values_that_differ() -> None:
    report = report_of(
        Pipeline.of("Pendulum-v1", "RewardScaling(0.0, 1.0)"),
        Pipeline.of("Pendulum-v1", "RewardScaling(0.5, 1.0)", "StepCounter"),
        steps=4,
    )
    assert not report.same
    changes = {str(each.key): each.change for each in report.chain_specs}
    assert (changes["step_count"], changes["observation"]) == ("added", "same")
    assert {each.change for each in report.env_specs} == {"same"}
    values = {each.key: each for each in report.values}
    assert values["next.observation"].status == "same"
    assert values["next.step_count"].status == "only_b"
    reward = values["next.reward"]
    assert (reward.status, reward.first_step) == ("different", 0)
    assert reward.largest == pytest.approx(0.5, abs=1e-5)


def test_settings_of_the_env_that_differ() -> None:
    a, b = Pipeline.of("CartPole-v1"), Pipeline.of("CartPole-v1", SUM)
    other = Pipeline(type(b.env)("CartPole-v1", num_envs=2), b.transforms)
    report = report_of(a, other)
    assert [(each.name, each.a, each.b) for each in report.env] == [("num_envs", "None", "2")]
    assert any(each.change == "changed" for each in report.env_specs)


def test_global_generator_is_restored() -> None:
    state = torch.get_rng_state()
    report_of(Pipeline.of("Pendulum-v1"), Pipeline.of("Pendulum-v1"), steps=2)
    assert torch.equal(state, torch.get_rng_state())


def test_values_of_each_kind() -> None:
    ramp = torch.arange(6.0).reshape(2, 3, 1)
    nan = ramp.clone()
    nan[:, 1] = math.nan
    later = ramp.clone()
    later[1, 2] += 2
    a = TensorDict(x=ramp, n=nan, s=ramp, d=ramp, flag=ramp > 1, batch_size=[2, 3])
    b = TensorDict(
        *({},),
        batch_size=[2, 3],
    ).update(
        {"x": later, "n": nan.clone(), "s": ramp[..., 0], "d": ramp.double(), "flag": ramp > 2}
    )
    found = {each.key: each for each in compare_values(a, b)}
    assert (found["x"].status, found["x"].largest, found["x"].first_step) == ("different", 2.0, 2)
    assert found["n"].status == "same"
    assert (found["s"].status, found["s"].note) == ("shape", "[2, 3, 1] and [2, 3]")
    assert (found["d"].status, found["d"].note) == ("different", "float32 and float64")
    assert (found["flag"].largest, found["flag"].first_step) == (1.0, 2)


def test_report_is_json_serializable() -> None:
    report = report_of(Pipeline.of("Pendulum-v1"), Pipeline.of("Pendulum-v1", SUM), steps=2)
    data = report.to_dict()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
