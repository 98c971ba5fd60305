"""Vector envs, their wrappers, and the wrappers in their sub-envs."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import tdx
from tdx.core import StepTrace
from tdx.stacks import open_stack


def make_row(limit: int = 7) -> Any:
    env = gym.make("Pendulum-v1", disable_env_checker=True, max_episode_steps=limit)
    env = wrappers.ClipAction(env)
    low, high = np.full(3, -1, np.float32), np.full(3, 1, np.float32)
    return wrappers.RescaleObservation(env, low, high)


def make_vector(mode: AutoresetMode = AutoresetMode.NEXT_STEP, **kwargs: Any) -> Any:
    env = SyncVectorEnv([partial(make_row, limit) for limit in (5, 7, 9)], autoreset_mode=mode)
    if mode != AutoresetMode.NEXT_STEP:
        return wrappers.vector.TransformReward(env, lambda reward: reward / 10)
    normalized = wrappers.vector.NormalizeObservation(env)
    return wrappers.vector.RecordEpisodeStatistics(normalized)


def run(env: Any, steps: int = 25) -> list[Any]:
    env.action_space.seed(0)
    results = [env.reset(seed=1)]
    for _ in range(steps):
        result = env.step(env.action_space.sample())
        results.append(result)
        ended = np.logical_or(result[2], result[3])
        if env.metadata["autoreset_mode"] == AutoresetMode.DISABLED and ended.any():
            results.append(env.reset(options={"reset_mask": ended}))
    return results


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_attached_run_equals_the_bare_run(mode: AutoresetMode) -> None:
    expected = run(make_vector(mode))
    env = make_vector(mode)
    traces: list[StepTrace] = []
    stack: Any = open_stack(env)
    with stack.attach(traces.append):
        found = run(env)
    assert len(found) == len(expected) == len(traces)
    for one, other in zip(found, expected, strict=True):
        for left, right in zip(one[:-1], other[:-1], strict=True):
            assert left.dtype == right.dtype
            assert left.tobytes() == right.tobytes()
    owners = [owner for level in stack.levels for owner in level.owners]
    assert all(not {"step", "reset"} & owner.__dict__.keys() for owner in owners)


def test_stages_of_sub_envs_come_first() -> None:
    stack = open_stack(make_vector())
    assert [(stage.name, stage.rows) for stage in stack.stages] == [
        ("OrderEnforcing", 3),
        ("TimeLimit", 3),
        ("ClipAction", 3),
        ("RescaleObservation", 3),
        ("SyncVectorEnv", None),
        ("NormalizeObservation", None),
        ("RecordEpisodeStatistics", None),
    ]
    shapes = [
        tuple(each.output_spec["full_observation_spec", "observation"].shape)
        for each in stack.specs()
    ]
    assert set(shapes) == {(3, 3)}


def test_values_of_sub_envs_are_rows() -> None:
    tracer = open_stack(make_vector()).tracer()
    trace = tracer.run(3).last
    assert trace is not None
    changed = {stage.place: set(stage.written) for stage in trace.stages if stage.written}
    assert changed["3 RescaleObservation"] == {"observation"}
    assert changed["5 NormalizeObservation"] == {"observation"}
    assert "4 SyncVectorEnv" not in changed
    assert tuple(trace.after(3)["observation"].value.shape) == (3, 3)
    assert tuple(trace.env_tensordict["reward"].shape) == (3,)


def test_state_of_sub_envs_is_stacked() -> None:
    stack = open_stack(make_vector())
    stack.tracer().run(3)
    state = stack.state()
    assert state[1]["_elapsed_steps"].tolist() == [3, 3, 3]
    assert tuple(state[5]["obs_rms.mean"].shape) == (3,)


def test_casts_of_the_vector_env_are_its_own() -> None:
    class Doubled(gym.ObservationWrapper):
        def observation(self, observation: Any) -> Any:
            return observation.astype(np.float64)

    env = SyncVectorEnv([lambda: Doubled(make_row())] * 2)
    report = tdx.check(env, seed=0, steps=3)
    assert [(each.code, each.where.stage, each.where.key) for each in report.findings] == [
        ("TDX401", 4, "observation")
    ]
    chain = tdx.inspect(env, steps=3).chain
    assert chain is not None
    flow = {stage.name: stage.forward for stage in chain.stages}
    assert [write.key for write in flow["SyncVectorEnv"].writes] == ["observation"]


def test_values_of_a_reset_of_some_sub_envs_are_those_of_the_vector_env() -> None:
    env = SyncVectorEnv(
        [partial(make_row, limit) for limit in (5, 9)], autoreset_mode=AutoresetMode.DISABLED
    )
    assert tdx.check(env, seed=0, steps=20).findings == ()


def test_different_sub_envs_are_one_stage() -> None:
    mixed = SyncVectorEnv([make_row, lambda: wrappers.ClipReward(make_row(), -1, 1)])
    stack = open_stack(mixed)
    assert len(stack.stages) == 0
    assert "different wrappers" in stack.notes[0]


def test_vector_env_without_wrappers() -> None:
    env = gym.make_vec("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point")
    trace = open_stack(env).tracer().run(4).last
    assert trace is not None
    assert tuple(trace.env_tensordict["observation"].shape) == (3, 4)
    env.close()
