"""An example is found for every transform."""

from __future__ import annotations

import pytest

from tdx.inspection.transform_example import find_example
from tdx.pipeline import catalogue

UNCHANGED = {"DeviceCastTransform", "FrameSkipTransform", "NoopResetEnv", "RewardScaling"}
"""Transforms that change what happens, or values, and no spec of the env in their example."""

ON_DATA_OF_THEIR_OWN = {
    "ActionMask",
    "BurnInTransform",
    "FlattenAction",
    "Reward2GoTransform",
    "SqueezeTransform",
    "TerminateTransform",
}
"""Transforms for which none of the envs at hand has the entries, or that take Python objects."""


@pytest.mark.parametrize("name", catalogue().names)
def test_transform_has_an_example_that_shows_what_it_does(name: str) -> None:
    if name == "DoubleToFloat":
        pytest.importorskip("mujoco", reason="the only envs with float64 observations")
    example = find_example(catalogue()[name])
    if name in ON_DATA_OF_THEIR_OWN:
        assert example is None
        return
    assert example is not None
    assert name in example.command
    changed = [change.key for change in example.changes if change.change != "same"]
    assert bool(changed) != (name in UNCHANGED)
