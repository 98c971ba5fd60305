"""Suggestions, measured with a clock that advances with operations of torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from tdx.pipeline import EnvConfig, Pipeline, build_checked_env, format_stage
from tdx.profiling.result import Mode, ModeProfile
from tdx.profiling.run import ProfilePlan, profile_env
from tdx.profiling.suggestions import Candidate, Suggestions, find_agreement, try_changes
from tests.profiling.fake_clock import FakeClock
from tests.profiling.fake_stages import simulated_work
from tests.programs import exhaustive

PIXELS = EnvConfig("tests.profiling.fake_stages:PixelEnv")
IDLE = "tests.profiling.fake_stages:Idle"


def stages_of(pipeline: Pipeline) -> list[str]:
    return [format_stage(stage) for stage in pipeline.transforms]


def advised(*stages: str, mode: Mode = "planned", **others: Any) -> Suggestions:
    pipeline = Pipeline.of(PIXELS, *stages)
    clock = FakeClock()
    plan = ProfilePlan(steps=12, warmup=2, repeats=3, passes=(), clock=clock)
    with simulated_work(clock):
        return try_changes(
            pipeline, measured(pipeline, mode, plan), plan, allow_code=True, **others
        )


def measured(pipeline: Pipeline, mode: Mode, plan: ProfilePlan) -> ModeProfile:
    env = build_checked_env(pipeline, allow_code=True)
    (found,) = profile_env(env, [mode], plan).modes
    env.close()
    assert found.error is None
    return found


@pytest.mark.parametrize(
    ("small", "values"), [("CenterCrop(20)", "same"), ("Resize(20, 20)", "close")]
)
@exhaustive
def test_late_float_cast_is_suggested(small: str, values: str) -> None:
    found = advised("ToTensorImage", small, "RewardSum", mode="eager")
    (advice,) = [each for each in found.advice if each.candidate.kind == "bytes"]
    assert stages_of(advice.candidate.pipeline) == [
        'PermuteTransform([-1, -3, -2], in_keys=["pixels"])',
        small,
        "ToTensorImage(shape_tolerant=True)",
        "RewardSum",
    ]
    assert advice.values == values
    assert advice.saving.saved_us > advice.saving.noise_us
    assert "stage 0 converts pixels to floats" in advice.message
    assert "It saved" in advice.message


def test_moving_an_opaque_stage_is_suggested() -> None:
    found = advised("RewardSum", 'ObservationNorm(0.5, 2.0, in_keys=["observation"])', IDLE)
    (advice,) = found.advice
    assert advice.candidate.kind == "opaque"
    assert advice.candidate.stages == (2, 0, 1)
    assert advice.candidate.pipeline.transforms[0].name.endswith(":Idle")
    assert advice.values == "same"


def test_changes_that_alter_values_are_refused() -> None:
    found = advised("RewardScaling(0.0, 0.1)", "RewardSum", "tests.profiling.fake_stages:Doubled")
    assert found.advice == found.without_gain == ()
    assert "the values change" in found.refused[0]


@exhaustive
def test_removing_a_dead_stage_is_suggested() -> None:
    norm = 'ObservationNorm(0.5, 2.0, in_keys=["observation"], out_keys=["unread"])'
    found = advised(norm, "RewardSum", 'ExcludeTransform("unread")', mode="eager")
    (advice,) = found.advice
    assert advice.candidate.kind == "dead"
    assert advice.candidate.stages == (0, 2)
    assert stages_of(advice.candidate.pipeline) == ["RewardSum"]


@exhaustive
def test_removing_reverted_casts_is_suggested() -> None:
    there = 'DTypeCastTransform("float32", "float64", in_keys=["observation"])'
    back = 'DTypeCastTransform("float64", "float32", in_keys=["observation"])'
    (advice,) = advised(there, "RewardSum", back, mode="eager").advice
    assert advice.candidate.kind == "back-and-forth"
    assert stages_of(advice.candidate.pipeline) == ["RewardSum"]
    assert advice.values == "same"


@exhaustive
def test_freezing_statistics_is_suggested() -> None:
    found = advised('VecNorm(in_keys=["observation"])', mode="eager")
    (advice,) = found.advice
    assert advice.candidate.kind == "frozen"
    assert "env.transform[0].freeze()" in advice.message
    assert advice.message.endswith("values differ")


@exhaustive
def test_changes_without_savings_are_not_suggested() -> None:
    pipeline = Pipeline.of(PIXELS, "ToTensorImage", "Resize(20, 20)", "GrayScale")
    plan = ProfilePlan(steps=5, warmup=0, repeats=2, passes=(), clock=FakeClock())
    found = try_changes(pipeline, measured(pipeline, "eager", plan), plan, allow_code=True)
    assert found.advice == ()
    assert {each.candidate.kind for each in found.without_gain} == {"bytes", "order"}


@exhaustive
def test_additional_changes_are_tried() -> None:
    pipeline = Pipeline.of(PIXELS, "RewardSum")
    lint = Candidate("lint", (1,), "it is there twice", "remove RewardClipping", pipeline)
    broken = replace(lint, pipeline=Pipeline.of(PIXELS, 'CatFrames(2, -1, in_keys=["no"])'))
    found = advised("RewardSum", "RewardClipping(-9, 9)", further=[lint, broken], mode="eager")
    assert [each.candidate.kind for each in found.advice] == ["lint"]
    assert "'no'" in found.refused[0]


def test_values_are_compared_with_a_tolerance() -> None:
    one = TensorDict(a=torch.ones(3), b=torch.zeros(3, dtype=torch.long), batch_size=[3])
    assert find_agreement(one, one.clone()) == "same"
    assert find_agreement(one, one.clone().set("a", torch.full((3,), 1.005))) == "close"
    assert find_agreement(one, one.clone().set("a", torch.full((3,), 1.5))) == "other"
    assert find_agreement(one, one.clone().set("b", torch.ones(3, dtype=torch.long))) == "other"
    assert find_agreement(one, one.clone().set("a", torch.ones(3, dtype=torch.float64))) == "other"
    assert find_agreement(one, one.exclude("a")) == "other"
