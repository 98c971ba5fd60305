"""Attribution of known costs, in simulated time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase

from tdx import Compose, GymWrapper, SerialEnv, TransformedEnv
from tdx.core.envs import EnvBase
from tdx.core.envs.eager_run import StepLayout
from tdx.profiling.result import Mode, ModeProfile, Row
from tdx.profiling.run import ProfilePlan, profile_env
from tdx.specs import Composite
from tests.profiling.fake_clock import (
    US,
    FakeClock,
    SpinningCall,
    SpinningEnv,
    SpinningGymEnv,
    SpinningMap,
    SpinningPolicy,
    SpinningStage,
    totals_us,
)
from tests.programs import exhaustive

STEPS, REPEATS = 200, 2
MADE = STEPS * REPEATS
EPISODES = MADE // 50
# The first reset of a rollout has no input for the inverse path.
GIVEN = EPISODES - REPEATS
BOTH: list[Mode] = ["eager", "planned"]


def measured(env: EnvBase, clock: FakeClock, mode: Mode = "eager", policy: Any = None) -> Any:
    plan = ProfilePlan(
        steps=STEPS, warmup=50, repeats=REPEATS, policy=policy, passes=(), clock=clock
    )
    (found,) = profile_env(env, [mode], plan).modes
    assert found.error is None
    assert sum(row.total_ns for row in found.rows) == found.total_ns.sum() == known(found)
    assert found.unattributed <= 0.05
    return found


def known(mode: ModeProfile) -> int:
    """Return the total simulated time, without that of the engine."""
    return sum(row.total_ns for row in mode.rows if row.part.work != "engine")


def row_of(mode: ModeProfile, label: str, lane: str) -> Row:
    (found,) = [row for row in mode.rows if row.key == (label, lane)]
    return found


@pytest.mark.parametrize("mode", BOTH)
def test_times_of_env_and_stages_by_lane(mode: Mode) -> None:
    clock = FakeClock()
    env = TransformedEnv(
        SpinningEnv(clock.spin, step=100, reset=700),
        Compose(
            SpinningStage(clock.spin, forward=20, reset=5),
            SpinningStage(clock.spin, reset=900),
            SpinningStage(clock.spin, inverse=30),
        ),
    )
    assert totals_us(measured(env, clock, mode)) == {
        ("env SpinningEnv", "step"): 100 * MADE,
        ("env SpinningEnv", "reset"): 700 * EPISODES,
        ("0 SpinningStage", "forward"): 20 * MADE,
        ("0 SpinningStage", "reset"): 5 * EPISODES,
        ("1 SpinningStage", "reset"): 900 * EPISODES,
        ("2 SpinningStage", "inverse"): 30 * MADE,
        ("2 SpinningStage", "reset"): 30 * GIVEN,
    }


def test_time_of_building_the_specs_is_measured_before_the_steps() -> None:
    class SlowSpecs(SpinningStage):
        def transform_observation_spec(self, observation_spec: Composite) -> Composite:
            self.spin(40)
            return observation_spec

    clock = FakeClock()
    env = TransformedEnv(SpinningEnv(clock.spin, step=100), SlowSpecs(clock.spin))
    found = measured(env, clock)
    assert set(found.specs_ns.tolist()) == {40 * US}
    assert totals_us(found) == {("env SpinningEnv", "step"): 100 * MADE}


def nested(base: EnvBase, stages: list[Any], how: str) -> TransformedEnv:
    one, two, three = stages
    if how == "chains":
        return TransformedEnv(base, Compose(one, Compose(two, Compose(three))))
    if how == "envs":
        return TransformedEnv(TransformedEnv(TransformedEnv(base, one), two), three)
    return TransformedEnv(TransformedEnv(base, Compose(Compose(one, two))), Compose(three))


@pytest.mark.parametrize("mode", BOTH)
@pytest.mark.parametrize("how", ["chains", "envs", "both"])
def test_times_in_nested_chains_and_envs(how: str, mode: Mode) -> None:
    clock = FakeClock()
    stages = [
        SpinningStage(clock.spin, forward=7, inverse=1),
        SpinningStage(clock.spin, forward=70, reset=2),
        SpinningStage(clock.spin, forward=700, inverse=3),
    ]
    env = nested(SpinningEnv(clock.spin, step=10), stages, how)
    assert totals_us(measured(env, clock, mode)) == {
        ("env SpinningEnv", "step"): 10 * MADE,
        ("0 SpinningStage", "reset"): 1 * GIVEN,
        ("0 SpinningStage", "inverse"): 1 * MADE,
        ("0 SpinningStage", "forward"): 7 * MADE,
        ("1 SpinningStage", "forward"): 70 * MADE,
        ("1 SpinningStage", "reset"): 2 * EPISODES,
        ("2 SpinningStage", "reset"): 3 * GIVEN,
        ("2 SpinningStage", "inverse"): 3 * MADE,
        ("2 SpinningStage", "forward"): 700 * MADE,
    }


def test_layout_check_of_eager_steps_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    check = StepLayout.find_mismatch

    def slow_check(layout: StepLayout, steps: Sequence[TensorDictBase]) -> Any:
        clock.spin(30 * len(steps))
        return check(layout, steps)

    monkeypatch.setattr(StepLayout, "find_mismatch", slow_check)
    env = TransformedEnv(SpinningEnv(clock.spin, step=10), SpinningStage(clock.spin, forward=5))
    plan = ProfilePlan(steps=STEPS, warmup=50, repeats=REPEATS, passes=(), clock=clock)
    (found,) = profile_env(env, ["eager"], plan).modes
    assert row_of(found, "layout check", "step").total_ns == 30 * MADE * US
    assert found.unattributed == 0


@pytest.mark.parametrize("how", ["chains", "envs", "both"])
@pytest.mark.parametrize("base", ["tensordict", "gym"])
def test_times_of_immediate_and_deferred_stages(base: str, how: str) -> None:
    """Use a stage that may read any entry: it runs in each step, as do the stages before it."""
    clock = FakeClock()
    inner: EnvBase = SpinningEnv(clock.spin, step=10, reset=40)
    if base == "gym":
        inner = GymWrapper(SpinningGymEnv(clock.spin, step=10, reset=40))
    stages = [
        SpinningMap(clock.spin, 20),
        SpinningCall(clock.spin, 3),
        SpinningMap(clock.spin, 500),
    ]
    found = totals_us(measured(nested(inner, stages, how), clock, "planned"))
    name = "SpinningEnv" if base == "tensordict" else "SpinningGymEnv"
    assert found.pop((f"env {name}", "step")) == 10 * MADE
    assert found.pop((f"env {name}", "reset")) == 40 * EPISODES
    assert found.pop(("0 SpinningMap", "forward")) == 20 * MADE
    assert found.pop(("1 SpinningCall", "forward")) == 3 * MADE
    # The last stage maps a chunk in one call, and the roots of the episodes in another.
    last = found.pop(("2 SpinningMap", "forward"))
    assert 500 * REPEATS <= last < 500 * MADE / 10
    assert {lane for _, lane in found} <= {"reset"}


@pytest.mark.parametrize("mode", BOTH)
@pytest.mark.parametrize("base", ["tensordict", "gym"])
def test_time_of_a_policy(base: str, mode: Mode) -> None:
    clock = FakeClock()
    inner: EnvBase = SpinningEnv(clock.spin, step=10)
    if base == "gym":
        inner = GymWrapper(SpinningGymEnv(clock.spin, step=10))
    env = TransformedEnv(inner, SpinningStage(clock.spin, forward=2))
    policy = SpinningPolicy(clock.spin, 33)
    found = measured(env, clock, mode, policy)
    assert totals_us(found)["policy SpinningPolicy", "step"] == 33 * MADE
    assert len(row_of(found, "policy SpinningPolicy", "step").times_ns) == MADE


@pytest.mark.parametrize("mode", BOTH)
@exhaustive
def test_times_of_serial_envs_are_summed(mode: Mode) -> None:
    clock = FakeClock()
    makers = [
        lambda: GymWrapper(SpinningGymEnv(clock.spin, step=10, reset=50)),
        lambda: GymWrapper(SpinningGymEnv(clock.spin, step=30, reset=70)),
    ]
    env = TransformedEnv(SerialEnv(2, makers), SpinningStage(clock.spin, forward=4))
    found = totals_us(measured(env, clock, mode))
    assert found["env SerialEnv", "step"] == (10 + 30) * MADE
    assert found["env SerialEnv", "reset"] == (50 + 70) * EPISODES
    assert found["0 SpinningStage", "forward"] == 4 * MADE


@pytest.mark.parametrize("mode", BOTH)
def test_slow_hundredth_step_is_in_the_tail(mode: Mode) -> None:
    clock = FakeClock()
    stage = SpinningStage(clock.spin, forward=10, rare=5000)
    found = measured(TransformedEnv(SpinningEnv(clock.spin, 100), stage), clock, mode)
    statistics = row_of(found, "0 SpinningStage", "forward").statistics
    assert statistics.n == MADE
    assert statistics.p50 == statistics.p95 == statistics.p99 == 10
    assert statistics.max == 5010
    assert statistics.mean == pytest.approx(10 + 50)


def test_slow_fiftieth_step_is_in_p99() -> None:
    clock = FakeClock()

    class Rare(SpinningStage):
        def _step(self, tensordict: Any, next_tensordict: Any) -> Any:
            self.calls += 1
            self.spin(1000 if self.calls % 50 == 0 else 10)
            return next_tensordict

    found = measured(TransformedEnv(SpinningEnv(clock.spin, 100), Rare(clock.spin)), clock)
    statistics = row_of(found, "0 Rare", "forward").statistics
    assert (statistics.p50, statistics.p95, statistics.p99) == (10, 10, 1000)


@pytest.mark.parametrize("mode", BOTH)
def test_error_keeps_earlier_rows(mode: Mode) -> None:
    clock = FakeClock()

    class Broken(SpinningStage):
        def _step(self, tensordict: Any, next_tensordict: Any) -> Any:
            super()._step(tensordict, next_tensordict)
            if self.calls == 120:
                raise ZeroDivisionError("at the 120th step")
            return next_tensordict

    env = TransformedEnv(SpinningEnv(clock.spin, 100), Broken(clock.spin, forward=10))
    plan = ProfilePlan(steps=100, warmup=0, repeats=5, passes=(), clock=clock)
    (found,) = profile_env(env, [mode], plan).modes
    assert "at the 120th step" in (found.error or "")
    assert totals_us(found)["0 Broken", "forward"] == 10 * 120
    assert totals_us(found)["env SpinningEnv", "step"] == 100 * 120
    assert sum(row.total_ns for row in found.rows) == found.total_ns.sum()
    assert torch.equal(env.reset()["observation"], torch.zeros(3))


@pytest.mark.parametrize("mode", BOTH)
def test_error_in_the_first_reset_is_reported(mode: Mode) -> None:
    clock = FakeClock()

    class Broken(SpinningStage):
        def _reset(self, tensordict: Any, tensordict_reset: Any) -> Any:
            raise ZeroDivisionError("no reset")

    env = TransformedEnv(SpinningEnv(clock.spin, reset=100), Broken(clock.spin))
    plan = ProfilePlan(steps=200, warmup=0, repeats=2, passes=(), clock=clock)
    (found,) = profile_env(env, [mode], plan).modes
    assert (found.error or "").startswith("ZeroDivisionError: no reset")
    assert totals_us(found) == {("env SpinningEnv", "reset"): 100}
    assert found.steps.tolist() == [0]
    assert found.step_us == found.frames_per_second == 0
