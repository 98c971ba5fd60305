"""Examples of transforms, found by trying."""

from __future__ import annotations

import shlex

import pytest

from tdx.inspection.transform_example import find_example
from tdx.pipeline import catalogue, parse_stage

ONE_OF_EACH_NEED = (
    "ActionScaling",
    "CatFrames",
    "DoubleToFloat",
    "GrayScale",
    "ObservationNorm",
    "RenameTransform",
    "Resize",
    "RewardClipping",
    "SqueezeTransform",
    "StepCounter",
    "TensorDictPrimer",
    "ToTensorImage",
)


@pytest.mark.parametrize("name", ONE_OF_EACH_NEED)
def test_an_example_shows_what_the_transform_does(name: str) -> None:
    if name == "DoubleToFloat":
        pytest.importorskip("mujoco", reason="the only envs with float64 observations")
    example = find_example(catalogue()[name])
    assert example is not None
    assert any(change.change != "same" for change in example.changes)


@pytest.mark.parametrize("name", catalogue().names)
def test_an_example_is_a_command_that_can_be_run(name: str) -> None:
    """There is none for a transform that fits no common env, or needs a Python object."""
    example = find_example(catalogue()[name])
    if example is not None:
        *_, stage = example.pipeline.transforms
        assert stage.name == name
        words = shlex.split(example.command)
        assert words[:4] == ["tdx", "inspect", "spec", "--env"]
        assert parse_stage(words[-1]) == stage
