"""What mending makes of a pipeline."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdx.inspection.lint.mend import mend
from tdx.inspection.lint.select import chosen_rules
from tdx.pipeline import EnvConfig, Pipeline, PipelineFile, format_stage, validate
from tdx.pipeline.arguments import name_arguments

PIXELS = EnvConfig("CartPole-v1", from_pixels=True)


def mended(env: EnvConfig | str, *stages: str, strict: bool = False) -> list[str]:
    result = mend(Pipeline.of(env, *stages), strict=strict)
    return [format_stage(stage) for stage in result.pipeline.transforms]


def test_each_fix_builds_on_the_one_before() -> None:
    stages = ["CatFrames(4, dim=-1)", "ToTensorImage", "GrayScale", "GrayScale", "Resize(64)"]
    assert mended(PIXELS, *stages) == [
        "ToTensorImage",
        "GrayScale",
        "Resize(64)",
        "CatFrames(N=4, dim=-3)",
    ]


def test_advice_is_followed_only_when_asked_for() -> None:
    stages = ["RewardClipping(-1, 1)", "RewardSum"]
    assert mended("Pendulum-v1", *stages) == stages
    assert mended("Pendulum-v1", *stages, strict=True) == stages[::-1]


def test_chain_that_cannot_be_built_is_mended_as_far_as_it_can_be() -> None:
    assert mended("Pendulum-v1", "InitTracker", "InitTracker", 'RenameTransform(["a"], ["b"])') == [
        "InitTracker",
        'RenameTransform(["a"], ["b"])',
    ]


def test_only_the_rules_that_run_are_mended() -> None:
    pipeline = Pipeline.of("Pendulum-v1", "RewardScaling(0.0, 1.0)", "RewardClipping")
    result = mend(pipeline, rules=chosen_rules(ignore=["TDX49"]))
    assert result.pipeline == pipeline
    assert result.fixes == ()


@pytest.mark.parametrize("strict", [False, True])
def test_nothing_to_mend_changes_nothing(strict: bool) -> None:
    assert mended("Pendulum-v1", "RewardSum", "InitTracker", strict=strict) == [
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


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(STAGES), min_size=2, max_size=6), st.booleans())
def test_what_is_mended_is_no_worse_and_stays(stages: list[str], strict: bool) -> None:
    pipeline = Pipeline.of("Pendulum-v1", *stages)
    result = mend(pipeline, strict=strict)
    assert mend(result.pipeline, strict=strict).fixes == ()
    if not validate(pipeline):
        assert not validate(result.pipeline)
    file = PipelineFile.new(pipeline)
    for _, fix in result.fixes:
        fix.apply(file)
    written, wanted = file.pipeline.transforms, result.pipeline.transforms
    assert [name_arguments(stage) for stage in written] == [
        name_arguments(stage) for stage in wanted
    ]
