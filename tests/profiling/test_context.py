"""``with tdx.profile(env)``: rows, unchanged values, and detaching."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
import torch
from tensordict import TensorDict

import tdx
from tdx import (
    CatFrames,
    Compose,
    GymEnv,
    ObservationNorm,
    RewardScaling,
    RewardSum,
    TransformedEnv,
)
from tdx.foundation.errors import ArgumentError
from tdx.profiling.context import profile_stack
from tdx.profiling.run import ProfilePlan


def chained() -> TransformedEnv:
    return TransformedEnv(
        GymEnv("CartPole-v1"),
        Compose(
            ObservationNorm(0.1, 2.0, in_keys=["observation"]),
            RewardScaling(0.0, 0.1),
            RewardSum(),
            CatFrames(4, -1, in_keys=["observation"]),
        ),
    )


def raise_after(rollout: Any) -> None:
    raise ZeroDivisionError(str(rollout.shape))


def instance_attributes(env: Any) -> list[set[str]]:
    """Return the attribute names of every object that may be instrumented."""
    found = [set(env.__dict__), set(env.base_env.__dict__)]
    return found + [set(stage.__dict__) for stage in env.stages]


class WithoutSpaces(gymnasium.Env[float, int]):
    """An env that does not declare its spaces, as some in projects of their own."""

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[float, dict[str, Any]]:
        super().reset(seed=seed)
        return 0.0, {}

    def step(self, action: int) -> tuple[float, float, bool, bool, dict[str, Any]]:
        return 0.0, 0.0, False, False, {}


def test_env_without_spaces_is_measured() -> None:
    env = WithoutSpaces()
    with tdx.profile(env) as measured:
        env.reset()
        env.step(0)
    assert measured.result.modes[0].steps.tolist() == [1]
    assert measured.result.settings.num_envs == 1


@pytest.mark.parametrize("planned", [True, False])
def test_values_equal_those_of_an_unmeasured_rollout(planned: bool) -> None:
    results = []
    for is_measured in (False, True):
        env = chained()
        env.planned = planned
        env.set_seed(3)
        torch.manual_seed(3)
        if is_measured:
            with tdx.profile(env):
                results.append(env.rollout(80, break_when_any_done=False))
        else:
            results.append(env.rollout(80, break_when_any_done=False))
    assert (results[0] == results[1]).all()


def test_every_part_of_a_rollout_has_a_row() -> None:
    env = chained()
    with tdx.profile(env) as measured:
        env.rollout(50, break_when_any_done=False)
    (mode,) = measured.result.modes
    labels = {row.key for row in mode.rows}
    for index, stage in enumerate(env.stages):
        assert (f"{index} {type(stage).__name__}", "forward") in labels
    assert {("env CartPole-v1", "step"), ("env CartPole-v1", "reset")} <= labels
    assert ("policy random", "step") in labels
    assert mode.steps.tolist() == [50]
    assert sum(row.total_ns for row in mode.rows) == mode.total_ns.sum()


def test_single_steps_and_resets_are_measured() -> None:
    env = chained()
    with tdx.profile(env) as measured:
        tensordict = env.reset(seed=1)
        for _ in range(3):
            tensordict = env.step_mdp(env.step(env.rand_action(tensordict)))
    rows = {row.key: row for row in measured.result.modes[0].rows}
    assert len(rows["env CartPole-v1", "step"].times_ns) == 3
    assert len(rows["3 CatFrames", "forward"].times_ns) == 3
    assert len(rows["2 RewardSum", "reset"].times_ns) == 1


def test_meter_is_detached_after_an_error() -> None:
    env = chained()
    env.rollout(3)
    before = instance_attributes(env)
    with pytest.raises(ZeroDivisionError), tdx.profile(env):
        raise_after(env.rollout(3))
    assert instance_attributes(env) == before
    assert env.meter is None
    assert env.base_env.meter is None


def test_decorated_function_is_measured_on_each_call() -> None:
    env = chained()
    measured = tdx.profile(env)

    @measured
    def collect(steps: int) -> int:
        return int(env.rollout(steps, break_when_any_done=False).shape[-1])

    assert collect(20) == 20
    assert collect(steps=30) == 30
    assert measured.result.modes[0].steps.tolist() == [20, 30]


def test_chain_over_stored_data_is_measured() -> None:
    chain = Compose(RewardScaling(0.0, 0.1), RewardScaling(1.0, 2.0))
    with tdx.profile(chain) as measured:
        chain(TensorDict(reward=torch.ones(4, 1), batch_size=[4]))
    (mode,) = measured.result.modes
    assert [row.part.label for row in mode.rows] == ["0 RewardScaling", "1 RewardScaling", "chain"]
    assert "forward" not in chain.__dict__


def test_env_cannot_be_measured_twice_at_the_same_time() -> None:
    env = chained()
    with tdx.profile(env), pytest.raises(ArgumentError, match="already"), tdx.profile(env):
        pass
    assert env.rollout(2).shape[-1] == 2


def test_unsupported_targets_are_refused() -> None:
    with pytest.raises(ArgumentError, match="an object of type int is not supported"):
        tdx.profile(3)


def test_steps_that_take_long_are_reported_within_a_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tdx.profiling.context._REPORT_INTERVAL", 0.0)
    reports: list[tuple[str, int, int]] = []
    plan = ProfilePlan(
        steps=2, warmup=1, repeats=2, on_progress=lambda *state: reports.append(state)
    )
    profile_stack(tdx.open_stack(gymnasium.make("CartPole-v1")), plan)
    warm_up = [("warm-up", 0, 1), ("warm-up", 1, 1)]
    # Each repeat begins with what the earlier ones have done.
    assert reports == [*warm_up, *(("time", done, 4) for done in (0, 1, 2, 2, 3, 4))]
