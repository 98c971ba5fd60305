"""Vector envs of Tianshou: stages, values, partial resets, contracts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import tdx
from tdx.core import StepTrace
from tdx.foundation.errors import ArgumentError
from tdx.inspection.stack_import import import_stack
from tdx.stacks import open_stack
from tdx.stacks.conversion import Convertible
from tdx.stacks.refusals import Missing
from tests.programs import require_package

pytestmark = pytest.mark.programs

LIMIT = 30


@pytest.fixture(scope="module")
def envs() -> Any:
    """The package of Tianshou's envs."""
    require_package("tianshou")
    import tianshou.env

    return tianshou.env


def sub_env() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1", max_episode_steps=LIMIT)


@pytest.fixture
def make(envs: Any) -> Callable[[], Any]:
    """Return a function that creates two sub-envs with normalized observations."""
    return lambda: envs.VectorEnvNormObs(envs.DummyVectorEnv([sub_env, sub_env]))


def test_wrappers_of_the_vector_env_and_of_its_sub_envs_are_stages(make: Callable[[], Any]) -> None:
    stack = open_stack(make())
    names = [stage.name for stage in stack.stages]
    assert names[-3:] == ["TimeLimit", "DummyVectorEnv", "VectorEnvNormObs"]
    assert stack.name == "CartPole-v1"
    assert not stack.hidden
    inner, outer = (
        specs.output_spec["full_observation_spec", "observation"] for specs in stack.specs()[-2:]
    )
    assert inner.shape == outer.shape == torch.Size([2, 4])
    assert float(outer.high.max()) == 10


def test_values_of_a_step_are_those_that_the_levels_return(make: Callable[[], Any]) -> None:
    stack = open_stack(make())
    traces: list[StepTrace] = []
    with stack.attach(traces.append):
        stack.target.seed(0)
        first, _ = stack.target.reset()
        stepped = stack.target.step(np.array([0, 1]))
    assert [trace.phase for trace in traces] == ["reset", "step"]
    outer = len(stack.stages) - 1
    for trace, expected in zip(traces, (first, stepped[0]), strict=True):
        assert np.array_equal(trace.after(outer)["observation"].value, expected)
    assert set(traces[1].after(outer)) >= {"observation", "reward", "terminated", "truncated"}
    assert torch.equal(traces[1].after(outer)["info", "env_id"].value, torch.arange(2))


def test_a_reset_of_one_sub_env_keeps_the_observations_of_the_other(
    make: Callable[[], Any],
) -> None:
    stack = open_stack(make())
    traces: list[StepTrace] = []
    with stack.attach(traces.append):
        stack.target.seed(0)
        stack.target.reset()
        stepped = stack.target.step(np.array([0, 1]))
        again, infos = stack.target.reset([1])
    assert again.shape == (1, 4)
    assert len(infos) == 1
    observation = traces[-1].after(len(stack.stages) - 1)["observation"].value
    assert traces[-1].phase == "reset"
    assert np.array_equal(observation[0], stepped[0][0])
    assert np.array_equal(observation[1], again[0])


def test_observation_changes_no_value(make: Callable[[], Any]) -> None:
    def roll(env: Any) -> list[Any]:
        env.seed(0)
        values = [env.reset()[0]]
        values += [env.step(np.array([0, 1]))[0] for _ in range(5)]
        return [*values, env.reset([0, 1])[0], env.reset([0])[0]]

    plain, observed = make(), open_stack(make())
    with observed.attach(lambda trace: None):
        values = roll(observed.target)
    assert all(map(np.array_equal, roll(plain), values))


def test_check_finds_nothing_in_a_correct_stack(make: Callable[[], Any]) -> None:
    # Episodes end in different steps, so that sub-envs are reset alone.
    assert tdx.check(make(), seed=0, steps=4 * LIMIT).findings == ()
    evaluated = tdx.check(make(), seed=0, evaluation=True)
    hints = {finding.code: finding.hint for finding in evaluated.findings}
    assert hints == {"TDX404": "stop the updates: update_obs_rms = False"}


