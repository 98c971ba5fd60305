"""Wrappers in the worker processes of an ``AsyncVectorEnv``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.async_vector_env import _async_worker

import tdx
from tdx.cli.process import run as run_command
from tdx.core import StepTrace
from tdx.foundation.errors import ArgumentError
from tdx.stacks import open_stack
from tests.stacks.worker_envs import make_failing, make_long, make_row, make_without_tdx


def make_limited() -> Any:
    return wrappers.TimeLimit(make_row(), 5)


def other_loop(*args: Any) -> None:
    _async_worker(*args)


@contextmanager
def opened(*rows: Any, context: str = "fork", **kwargs: Any) -> Iterator[Any]:
    env = AsyncVectorEnv(rows, context=context, **kwargs)
    try:
        yield wrappers.vector.ClipReward(env, -1, 0)
    finally:
        env.close(terminate=True)


def run(env: Any, steps: int = 12) -> list[Any]:
    env.action_space.seed(0)
    return [env.reset(seed=1), *(env.step(env.action_space.sample()) for _ in range(steps))]


def assert_same(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        for left, right in zip(one[:-1], other[:-1], strict=True):
            assert left.dtype == right.dtype
            assert left.tobytes() == right.tobytes()


@pytest.mark.parametrize(
    ("shared", "mode"), [(True, AutoresetMode.NEXT_STEP), (False, AutoresetMode.SAME_STEP)]
)
def test_attached_run_equals_the_bare_run(shared: bool, mode: AutoresetMode) -> None:
    rows = [make_row, make_long]
    sync: Any = SyncVectorEnv(rows, autoreset_mode=mode)
    expected_traces: list[StepTrace] = []
    with open_stack(sync).attach(expected_traces.append):
        expected = run(sync)
    with opened(*rows, shared_memory=shared, autoreset_mode=mode) as env:
        traces: list[StepTrace] = []
        with open_stack(env.env).attach(traces.append):
            found = run(env.env)
            assert set(env.env.call("list_traces")[0]) == {"step", "tdx_worker_agent"}
        assert env.env.call("list_traces") == ([],) * len(rows)
    assert_same(found, expected)
    # The wrappers have the same values in workers as in this process.
    for one, other in zip(traces, expected_traces, strict=True):
        assert [stage.index for stage in one.stages] == [stage.index for stage in other.stages]
        for mine, theirs in zip(one.stages[:-1], other.stages[:-1], strict=True):
            if mine.index == 5:
                continue
            assert mine.written.keys() == theirs.written.keys(), mine.place
            for key, version in mine.written.items():
                assert np.array_equal(version.value, theirs.written[key].value), (mine.place, key)


def test_spawned_workers_are_measured_and_unchanged() -> None:
    with opened(make_row) as env:
        expected = run(env)
    with opened(make_row, context="spawn") as env:
        with tdx.profile(env) as measured:
            found = run(env)
        assert env.env.call("list_traces") == ([],)
    assert_same(found, expected)
    assert "wrapper Slow" in [row.part.label for row in measured.result.modes[0].rows]


def test_stages_specs_values_and_state() -> None:
    with opened(make_row, make_long) as env:
        stack = open_stack(env)
        assert stack.name == "Pendulum-v1"
        assert [(stage.name, stage.rows) for stage in stack.stages] == [
            ("OrderEnforcing", 2),
            ("TimeLimit", 2),
            ("NormalizeObservation", 2),
            ("Slow", 2),
            ("Outer", 2),
            ("AsyncVectorEnv", None),
            ("ClipReward", None),
        ]
        assert stack.stages[1].call == "TimeLimit(max_episode_steps=7)"
        assert stack.stages[3].call == "Slow(seconds=0.0, key=<lambda>)"
        assert "worker_envs.py:" in str(stack.stages[3].location)
        shapes = [
            tuple(each.output_spec["full_observation_spec", "observation"].shape)
            for each in stack.specs()
        ]
        assert set(shapes) == {(2, 3)}
        report = tdx.inspect(env, steps=5, seed=0)
        assert report.notes == ()
        assert report.chain is not None
        writes = {
            stage.name: [w.key for w in stage.forward.writes] for stage in report.chain.stages
        }
        assert writes["NormalizeObservation"] == ["observation"]
        assert writes["Slow"] == writes["ClipReward"] == ["reward"]
        assert report.state[1]["_elapsed_steps"].tolist() == [5, 5]
        assert tuple(report.state[2]["obs_rms.mean"].shape) == (2, 3)
        assert env.env.call("list_traces") == ([], [])


def test_a_worker_that_cannot_import_tdx_is_named_and_goes_on() -> None:
    with opened(make_without_tdx, make_without_tdx) as env:
        stack = open_stack(env)
        assert [stage.name for stage in stack.stages] == ["ClipReward"]
        assert "its workers cannot import tdx: Outer > Slow > Normalize" in stack.notes[0]
        assert stack.tracer().run(3).steps == 3


def test_a_single_worker_that_cannot_import_tdx() -> None:
    with opened(make_row, make_without_tdx) as env:
        assert "its workers cannot import tdx" in open_stack(env).notes[0]
        assert env.env.call("list_traces") == ([], [])


def test_different_wrappers_and_other_loops_are_one_stage() -> None:
    with opened(make_row, make_limited) as env:
        assert "the sub-envs have different wrappers" in open_stack(env).notes[0]
        assert open_stack(env).tracer().run(2).steps == 2
    with opened(make_row, worker=other_loop) as env:
        assert "its workers have a loop of their own" in open_stack(env).notes[0]
        assert open_stack(env).tracer().run(2).steps == 2


def test_a_pending_call_is_not_disturbed() -> None:
    with opened(make_row, make_row) as env:
        stack = open_stack(env)
        env.reset(seed=0)
        actions = np.zeros((2, 1), np.float32)
        env.env.step_async(actions)
        assert "waits for the result of a call" in open_stack(env).notes[0]
        with pytest.raises(ArgumentError, match="it waits for"), tdx.profile(stack):
            pass
        assert len(env.env.step_wait()) == 5
        with tdx.profile(stack) as measured:
            env.step(actions)
        assert "wrapper Slow" in [row.part.label for row in measured.result.modes[0].rows]


@pytest.mark.filterwarnings("ignore:.*(Received|Raising|Traceback)")
def test_an_error_in_a_worker_reaches_the_caller() -> None:
    with opened(make_failing, make_row) as env:
        stack = open_stack(env)
        with pytest.raises(ValueError, match="no more steps"), tdx.profile(stack):
            run(env)
    traces: list[StepTrace] = []
    with opened(make_failing, make_row) as env:
        recording = open_stack(env).attach(traces.append)
        with pytest.raises(ValueError, match="no more steps"), recording:
            run(env)
    assert [trace.phase for trace in traces] == ["reset", "step", "step", "step"]
    error = traces[-1].error
    assert error is not None
    assert (error.where.stage, error.where.transform) == (4, "Outer")
    assert error.message == "it of sub-env 0 raised ValueError in a step: no more steps"


@pytest.mark.filterwarnings("ignore:.*(Received|Raising|Traceback)")
@pytest.mark.parametrize(
    ("factory", "command"),
    [
        ("make_failing_rows", ["inspect", "values", "--steps", "5"]),
        ("make_failing_rows", ["check"]),
        ("make_failing_rows", ["profile", "--steps", "5", "--repeat", "1", "--warmup", "0"]),
        ("make_failing_subprocesses", ["check"]),
        ("make_failing_subprocesses", ["profile", "--steps", "5", "--repeat", "1"]),
    ],
)
def test_an_error_in_a_worker_names_its_wrapper(
    factory: str, command: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    target = f"tests.stacks.worker_envs:{factory}"
    assert run_command([*command, "--env", target, "--allow-code"]) != 0
    found = capfd.readouterr()
    text = " ".join((found.out + found.err).split())
    message = "stage 4 (Outer): it of sub-env 1 raised ValueError in a step: no more steps"
    assert message in text
    assert "TDX402" not in text
    assert not list(Path(gettempdir()).glob("tdx-*.json"))


def test_only_one_block_is_attached_at_a_time() -> None:
    with opened(make_row) as env:
        first = open_stack(env)
        with first.attach(lambda _: None):
            assert first.state()
            second: Any = open_stack(env)
            attached = second.attach(lambda _: None)
            with pytest.raises(ArgumentError, match="traced or profiled already"), attached:
                pass
            with (
                pytest.raises(ArgumentError, match="traced or profiled already"),
                second.workers.recording(),
            ):
                pass
            assert env.env.call("list_traces")[0]
        assert env.env.call("list_traces") == ([],)
