"""Vector envs whose sub-envs are in worker processes: ``AsyncVectorEnv`` and ``SubprocVecEnv``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv
from stable_baselines3.common.env_util import make_vec_env

import tdx
from tdx.cli.process import run as run_command
from tdx.core import StepTrace
from tdx.foundation.errors import EnvError
from tdx.stacks import open_stack
from tests.programs import exhaustive
from tests.stacks.sb3.envs import run
from tests.stacks.worker_envs import make_async, make_row, make_subprocesses

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")

_REBUILT = "those that its env_fns create in this process are shown, without the workers' state"


@contextmanager
def opened(make: Callable[[], Any]) -> Iterator[Any]:
    env = make()
    try:
        yield env
    finally:
        env.close()


def gym_run(env: Any, steps: int) -> list[Any]:
    env.action_space.seed(0)
    return [env.reset(seed=1), *(env.step(env.action_space.sample()) for _ in range(steps))]


@pytest.mark.parametrize(("make", "steps"), [(make_async, gym_run), (make_subprocesses, run)])
@exhaustive
def test_the_vector_level_is_observed_and_the_run_unchanged(
    make: Callable[[], Any], steps: Callable[[Any, int], list[Any]]
) -> None:
    with opened(make) as env:
        expected = steps(env, 12)
    traces: list[StepTrace] = []
    with opened(make) as env:
        stack = open_stack(env)
        name = type(env.unwrapped).__name__
        assert len(stack.stages) == 1
        assert f"the sub-envs of {name} run in worker processes" in stack.notes[0]
        assert "pass the factory of one env" in stack.notes[0]
        with stack.attach(traces.append):
            values = steps(env, 12)
    for one, other in zip(values, expected, strict=True):
        assert np.array_equal(one[0], other[0])
    assert len(traces) == len(values)
    assert traces[1].stages[-1].name == stack.stages[0].name


@pytest.mark.parametrize("make", [make_async, make_subprocesses])
def test_the_time_of_the_workers_is_that_of_the_env(make: Callable[[], Any]) -> None:
    with opened(make) as env, tdx.profile(env) as measured:
        (gym_run if make is make_async else run)(env, 12)
    parts = {(row.part.work, row.part.name) for row in measured.result.modes[0].rows}
    assert {work for work, _ in parts} == {"env", "wrapper"}
    assert not any(name == "NormalizeObservation" for _, name in parts)


@exhaustive
def test_sub_envs_are_created_again_by_the_factories_of_the_vector_env() -> None:
    with opened(make_async) as env:
        core = env.env
        report = tdx.inspect(env, steps=5, seed=0)
        assert _REBUILT in report.notes[0]
        assert [stage.name for stage in report.stages] == [
            *("OrderEnforcing", "TimeLimit", "NormalizeObservation", "Failing"),
            *("SyncVectorEnv", "ClipReward"),
        ]
        assert report.chain is not None
        writes = {
            stage.name: [write.key for write in stage.forward.writes]
            for stage in report.chain.stages
        }
        assert writes["NormalizeObservation"] == ["observation"]
        assert report.state[1]["_elapsed_steps"].tolist() == [5, 5]
        checked = tdx.check(env, seed=0)
        assert "TDX479" in {finding.code for finding in checked.findings}
        assert checked.hidden == ()
        assert _REBUILT in checked.notes[0]
        assert env.env is core
        assert env.reset(seed=0)[0].shape == (2, 3)


def test_a_factory_that_fails_in_this_process_is_reported() -> None:
    with opened(lambda: AsyncVectorEnv([make_row] * 2)) as env:
        env.env_fns = [lambda: 1 // 0]
        with pytest.raises(EnvError, match=r"created in this process: .*division") as caught:
            tdx.inspect(env, steps=2)
        assert "SyncVectorEnv" in str(caught.value.hint)


@pytest.mark.filterwarnings("ignore:.*(Received|Raising|Traceback)")
@pytest.mark.parametrize(
    ("factory", "command", "message"),
    [
        (
            "make_failing_async",
            ["check"],
            "stage 3 (Failing): it of sub-env 1 raised ValueError in a step: no more steps",
        ),
        (
            "make_failing_subprocesses",
            ["profile", "--steps", "5", "--repeat", "1", "--warmup", "0"],
            "the env raised EOFError in a step",
        ),
    ],
)
@exhaustive
def test_an_error_in_a_worker_ends_the_command(
    factory: str, command: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    target = f"tests.stacks.worker_envs:{factory}"
    assert run_command([*command, "--env", target, "--allow-code"]) != 0
    shown = capfd.readouterr()
    assert message in " ".join((shown.out + shown.err).split())


@pytest.mark.parametrize(
    ("factory", "command", "text"),
    [
        ("make_async", ["inspect", "chain"], "2 NormalizeObservation"),
        ("make_async", ["profile", "--steps", "5", "--repeat", "1"], "env AsyncVectorEnv"),
        ("make_subprocesses", ["inspect", "chain"], "0 VecNormalize"),
        ("make_subprocesses", ["check"], "no issue in what is visible"),
    ],
)
@exhaustive
def test_commands(
    factory: str, command: list[str], text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    run_command([*command, "--env", f"tests.stacks.worker_envs:{factory}", "--allow-code"])
    assert text in capfd.readouterr().out


def test_steps_are_those_of_the_vec_env() -> None:
    env = make_vec_env("CartPole-v1", n_envs=2)
    with tdx.profile(env) as measured:
        run(env, 10)
    mode = measured.result.modes[0]
    assert (mode.steps.tolist(), mode.frames.tolist()) == ([10], [20])
