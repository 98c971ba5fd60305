"""``tdx.inspect``, ``trace``, ``profile`` and ``check`` take an env of any library."""

from __future__ import annotations

import json
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import wrappers
from tensordict import TensorDict

import tdx
from tdx.foundation.errors import ArgumentError
from tdx.stacks import StackTracer, open_stack


def make() -> Any:
    env = gym.make("Pendulum-v1", max_episode_steps=10)
    env = wrappers.RescaleAction(env, np.float32(-1), np.float32(1))
    env = wrappers.FrameStackObservation(env, 3, padding_type="zero")
    env = wrappers.NormalizeObservation(env)
    return wrappers.RecordEpisodeStatistics(env)


def native() -> tdx.TransformedEnv:
    return tdx.TransformedEnv(tdx.PendulumEnv(), tdx.Compose(tdx.RewardSum(), tdx.VecNorm()))


def test_inspect_reports_stages_specs_values_and_state() -> None:
    report = tdx.inspect(make(), steps=12, seed=0)
    assert [stage.name for stage in report.stages[3:]] == [
        *("RescaleAction", "FrameStackObservation", "NormalizeObservation"),
        "RecordEpisodeStatistics",
    ]
    assert report.stages[3].arguments == {"min_action": -1.0, "max_action": 1.0}
    assert "stateful_observation.py:" in str(report.stages[4].location)
    assert [stage.direction for stage in report.stages[3:6]] == ["inverse", "both", "forward"]
    changes = {change.key: change.stages for change in report.spec.changes if change.stages}
    assert changes == {"observation": (4, 5), "action": (3,)}
    assert report.values is not None
    assert report.values.violations == ()
    assert report.chain is not None
    writes = {
        stage.name: [write.key for lane in (stage.forward, stage.inverse) for write in lane.writes]
        for stage in report.chain.stages
    }
    assert writes["TimeLimit"] == ["truncated"]
    assert writes["RescaleAction"] == ["action"]
    assert ("info", "episode", "r") in writes["RecordEpisodeStatistics"]
    assert tuple(report.state[5]["obs_rms.mean"].shape) == (3, 3)
    assert report.state[4]["obs_queue"].shape == (3, 3)
    assert json.loads(json.dumps(report.to_dict()))["state"]


def test_inspect_without_steps_does_not_step() -> None:
    env = make()
    report = tdx.inspect(env)
    assert (report.values, report.chain) == (None, None)
    assert report.state.get(2, {}) == {}
    assert not env.get_wrapper_attr("has_reset")


def test_inspect_makes_the_steps_that_it_is_asked_for() -> None:
    env = wrappers.NormalizeObservation(gym.make("Pendulum-v1"))
    report = tdx.inspect(env, steps=5, seed=0)
    assert report.chain is not None
    # The initial count, one reset and five steps.
    assert report.state[3]["obs_rms.count"] == pytest.approx(6 + 1e-4)


def test_native_envs_have_the_same_jobs() -> None:
    report = tdx.inspect(native(), steps=3, seed=0)
    assert [stage.name for stage in report.stages] == ["RewardSum", "VecNorm"]
    assert report.values is not None
    assert isinstance(tdx.trace(native()), tdx.Tracer)
    assert tdx.check(native(), seed=0).ok
    stack = open_stack(native())
    assert open_stack(stack) is stack


def test_native_steps_of_the_caller_are_recorded() -> None:
    env = native()
    plain = native()
    traces: list[Any] = []
    for each in (env, plain):
        each.set_seed(0)
    with open_stack(env).attach(traces.append):
        first = env.reset()
        result = env.step(first.set("action", env.full_action_spec["action"].zero()))
    expected = plain.reset()
    expected = plain.step(expected.set("action", plain.full_action_spec["action"].zero()))
    assert [trace.phase for trace in traces] == ["reset", "step"]
    assert [stage.name for stage in traces[1].stages if stage.kind == "stage"]
    assert bool((result["next", "observation"] == expected["next", "observation"]).all())
    assert not {"reset", "step"} & env.__dict__.keys()


def test_trace_runs_until_a_condition() -> None:
    tracer = tdx.trace(make())
    assert isinstance(tracer, StackTracer)
    run = tracer.run(100, until="truncated")
    assert run.steps == 10
    assert tracer.resets == 1
    trace = tracer.step(np.zeros(1, np.float32))
    assert trace.stages[0].name == "given"
    assert (tracer.resets, trace.episode) == (2, 1)
    assert isinstance(trace.tensordict, type(TensorDict()))


def test_policy_is_a_function_of_the_observation() -> None:
    seen: list[tuple[int, ...]] = []

    def policy(observation: Any) -> Any:
        seen.append(observation.shape)
        return np.ones(1, np.float32)

    run = tdx.trace(make(), policy).run(2)
    assert seen == [(3, 3), (3, 3)]
    assert run.last is not None
    assert run.last.stages[0].name == "policy"
    with pytest.raises(ArgumentError, match="policy must be callable"):
        tdx.trace(make(), 3)


def test_seeded_runs_are_repeatable() -> None:
    def rewards() -> list[float]:
        found: list[float] = []
        stack = open_stack(make())
        with stack.seeded(3):
            stack.tracer().run(
                15,
                on_step=lambda trace: found.append(float(trace.env_tensordict.get("reward", 0.0))),
            )
        return found

    np.random.seed(5)
    expected = np.random.random()
    np.random.seed(5)
    assert rewards() == rewards()
    assert np.random.random() == expected


def test_profile_has_a_row_for_each_wrapper() -> None:
    env = make()
    with tdx.profile(env) as measured:
        env.reset(seed=0)
        for _ in range(5):
            env.step(env.action_space.sample())
    mode = measured.result.modes[0]
    steps = {row.part.name: row.statistics.n for row in mode.rows if row.part.lane == "step"}
    assert steps["Pendulum-v1"] == steps["NormalizeObservation"] == 5
    assert measured.result.stages[-1] == "RecordEpisodeStatistics"
    assert mode.unattributed <= 0.05
    assert not {"step", "reset"} & env.__dict__.keys()


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        (3, "entry-point group"),
        ((np.zeros(3), {}), "not the result of its reset"),
        ("CartPole-v1", "tdx.GymEnv('CartPole-v1')"),
        (gym.Env, "create an instance"),
        (make, "call it: make()"),
        (torch.nn.Linear(1, 1), "pass the env that it acts in"),
    ],
)
def test_unknown_objects_are_refused_with_a_next_step(target: Any, hint: str) -> None:
    for job in (tdx.inspect, tdx.trace, tdx.check, tdx.profile):
        with pytest.raises(ArgumentError, match="is not supported") as caught:
            job(target)
        assert hint in str(caught.value.hint)


def test_space_that_cannot_be_read_is_a_finding() -> None:
    env = make()
    env.observation_space = "box"
    (finding,) = tdx.check(env).findings
    assert (finding.check, finding.where.stage) == ("specs", 6)
