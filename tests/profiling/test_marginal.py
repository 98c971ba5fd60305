"""Marginal costs, with drift and with stages that other stages need."""

from __future__ import annotations

import numpy as np
import pytest

from tdx import CatFrames, Compose, RenameTransform, TransformedEnv
from tdx.profiling.interleaved import (
    Contender,
    MarginalCosts,
    compute_difference,
    measure_interleaved,
    measure_marginal_costs,
)
from tdx.profiling.result import Mode
from tdx.profiling.run import ProfilePlan
from tests.profiling.fake_clock import (
    FakeClock,
    SpinningCall,
    SpinningEnv,
    SpinningMap,
    SpinningStage,
)
from tests.programs import exhaustive


def measured(env: TransformedEnv, clock: FakeClock, mode: Mode = "eager") -> MarginalCosts:
    return measure_marginal_costs(
        env, mode, ProfilePlan(steps=40, warmup=1, repeats=3, clock=clock)
    )


@exhaustive
def test_cost_is_the_time_saved_without_the_stage() -> None:
    clock = FakeClock()
    stages = SpinningStage(clock.spin, forward=30), SpinningStage(clock.spin, forward=5)
    env = TransformedEnv(SpinningEnv(clock.spin, 100), Compose(*stages))
    found = measured(env, clock)
    assert found.error is None
    assert found.step_us == 135
    assert [stage.own_us for stage in found.stages] == [30, 5]
    for stage, cost in zip(found.stages, (30, 5), strict=True):
        assert stage.cost is not None
        assert stage.cost.saved_us == cost
        assert stage.cost.is_significant
        assert stage.for_neighbors_us == 0


@exhaustive
def test_costs_for_neighbors_are_attributed_to_the_stage() -> None:
    """Use a map that cannot be deferred because an opaque stage follows."""
    clock = FakeClock()
    chain = Compose(SpinningMap(clock.spin, 20), SpinningCall(clock.spin, 1))
    found = measured(TransformedEnv(SpinningEnv(clock.spin, 10), chain), clock, "planned")
    cost = found.stages[1].cost
    assert cost is not None
    assert found.stages[1].own_us == 1
    assert cost.saved_us > 15


@exhaustive
def test_stage_that_other_stages_need_is_not_removed() -> None:
    clock = FakeClock()
    chain = Compose(
        RenameTransform(["observation"], ["seen"]),
        CatFrames(2, -1, in_keys=["seen"]),
        SpinningStage(clock.spin),
    )
    chain[2].in_keys = chain[2].out_keys = []
    found = measured(TransformedEnv(SpinningEnv(clock.spin, 10), chain), clock)
    assert found.error is None
    assert found.stages[0].cost is None
    assert "seen" in (found.stages[0].needed or "")
    assert found.stages[1].needed is None
    cost = found.stages[2].cost
    assert cost is not None
    assert not cost.is_significant


@exhaustive
def test_drift_cancels() -> None:
    clock = FakeClock()

    class Slowing(SpinningEnv):
        def _step(self, tensordict):  # type: ignore[no-untyped-def]
            self.step_us += 0.01
            return super()._step(tensordict)

    env = Slowing(clock.spin, 100)
    same = [Contender(TransformedEnv(env)), Contender(TransformedEnv(env))]
    plan = ProfilePlan(steps=40, warmup=1, repeats=4, clock=clock)
    turns = measure_interleaved(same, "eager", plan)
    assert turns.step_us[-1, 0] > turns.step_us[0, 0] + 3
    assert abs(turns.difference(0, 1).saved_us) < 0.01


def test_interrupt_keeps_earlier_turns() -> None:
    clock = FakeClock()
    env = SpinningEnv(clock.spin, 10)

    def stop(doing: str, done: int, of: int) -> None:
        if doing == "alternating" and done == 2:
            raise KeyboardInterrupt

    plan = ProfilePlan(steps=10, warmup=1, repeats=5, clock=clock, on_progress=stop)
    found = measure_marginal_costs(
        TransformedEnv(env, SpinningStage(clock.spin, forward=4)), "eager", plan
    )
    assert found.error == "interrupted"
    assert found.stages[0].cost is not None
    assert found.stages[0].cost.turns == 2
    assert found.stages[0].cost.saved_us == 4


@pytest.mark.parametrize(
    ("before", "after", "significant"),
    [
        ([10, 10.1, 9.9], [9, 9.1, 8.9], True),
        ([10, 14, 9], [9, 12, 11], False),
        ([10, 10, 10], [9.95, 9.95, 9.95], False),
        ([10], [1], False),
        ([10, 10.1, 9.9, 30, 10, 10.2, 9.8, 10], [9, 9.1, 8.9, 8.9, 9.1, 9, 9, 9.1], True),
        ([10, 9, 11, 10, 9, 11, 10, 30], [10, 11, 9, 10, 9, 11, 10, 9], False),
    ],
)
def test_significance_of_a_difference(
    before: list[float], after: list[float], significant: bool
) -> None:
    assert compute_difference(np.array(before), np.array(after)).is_significant is significant
