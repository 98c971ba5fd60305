"""Gymnasium wrappers: a row for each wrapper in every mode, and detaching."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDictBase

import tdx
from tdx import GymEnv, GymWrapper, RewardSum, SerialEnv, TransformedEnv
from tdx.core.meter import CONVERSION
from tdx.profiling.result import Mode, ModeProfile
from tdx.profiling.run import ProfilePlan, profile_env
from tdx.stacks.gymnasium.levels import list_wrappers
from tests.profiling.fake_clock import FakeClock, SpinningGymEnv, SpinningWrapper, totals_us

MADE, EPISODES = 200, 4
BOTH: list[Mode] = ["eager", "planned"]


class Outer(SpinningWrapper):
    """Wrapper with another class name."""


def stack(clock: FakeClock) -> Any:
    env = SpinningGymEnv(clock.spin, step=100, reset=500)
    inner = SpinningWrapper(env, clock.spin, 20, 5)
    return Outer(SpinningWrapper(inner, clock.spin, 3, 2), clock.spin, 7, 11)


def measured(env: Any, clock: FakeClock, mode: Mode) -> ModeProfile:
    plan = ProfilePlan(steps=MADE, warmup=50, repeats=1, passes=(), clock=clock)
    (found,) = profile_env(env, [mode], plan).modes
    assert found.error is None
    return found


@pytest.mark.parametrize("mode", BOTH)
def test_each_wrapper_has_a_row(mode: Mode) -> None:
    clock = FakeClock()
    found = measured(TransformedEnv(GymWrapper(stack(clock)), RewardSum()), clock, mode)
    assert totals_us(found) == {
        ("env SpinningGymEnv unwrapped", "step"): 100 * MADE,
        ("env SpinningGymEnv unwrapped", "reset"): 500 * EPISODES,
        ("wrapper Outer", "step"): 7 * MADE,
        ("wrapper Outer", "reset"): 11 * EPISODES,
        ("wrapper SpinningWrapper", "step"): 20 * MADE,
        ("wrapper SpinningWrapper", "reset"): 5 * EPISODES,
        ("wrapper SpinningWrapper (2)", "step"): 3 * MADE,
        ("wrapper SpinningWrapper (2)", "reset"): 2 * EPISODES,
    }


@pytest.mark.parametrize("mode", BOTH)
def test_wrappers_in_a_batch_of_envs_have_rows(mode: Mode) -> None:
    clock = FakeClock()
    serial = SerialEnv(2, [lambda: GymWrapper(stack(clock)) for _ in range(2)])
    found = totals_us(measured(TransformedEnv(serial, RewardSum()), clock, mode))
    assert found["env SpinningGymEnv unwrapped", "step"] == 2 * 100 * MADE
    assert found["wrapper Outer", "step"] == 2 * 7 * MADE
    vector = gymnasium.vector.SyncVectorEnv(
        [lambda: stack(clock) for _ in range(2)],
        autoreset_mode=gymnasium.vector.AutoresetMode.DISABLED,
    )
    found = totals_us(measured(TransformedEnv(GymWrapper(vector), RewardSum()), clock, mode))
    assert found["wrapper Outer", "step"] == 2 * 7 * MADE
    assert found["env SpinningGymEnv unwrapped", "step"] == 2 * 100 * MADE


def test_parts_of_a_batch_have_names_that_users_know() -> None:
    env = GymEnv("CartPole-v1", num_envs=2)
    for asked in (False, True):
        with tdx.profile(env, all_wrappers=asked) as meter:
            env.rollout(20)
        names = {row.part.name for row in meter.result.modes[0].rows}
        assert not {"CheckedValues", "SyncRows"} & names
        assert ({"SyncVectorEnv", "TimeLimit"} <= names) is asked


def test_wrappers_of_make_are_included_on_request() -> None:
    env = TransformedEnv(GymEnv("CartPole-v1"), RewardSum())
    for asked in (False, True):
        with tdx.profile(env, all_wrappers=asked) as meter:
            env.rollout(20, break_when_any_done=False)
        labels = {row.part.label for row in meter.result.modes[0].rows}
        assert ("wrapper TimeLimit" in labels) is asked
        assert ("env CartPole-v1 unwrapped" if asked else "env CartPole-v1") in labels


@pytest.mark.parametrize("mode", BOTH)
@pytest.mark.parametrize("rows", [1, 2], ids=["single", "serial"])
def test_conversion_of_results_is_not_part_of_the_env(mode: Mode, rows: int) -> None:
    clock = FakeClock()

    def make() -> GymWrapper:
        return GymWrapper(SpinningGymEnv(clock.spin, step=100, reset=500))

    base = make() if rows == 1 else SerialEnv(2, [make, make])
    found = measured(TransformedEnv(base, RewardSum()), clock, mode)
    steps = [row for row in found.rows if row.part.work == "env" and row.part.lane == "step"]
    resets = [row for row in found.rows if row.part.work == "env" and row.part.lane == "reset"]
    assert [len(row.times_ns) for row in steps] == [rows * MADE]
    assert [len(row.times_ns) for row in resets] == [rows * EPISODES]
    assert sum(len(row.times_ns) for row in found.rows if row.part == CONVERSION) > 0


def test_info_dict_reader_is_part_of_the_conversion() -> None:
    clock = FakeClock()

    def read(info: Any, tensordict: TensorDictBase) -> TensorDictBase:
        clock.spin(30)
        return tensordict

    env = GymWrapper(SpinningGymEnv(clock.spin, step=100, reset=500)).set_info_dict_reader(read)
    assert totals_us(measured(TransformedEnv(env, RewardSum()), clock, "eager")) == {
        ("env SpinningGymEnv", "step"): 100 * MADE,
        ("env SpinningGymEnv", "reset"): 500 * EPISODES,
        ("conversion", "step"): 30 * (MADE + EPISODES),
    }


@pytest.mark.parametrize("planned", [True, False])
def test_values_are_unchanged_and_wrappers_are_restored(planned: bool) -> None:
    found = []
    env = gymnasium.make("CartPole-v1")
    wrapped = gymnasium.wrappers.TransformReward(env, lambda reward: float(reward) / 2)
    env_of_tdx = TransformedEnv(GymWrapper(wrapped), RewardSum())
    env_of_tdx.planned = planned
    program: Any = env_of_tdx.base_env.gym_steppers[0]
    everyone = [*list_wrappers(wrapped), wrapped.unwrapped, program]
    env_of_tdx.rollout(2)
    names = [set(each.__dict__) for each in everyone]
    functions = [each.step for each in everyone]
    fields = program._step_fields
    for is_measured in (False, True, False):
        env_of_tdx.set_seed(1)
        torch.manual_seed(1)
        if is_measured:
            with tdx.profile(env_of_tdx):
                found.append(env_of_tdx.rollout(60, break_when_any_done=False))
        else:
            found.append(env_of_tdx.rollout(60, break_when_any_done=False))
    assert (found[0] == found[1]).all()
    assert (found[0] == found[2]).all()
    assert [set(each.__dict__) for each in everyone] == names
    assert [each.step for each in everyone] == functions
    assert program._step_fields is fields


def test_gymnasium_env_without_tdx_is_measured() -> None:
    env = gymnasium.wrappers.FlattenObservation(gymnasium.make("Pendulum-v1"))
    owners = [*list_wrappers(env), env.unwrapped]
    with tdx.profile(env) as meter:
        env.reset(seed=0)
        for _ in range(30):
            env.step(np.zeros(1, np.float32))
    profile = meter.result
    rows = {row.key: row for row in profile.modes[0].rows}
    assert profile.subject == "Pendulum-v1"
    assert len(rows["env Pendulum-v1", "step"].times_ns) == 30
    assert len(rows["wrapper FlattenObservation", "reset"].times_ns) == 1
    assert len(rows["wrapper TimeLimit", "step"].times_ns) == 30
    assert not any({"step", "reset"} & set(each.__dict__) for each in owners)


def test_thin_wrappers_of_a_gymnasium_env_have_no_rows() -> None:
    env = gymnasium.make("Pendulum-v1")
    with tdx.profile(env) as meter:
        env.reset(seed=0)
        env.step(np.zeros(1, np.float32))
    assert [row.key for row in meter.result.modes[0].rows] == [
        ("env Pendulum-v1", "reset"),
        ("env Pendulum-v1", "step"),
    ]