def test_contract_of_a_stack_is_kept_by_itself_and_not_by_other_statistics(
    make: Callable[[], Any],
) -> None:
    contract = tdx.freeze(make(), steps=2 * LIMIT)
    report = tdx.check_contract(make(), contract)
    assert report.verdict == "same"
    assert report.coverage.stages == report.coverage.all_stages == 2
    assert not report.excluded
    other = make()
    other.obs_rms.mean, other.obs_rms.count = np.full(4, 3.0), 1_000
    assert tdx.check_contract(other, contract).verdict == "different"


def test_state_and_profile_name_the_normalizer(make: Callable[[], Any]) -> None:
    stack = open_stack(make())
    stack.target.reset()
    assert {"obs_rms.mean", "obs_rms.var", "obs_rms.count"} <= set(stack.state()[4])
    with tdx.profile(stack) as measured:
        stack.target.step(np.array([0, 1]))
    labels = [row.part.label for row in measured.result.modes[0].rows]
    assert labels[-1] == "wrapper VectorEnvNormObs"


def test_sub_envs_of_other_processes_are_the_env_inside(envs: Any) -> None:
    env = envs.VectorEnvNormObs(envs.SubprocVectorEnv([sub_env, sub_env]))
    stack = open_stack(env)
    try:
        assert [stage.name for stage in stack.stages] == ["VectorEnvNormObs"]
        assert "worker processes" in stack.hidden[0]
        assert tdx.check(stack, seed=0, steps=LIMIT + 5).findings == ()
    finally:
        stack.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_wrappers_of_a_board_game_are_named_as_not_shown(envs: Any) -> None:
    require_package("pettingzoo")
    from pettingzoo.classic import tictactoe_v3

    stack = open_stack(envs.DummyVectorEnv([lambda: envs.PettingZooEnv(tictactoe_v3.env())] * 2))
    assert [stage.name for stage in stack.stages] == ["DummyVectorEnv"]
    assert stack.hidden == (
        "PettingZooEnv holds an env of another library, OrderEnforcingWrapper, in .env, whose "
        "stages are not shown",
    )


def test_asynchronous_vector_env_is_refused(envs: Any) -> None:
    env = envs.DummyVectorEnv([sub_env, sub_env], wait_num=1)
    with pytest.raises(ArgumentError, match="asynchronously is not supported"):
        open_stack(env)


def test_wrappers_become_a_pipeline_with_equal_values(envs: Any) -> None:
    def stacked() -> Any:
        return gymnasium.wrappers.FrameStackObservation(sub_env(), 3)

    def create() -> Any:
        env = envs.VectorEnvNormObs(envs.DummyVectorEnv([stacked] * 2), update_obs_rms=False)
        env.obs_rms.mean, env.obs_rms.var = np.full((3, 4), 0.2), np.full((3, 4), 0.5)
        return open_stack(env)

    converted = import_stack(create, steps=2 * LIMIT)
    assert [stage.name for stage in converted.pipeline.transforms] == [
        *("UnsqueezeTransform", "CatFrames"),
        *("ObservationNorm", "RewardClipping"),
    ]
    assert converted.pipeline.env.num_envs == 2
    assert converted.is_equal
    assert not converted.missing
    assert converted.comparisons[0].last == 5


def test_moving_statistics_are_not_converted(make: Callable[[], Any]) -> None:
    result = open_stack(make())
    assert isinstance(result, Convertible)
    last = result.convert().stages[-1].result
    assert isinstance(last, Missing)
    assert "update_obs_rms = False" in last.advice


def test_spaces_of_the_vector_env_are_those_of_its_wrapped_sub_envs(envs: Any) -> None:
    def stacked() -> Any:
        return gymnasium.wrappers.FrameStackObservation(sub_env(), 3)

    stack = open_stack(envs.VectorEnvNormObs(envs.DummyVectorEnv([stacked] * 2)))
    for specs in stack.specs()[-2:]:
        assert specs.output_spec["full_observation_spec", "observation"].shape == (2, 3, 4)
    assert not tdx.check(stack, seed=0, steps=6).findings
