"""The wrapper stacks of RL Zoo's configurations, built with the classes of Stable-Baselines3.

``TDX_WRAPPER_STEPS=1000`` makes the acceptance run: at least 1,000 steps of each.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize, VecTransposeImage

import tdx
from tdx.core import StepTrace
from tdx.stacks import open_stack
from tests.programs import exhaustive, sampled
from tests.stacks.sb3.envs import assert_equal, replaced_methods, run

MIN_STEPS = int(os.environ.get("TDX_WRAPPER_STEPS", "0"))
ATARI = ["NoopResetEnv", "MaxAndSkipEnv", "EpisodicLifeEnv", "FireResetEnv", "WarpFrame"]


def make_atari() -> Any:
    ale_py = pytest.importorskip("ale_py")
    gymnasium.register_envs(ale_py)
    env = make_vec_env("BreakoutNoFrameskip-v4", n_envs=2, wrapper_class=AtariWrapper)
    return VecTransposeImage(VecFrameStack(env, 4))


def make_mujoco() -> Any:
    pytest.importorskip("mujoco")
    return VecNormalize(make_vec_env("HalfCheetah-v5", n_envs=2), gamma=0.98)


def make_mujoco_eval() -> Any:
    env = make_mujoco()
    run(env, 20, seed=5)
    env.training = env.norm_reward = False
    return env


def make_classic() -> Any:
    return make_vec_env("CartPole-v1", n_envs=2)


def make_normalized_classic() -> Any:
    return VecNormalize(make_vec_env("Pendulum-v1", n_envs=2), gamma=0.9)


def make_stacked_classic() -> Any:
    env = make_vec_env("MountainCarContinuous-v0", n_envs=2)
    return VecFrameStack(VecNormalize(env), 4)


CONFIGURATIONS: list[tuple[Callable[[], Any], int, list[str]]] = [
    (make_atari, 60, ["VecFrameStack", "VecTransposeImage"]),
    (make_mujoco, 100, ["VecNormalize"]),
    (make_mujoco_eval, 60, ["VecNormalize"]),
    (make_classic, 100, []),
    (make_normalized_classic, 220, ["VecNormalize"]),
    (make_stacked_classic, 100, ["VecNormalize", "VecFrameStack"]),
]


@pytest.mark.parametrize(
    ("make", "steps", "names"), CONFIGURATIONS, ids=lambda each: getattr(each, "__name__", "")
)
@sampled(3)
def test_recorded_steps_equal_the_bare_steps(
    make: Callable[[], Any], steps: int, names: list[str]
) -> None:
    steps = max(steps, MIN_STEPS)
    bare, env = make(), make()
    expected = run(bare, steps)
    counts = [0, 0]

    def count(trace: StepTrace) -> None:
        counts[trace.phase == "step"] += 1
        assert trace.error is None

    stack: Any = open_stack(env)
    with stack.attach(count):
        found = run(env, steps)
    assert_equal(found, expected)
    assert counts == [1, steps]
    assert replaced_methods(stack) == []
    assert [stage.name for stage in stack.stages if stage.rows is None] == ["DummyVecEnv", *names]
    for index, state in open_stack(bare).state().items():
        for name, value in state.items():
            if not name.startswith(("t_start", "episode_times")):
                assert value.equal(stack.state()[index][name]), (index, name)


@pytest.mark.parametrize(("make", "names"), [(make, names) for make, _, names in CONFIGURATIONS])
@sampled(3)
def test_configuration_is_inspected_checked_and_profiled(
    make: Callable[[], Any], names: list[str]
) -> None:
    env = make()
    stack: Any = open_stack(env)
    report = tdx.inspect(env, steps=5, seed=0)
    assert [stage.name for stage in report.stages if stage.rows is None][1:] == names
    assert report.values is not None
    assert report.values.violations == ()
    assert report.values.error is None
    findings = tdx.check(env, seed=0).findings
    assert [finding.code for finding in findings if finding.severity != "suggestion"] == []
    with tdx.profile(env, all_wrappers=True) as measured:
        run(env, 3)
    (mode,) = measured.result.modes
    steps = {row.part.index for row in mode.rows if row.part.lane == "step"}
    assert steps == {level.index for level in stack.levels}
    assert mode.unattributed <= 0.05
    assert replaced_methods(stack) == []
    env.close()


@exhaustive
def test_atari_wrappers_are_named_with_what_they_change() -> None:
    report = tdx.inspect(make_atari(), steps=40, seed=0)
    assert [stage.name for stage in report.stages if stage.name in ATARI] == ATARI
    changes = {change.key: change.stages for change in report.spec.changes if change.stages}
    names = [report.stages[index].name for index in changes["observation"]]
    assert names == ["WarpFrame", "VecFrameStack", "VecTransposeImage"]
    assert report.values is not None
    assert report.values.violations == ()
    assert report.chain is not None
    writes = {stage.name: [w.key for w in stage.forward.writes] for stage in report.chain.stages}
    assert ("info", "terminal_observation") in writes["VecTransposeImage"]
    assert "terminated" in writes["EpisodicLifeEnv"]
