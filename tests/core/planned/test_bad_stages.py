"""Rollouts with stages that break their declaration."""

from __future__ import annotations

import warnings

import pytest
import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx import (
    ChainError,
    InitTracker,
    TimeBehavior,
    Transform,
    TransformedEnv,
)
from tests.core.planned.failing import BAD_STEP, BASES, Constant, both, chained
from tests.core.planned.test_law import compared


class WritesMore(Transform):
    """Stage that writes an undeclared entry."""

    def __init__(self) -> None:
        super().__init__(in_keys=["observation"])

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        seen = next_tensordict["observation"]
        return next_tensordict.set("surprise", seen * 3)


class Breaks(Transform):
    """Stage that raises at one value."""

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        if bool((tensor[..., 0] == 2 * BAD_STEP).any()):
            raise ZeroDivisionError("at this value\nand more")
        return tensor * 1


class BreaksLater(Breaks):
    time_behavior = TimeBehavior.POINTWISE


class SaysPointwise(Transform):
    """Stage that declares to be pointwise but has its own ``_call``."""

    time_behavior = TimeBehavior.POINTWISE

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        seen = next_tensordict["observation"]
        return next_tensordict.set("observation", seen + float(seen.numel()))


@pytest.mark.parametrize("base", sorted(BASES))
def test_an_undeclared_write_is_correct_and_reported_once(base: str) -> None:
    results = []
    for planned in (True, False):
        env = chained(BASES[base](), planned, WritesMore(), InitTracker())
        torch.manual_seed(0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            results.append(env.rollout(8, break_when_any_done=False))
            first = [str(each.message) for each in caught]
            env.rollout(8, break_when_any_done=False)
        assert [str(each.message) for each in caught] == first
        if planned:
            (message,) = first
            assert "stage 1 (WritesMore)" in message
            assert "surprise" in message
    compared(*results)


@pytest.mark.parametrize("stage", [Breaks, BreaksLater])
@pytest.mark.parametrize("base", sorted(BASES))
@pytest.mark.parametrize("acts", [False, True])
def test_a_stage_that_raises_at_one_value(base: str, stage: type[Transform], acts: bool) -> None:
    steps, error = both(
        lambda planned: chained(BASES[base](), planned, stage(["observation"])),
        (lambda: Constant(0.5)) if acts else lambda: None,
    )
    assert steps == BAD_STEP - 1
    assert isinstance(error, ChainError)
    assert (error.where.stage, error.where.transform) == (1, stage.__name__)
    assert error.where.step == BAD_STEP - 1
    assert isinstance(error.__cause__, ZeroDivisionError)


def test_a_pointwise_stage_with_hooks_of_its_own_sees_single_steps() -> None:
    results = []
    for planned in (True, False):
        torch.manual_seed(0)
        env = chained(BASES["Gymnasium"](), planned, SaysPointwise(["observation"]))
        results.append(env.rollout(8, break_when_any_done=False))
    compared(*results)


@pytest.mark.parametrize("base", sorted(BASES))
def test_single_stage_is_named(base: str) -> None:
    class BreaksAlone(Breaks):
        def _apply_transform(self, tensor: Tensor) -> Tensor:
            return super()._apply_transform(tensor * 2)

    steps, error = both(
        lambda planned: TransformedEnv(BASES[base](), BreaksAlone(["observation"]), planned=planned)
    )
    assert steps == BAD_STEP - 1
    assert isinstance(error, ChainError)
    assert (error.where.stage, error.where.transform) == (0, "BreaksAlone")
