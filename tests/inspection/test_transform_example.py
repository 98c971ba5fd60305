"""An example is found for every transform."""

from __future__ import annotations

import pytest

from tdx.inspection.transform_example import find_example
from tdx.pipeline import catalogue

UNCHANGED = {"RewardScaling"}
"""Transforms that change values and no spec of an env whose rewards are unbounded."""


@pytest.mark.parametrize("name", catalogue().names)
def test_transform_has_an_example_that_shows_what_it_does(name: str) -> None:
    if name == "DoubleToFloat":
        pytest.importorskip("mujoco", reason="the only envs with float64 observations")
    example = find_example(catalogue()[name])
    assert example is not None
    assert name in example.command
    changed = [change.key for change in example.changes if change.change != "same"]
    assert bool(changed) != (name in UNCHANGED)
