"""The maximum over the last steps."""

from __future__ import annotations

import pytest
import torch

from tdx import Bounded, Composite, TimeMaxPool, TransformedEnv
from tdx.foundation.errors import ArgumentError
from tests.transforms.envs import RowsEnv
from tests.transforms.fixed_rollouts import fixed_rollout


def test_the_maximum_of_an_episode_so_far() -> None:
    env = TransformedEnv(RowsEnv((3,)), TimeMaxPool(["precise"], ["highest"], T=2))
    rollout = fixed_rollout(env, 8)
    values, highest = rollout["precise"], rollout["highest"]
    count = 0
    for row in range(3):
        for step in range(8):
            starts = step == 0 or bool(rollout["next", "done"][row, step - 1])
            before = torch.zeros(2).double() if starts else values[row, step - 1]
            assert torch.equal(highest[row, step], torch.maximum(before, values[row, step]))
            count += starts
    assert count > 5


def test_bounds_include_the_zeros_before_the_start() -> None:
    base = RowsEnv()
    base.observation_spec = Composite(observation=Bounded(-5.0, -1.0, shape=(3,)))
    env = TransformedEnv(base, TimeMaxPool(T=2))
    assert env.observation_spec["observation"] == Bounded(-5.0, 0.0, shape=(3,))
    alone = TransformedEnv(base, TimeMaxPool())
    assert alone.observation_spec == base.observation_spec


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_sizes(size: int) -> None:
    with pytest.raises(ArgumentError, match="T must be an integer of at least 1"):
        TimeMaxPool(T=size)
