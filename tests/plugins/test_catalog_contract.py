"""Contract tests for the transforms of plugins and some transforms of tdx.

``test_example.py`` runs these tests with ``TDX_PLUGINS=1``, for a catalog with plugins.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from torch import Tensor

from tdx import GymEnv, RewardSum, SerialEnv, Transform
from tdx.foundation.keys import NestedKey
from tdx.inspection.transform_example import find_example
from tdx.pipeline import build_checked_env, load_catalog
from tdx.pipeline.arguments import ValueResolver
from tdx.testing import assert_env_specs, assert_transform_contract
from tests.programs import exhaustive

OWN = (
    *("ActionScaling", "CatFrames", "InitTracker", "ObservationNorm", "RenameTransform"),
    *("RewardClipping", "RewardSum", "StepCounter", "TargetReturn", "VecNorm"),
)
PROVIDED = tuple(info.name for info in load_catalog().transforms if info.package)


@pytest.mark.parametrize("name", [*OWN, *PROVIDED])
def test_transform_conforms_to_the_contract(name: str) -> None:
    example = find_example(load_catalog()[name])
    assert example is not None
    assert example.pipeline is not None
    *before, last = example.pipeline.transforms
    base = replace(example.pipeline, transforms=tuple(before))
    assert_transform_contract(
        lambda: ValueResolver(False).build_transform(last), lambda: build_checked_env(base)
    )


def test_transform_of_a_batch_conforms_to_the_contract() -> None:
    assert_transform_contract(RewardSum, lambda: SerialEnv(2, lambda: GymEnv("Pendulum-v1")))


_OFFSETS = itertools.count()


class WrongSpec(Transform):
    """Transform that scales observations but not their spec."""

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        return tensor * 100


class Offset(Transform):
    """Transform whose offset differs between instances."""

    def __init__(self, in_keys: Sequence[NestedKey]) -> None:
        super().__init__(in_keys)
        self._offset = next(_OFFSETS)

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        return tensor + self._offset


class InPlace(Transform):
    """Transform that changes the actions of the policy in place."""

    def _inv_apply_transform(self, tensor: Tensor) -> Tensor:
        return tensor.mul_(0.5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WrongSpec(["observation"]), "outside"),
        (lambda: InPlace(in_keys_inv=["action"]), "a step changes its input at action"),
        (lambda: Offset(["reward"]), "a planned rollout differs from an eager one at"),
    ],
)
def test_broken_transforms_violate_the_contract(
    make: Callable[[], Transform], message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        assert_transform_contract(make, lambda: GymEnv("Pendulum-v1"))


@exhaustive
def test_values_outside_their_specs_are_detected() -> None:
    with pytest.raises(AssertionError, match=r"TDX401 .*stage 3 \(_Scaled\), key 'observation'"):
        assert_env_specs(_Scaled(gymnasium.make("Pendulum-v1")))
    assert_env_specs(gymnasium.make("CartPole-v1"), steps=5)


class _Scaled(gymnasium.ObservationWrapper[Any, Any, Any]):
    def observation(self, observation: Any) -> Any:
        return observation * np.float64(100)
