"""What mending makes of a pipeline."""

from __future__ import annotations

import pytest

from tdx.inspection.lint.mend import mend
from tdx.inspection.lint.select import chosen_rules
from tdx.pipeline import EnvConfig, Pipeline, format_stage

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
