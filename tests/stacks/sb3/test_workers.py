"""Wrappers in the worker processes of a ``SubprocVecEnv``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

import tdx
from tdx.cli.process import run as run_command
from tdx.core import StepTrace
from tdx.foundation.errors import ArgumentError
from tdx.stacks import open_stack
from tests.stacks.sb3.envs import assert_equal, run
from tests.stacks.worker_envs import make_long, make_row, make_slow, make_without_tdx


@contextmanager
def opened(*rows: Any, method: str = "fork") -> Iterator[Any]:
    env = SubprocVecEnv(list(rows), start_method=method)
    try:
        yield VecNormalize(env)
    finally:
        env.close()


def make_subprocesses() -> Any:
    return VecNormalize(SubprocVecEnv([make_row], start_method="fork"))


def test_attached_run_equals_the_run_in_this_process() -> None:
    rows = [make_row, make_long]
    dummy = VecNormalize(DummyVecEnv(list(rows)))
    expected_traces: list[StepTrace] = []
    with open_stack(dummy).attach(expected_traces.append):
        expected = run(dummy, 15)
    with opened(*rows) as env:
        traces: list[StepTrace] = []
        with open_stack(env).attach(traces.append):
            found = run(env, 15)
            assert "tdx_worker_agent" in env.env_method("list_traces")[0]
        assert env.env_method("list_traces") == [[]] * len(rows)
    for mine, theirs in zip(found, expected, strict=True):
        for one, other in zip(mine[:3], theirs[:3], strict=True):
            # Only SubprocVecEnv keeps rewards as float64.
            assert np.allclose(one, other)
    for one, other in zip(traces, expected_traces, strict=True):
        for left, right in zip(one.stages, other.stages, strict=True):
            if left.index >= 5:
                continue
            assert left.place == right.place
            for key, version in left.written.items():
                if "episode" not in key:
                    assert np.array_equal(version.value, right.written[key].value), left.place


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_measured_run_equals_the_bare_run(method: str) -> None:
    with opened(make_row) as env:
        expected = run(env, 15)
    with opened(make_row, method=method) as env:
        with tdx.profile(env) as measured:
            found = run(env, 15)
        assert env.env_method("list_traces") == [[]]
    assert_equal(found, expected)
    assert "wrapper Slow" in [row.part.label for row in measured.result.modes[0].rows]


def test_envs_are_not_copied_while_they_are_traced() -> None:
    with opened(make_row) as env:
        traces: list[StepTrace] = []
        with open_stack(env).attach(traces.append):
            with pytest.raises(ArgumentError, match="being traced or profiled"):
                tdx.freeze(env)
            run(env, 2)
        assert len(traces) == 3
        assert tdx.freeze(env).stages


def test_stages_values_and_state() -> None:
    with opened(make_row, make_row) as env:
        report = tdx.inspect(env, steps=5, seed=0)
        assert [stage.name for stage in report.stages][-4:] == [
            "Slow",
            "Outer",
            "SubprocVecEnv",
            "VecNormalize",
        ]
        assert report.chain is not None
        writes = {
            stage.name: [w.key for w in stage.forward.writes] for stage in report.chain.stages
        }
        assert writes["NormalizeObservation"] == ["observation"]
        assert writes["Slow"] == ["reward"]
        assert "done" in writes["SubprocVecEnv"]
        assert report.state[1]["_elapsed_steps"].tolist() == [5, 5]
        assert tuple(report.state[2]["obs_rms.mean"].shape) == (2, 3)


def test_learning_is_recorded() -> None:
    with opened(make_row, make_row) as env:
        model = PPO("MlpPolicy", env, n_steps=8, batch_size=8, n_epochs=1, seed=0)
        traces: list[StepTrace] = []
        with open_stack(model).attach(traces.append):
            model.learn(16)
        assert len(traces) == 9
        last = traces[-1]
        assert tuple(last.after(3)["reward"].value.shape) == (2,)


def test_the_slow_wrapper_is_named_by_the_profile() -> None:
    with opened(make_slow, make_slow) as env:
        stack = open_stack(env)
        with tdx.profile(stack) as measured:
            run(env, 10)
        mode = measured.result.modes[0]
    rows = {row.part.name: row for row in mode.rows if row.part.lane == "step"}
    assert max(rows.values(), key=lambda row: row.total_ns).part.name in ("Slow", "SubprocVecEnv")
    inside = [row for name, row in rows.items() if name not in ("SubprocVecEnv", "VecNormalize")]
    assert max(inside, key=lambda row: row.total_ns).part.name == "Slow"
    slow = rows["Slow"]
    # Both workers sleep in each step, at the same time.
    assert len(slow.times_ns) == 20
    assert slow.statistics.p50 >= 10_000
    assert slow.total_ns < slow.times_ns.sum()
    assert mode.steps.tolist() == [10]
    assert mode.unattributed == pytest.approx(0)
    assert min(int(row.times_ns.min()) for row in mode.rows) >= 0
    assert "slowest worker" in stack.timing_notes[0]


def test_a_worker_that_cannot_import_tdx_is_named_and_goes_on() -> None:
    with opened(make_without_tdx, make_without_tdx) as env:
        stack = open_stack(env)
        assert "its workers cannot import tdx: Outer > Slow" in stack.notes[0]
        assert [stage.name for stage in stack.stages] == ["VecNormalize"]
        assert stack.tracer().run(3).steps == 3


def test_a_waiting_env_and_a_closed_one_are_not_asked() -> None:
    with opened(make_row) as env:
        env.reset()
        env.step_async(np.zeros((1, 1), np.float32))
        assert "it waits for the result of a call" in open_stack(env).notes[0]
        assert len(env.step_wait()) == 4
    assert "it is closed" in open_stack(env).notes[0]


def test_a_worker_that_ended_is_reported() -> None:
    with opened(make_row) as env:
        core = env.venv
        core.processes[0].terminate()
        core.processes[0].join()
        assert "a worker process has ended" in open_stack(env).notes[0]
        core.closed = True


@pytest.mark.parametrize(
    "command",
    [
        ["inspect", "chain"],
        ["check"],
        ["profile", "--steps", "5", "--repeat", "1", "--warmup", "0"],
    ],
)
def test_commands(command: list[str], capfd: Any) -> None:
    target = "tests.stacks.sb3.test_workers:make_subprocesses"
    run_command([*command, "--env", target, "--allow-code"])
    out = capfd.readouterr().out
    assert ("7 stages" if command == ["check"] else "NormalizeObservation") in out
    assert "worker processes and are measured as one" not in out


def test_steps_are_those_of_the_vec_env() -> None:
    env = make_vec_env("CartPole-v1", n_envs=2)
    with tdx.profile(env) as measured:
        run(env, 10)
    mode = measured.result.modes[0]
    assert (mode.steps.tolist(), mode.frames.tolist()) == ([10], [20])
