"""Fixing pipelines."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdx.inspection.check_report import fix_pipeline
from tdx.inspection.lint.linter import select_rules
from tdx.pipeline import EnvConfig, Pipeline, PipelineFile, format_stage, validate
from tdx.pipeline.arguments import name_arguments
from tests.programs import examples

PIXELS = EnvConfig("CartPole-v1", from_pixels=True)


def fix_stages(env: EnvConfig | str, *stages: str, strict: bool = False) -> list[str]:
    result = fix_pipeline(Pipeline.of(env, *stages), strict=strict)
    return [format_stage(stage) for stage in result.pipeline.transforms]


def test_each_fix_applies_to_the_result_of_the_previous_one() -> None:
    stages = ["CatFrames(4, dim=-1)", "ToTensorImage", "GrayScale", "GrayScale", "Resize(64)"]
    assert fix_stages(PIXELS, *stages) == [
        "ToTensorImage",
        "GrayScale",
        "Resize(64)",
        "CatFrames(N=4, dim=-3)",
    ]


def test_suggestions_are_fixed_only_if_strict() -> None:
    stages = ["RewardClipping(-1, 1)", "RewardSum"]
    assert fix_stages("Pendulum-v1", *stages) == stages
    assert fix_stages("Pendulum-v1", *stages, strict=True) == stages[::-1]


def test_invalid_chain_is_fixed_as_far_as_possible() -> None:
    assert fix_stages(
        "Pendulum-v1", "InitTracker", "InitTracker", 'RenameTransform(["a"], ["b"])'
    ) == [
        "InitTracker",
        'RenameTransform(["a"], ["b"])',
    ]


def test_ignored_rules_are_not_fixed() -> None:
    pipeline = Pipeline.of("Pendulum-v1", "RewardScaling(0.0, 1.0)", "RewardClipping")
    result = fix_pipeline(pipeline, rules=select_rules(ignore=["TDX49"]))
    assert result.pipeline == pipeline
    assert result.fixes == ()


@pytest.mark.parametrize("strict", [False, True])
def test_valid_pipeline_is_unchanged(strict: bool) -> None:
    assert fix_stages("Pendulum-v1", "RewardSum", "InitTracker", strict=strict) == [
        "RewardSum",
        "InitTracker",
    ]


STAGES = [
    *("RewardClipping(-1, 1)", "RewardScaling(0.0, 0.1)", "RewardScaling(0.0, 1.0)", "RewardSum"),
    *("BinarizeReward", "VecNorm", "InitTracker", "StepCounter(max_steps=9, update_done=False)"),
    *("StepCounter", "FrameSkipTransform(2)", "DoubleToFloat", "ActionScaling"),
    *("ActionDiscretizer(5)", 'ExcludeTransform("reward")', 'ExcludeTransform("observation")'),
    *('CatFrames(2, dim=-1, in_keys=["observation"])', "ObservationNorm(0.0, 0.5)"),
    *(
        'RenameTransform(["observation"], ["state"])',
        "DTypeCastTransform(torch.float32, torch.int8)",
    ),
    *('UnsqueezeTransform(-1, in_keys=["observation"])', 'SelectTransform("observation")'),
    'SqueezeTransform(-1, in_keys=["observation"])',
]


@settings(max_examples=examples(40))
@given(st.lists(st.sampled_from(STAGES), min_size=2, max_size=6), st.booleans())
def test_fixed_pipeline_has_no_new_errors_and_no_more_fixes(
    stages: list[str], strict: bool
) -> None:
    pipeline = Pipeline.of("Pendulum-v1", *stages)
    result = fix_pipeline(pipeline, strict=strict)
    assert fix_pipeline(result.pipeline, strict=strict).fixes == ()
    if not validate(pipeline):
        assert not validate(result.pipeline)
    file = PipelineFile.new(pipeline)
    for _, fix in result.fixes:
        file.write(fix.apply(file.draft))
    written, wanted = file.pipeline.transforms, result.pipeline.transforms
    assert [name_arguments(stage) for stage in written] == [
        name_arguments(stage) for stage in wanted
    ]
