"""What each stage of a chain that is stepped does now."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDictBase

from tdx import (
    ObservationNorm,
    RewardClipping,
    StepCounter,
    Transform,
)
from tdx.inspection.live.session import LiveSession
from tdx.inspection.live.views import STUCK_STEPS, TRACED_NUMBERS, StageReading
from tests.inspection.live.stages import At, pendulum
from tests.programs import exhaustive


class Writes(Transform):
    """Replaces the observation of each step by one number."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        observation = next_tensordict["observation"]
        return next_tensordict.set("observation", torch.full_like(observation, self.value))


def readings(stages: list[Transform], steps: int) -> tuple[StageReading, ...]:
    session = LiveSession(pendulum(*stages))
    for _ in range(steps + 1):
        session.advance()
    return session.readings.readings(TRACED_NUMBERS)


def test_a_zero_reward_is_read_at_the_stage_that_makes_it_zero() -> None:
    counter, clip = readings([StepCounter(), RewardClipping(0.0, 1.0)], 30)
    assert (counter.key, counter.numbers[-1], counter.before) == ("step_count", 30.0, None)
    assert counter.is_changed
    assert (clip.key, clip.numbers[-1], clip.warning) == ("reward", 0.0, "at a bound")
    assert clip.before is not None
    assert clip.before < 0.0
    assert clip.time_ns > 0


@exhaustive
def test_an_output_that_does_not_follow_its_input_is_constant() -> None:
    found = [readings([Writes(0.0)], steps)[0] for steps in (STUCK_STEPS, STUCK_STEPS + 1)]
    assert [each.warning for each in found] == ["", "constant"]
    # A normalizer follows its input.
    (norm,) = readings([ObservationNorm(0.0, 2.0)], STUCK_STEPS + 1)
    assert norm.warning == ""


@pytest.mark.parametrize("value", [math.nan, math.inf, 99.0])
def test_bad_numbers_are_warnings(value: float) -> None:
    (reading,) = readings([Writes(value)], 2)
    expected = {"nan": "NaN", "inf": "infinite", "99.0": "outside its spec"}
    assert reading.warning == expected[str(value)]


def test_a_stage_that_changes_nothing_has_only_a_time() -> None:
    (reading,) = readings([At(0, lambda tensordict: tensordict)], 3)
    assert (reading.key, reading.numbers) == ("", ())
