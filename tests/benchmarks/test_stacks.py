"""S1 to S3: cost of observing the stages of a stack."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import tdx
from tdx.core.tracing import StepTrace
from tdx.profiling.machine import quiet_environment
from tdx.stacks import open_stack
from tests.benchmarks.bars import (
    NATIVE_STACK,
    STACK_CALL,
    STACK_STEP,
    STACK_TRACED_CALL,
    STACK_TRACED_STEP,
    STACK_UNATTRIBUTED,
    TORCHRL_STACK,
    Bar,
)
from tests.benchmarks.conftest import Note

Step = Callable[[], float]
WRAPPERS = 8
ROUNDS = 40


class Spinning(gym.Env[Any, Any]):
    """Env that busy-waits in each step.

    Args:
        microseconds: Duration of a step.
    """

    observation_space = spaces.Box(-1.0, 1.0, (8,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, microseconds: float) -> None:
        self.duration_ns = round(microseconds * 1000)
        self.result: Any = np.zeros(8, np.float32), 1.0, False, False, {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.result[0], {}

    def step(self, action: Any) -> Any:
        until = time.perf_counter_ns() + self.duration_ns
        while time.perf_counter_ns() < until:
            pass
        return self.result


class Passing(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper that forwards every step."""

    def step(self, action: Any) -> Any:
        return self.env.step(action)


def make(microseconds: float) -> Any:
    env: Any = Spinning(microseconds)
    for _ in range(WRAPPERS):
        env = Passing(env)
    return env


def _run(step: Step, block: AbstractContextManager[Any], steps: int) -> float:
    """Return the seconds of the fastest step in a block; other steps may have been interrupted."""
    fastest = float("inf")
    with block:
        for _ in range(steps):
            fastest = min(fastest, step())
    return fastest


def _timed_step(env: Any) -> Step:
    """Return a function that times a step of a Gymnasium env."""
    action = np.zeros(2, np.float32)

    def step() -> float:
        start = time.perf_counter()
        env.step(action)
        return time.perf_counter() - start

    return step


def _timed_tensordict_step(env: tdx.EnvBase) -> Step:
    """Return a function that times a step of an env of TensorDicts."""
    given = env.rand_action(env.reset())

    def step() -> float:
        tensordict = given.copy()
        start = time.perf_counter()
        env.step(tensordict)
        return time.perf_counter() - start

    return step


def _best(env: Any, steps: int, step: Step | None = None) -> tuple[float, float, float]:
    """Return the least seconds of a bare, a profiled and a recorded step, in alternation."""
    stack = open_stack(env)
    step = step or _timed_step(env)
    found = []
    with quiet_environment():
        for _ in range(ROUNDS):
            blocks = (nullcontext(), tdx.profile(env), stack.attach(lambda trace: None))
            found.append([_run(step, block, steps) for block in blocks])
    bare, profiled, recorded = np.array(found).min(0).tolist()
    return bare, profiled, recorded


def _check(env: Any, step: Step, stages: int) -> None:
    """Check that a profile and a trace of a step contain the calls of every stage."""
    traces: list[StepTrace] = []
    with open_stack(env).attach(traces.append):
        step()
    (trace,) = traces
    assert len({call.index for call in trace.stages if call.kind == "stage"}) == stages
    with tdx.profile(env) as measured:
        step()
    rows = measured.result.modes[0].rows
    assert [len(row.times_ns) for row in rows if row.part.work in ("stage", "wrapper")] == [
        1
    ] * stages


def chain(kind: Literal["tdx", "TorchRL"], microseconds: float, stages: int) -> Any:
    """Return an env of tdx or TorchRL with transforms that scale the reward."""
    base = tdx.GymWrapper(Spinning(microseconds))
    if kind == "tdx":
        scalings = [tdx.RewardScaling(0.0, 0.9) for _ in range(stages)]
        return tdx.TransformedEnv(base, tdx.Compose(*scalings))
    rl = pytest.importorskip("torchrl.envs")
    scalings = [rl.RewardScaling(0.0, 0.9, standard_normal=False) for _ in range(stages)]
    original = rl.TransformedEnv(tdx.to_torchrl(base), rl.Compose(*scalings))
    return open_stack(original).target


@pytest.mark.parametrize(
    ("kind", "bars"), [("tdx", NATIVE_STACK), ("TorchRL", TORCHRL_STACK)], ids=["tdx", "TorchRL"]
)
def test_cost_of_observed_transforms(
    note: Note, kind: Literal["tdx", "TorchRL"], bars: tuple[Bar, Bar, Bar]
) -> None:
    """Compare long and short chains for the cost of a call, then time steps of 1 ms."""
    added = {}
    for stages in (1, 1 + WRAPPERS):
        env = chain(kind, 0, stages)
        step = _timed_tensordict_step(env)
        bare, _, recorded = _best(env, 50, step)
        added[stages] = recorded - bare
        _check(env, step, stages)
    note(bars[0], "tdx", (added[1 + WRAPPERS] - added[1]) / WRAPPERS)
    env = chain(kind, 1000, WRAPPERS)
    bare, profiled, recorded = _best(env, 10, _timed_tensordict_step(env))
    for bar, seconds in ((bars[1], profiled), (bars[2], recorded)):
        note(bar, "bare", bare)
        note(bar, "tdx", seconds)


def test_cost_of_an_observed_wrapper_call(note: Note) -> None:
    """Compare the best steps of an env that does nothing, per wrapper."""
    env = make(0)
    bare, profiled, recorded = _best(env, 200)
    _check(env, _timed_step(env), WRAPPERS)
    note(STACK_CALL, "tdx", (profiled - bare) / WRAPPERS)
    note(STACK_TRACED_CALL, "tdx", (recorded - bare) / WRAPPERS)


def test_cost_of_an_observed_step(note: Note) -> None:
    """Time steps of 1 ms."""
    env = make(1000)
    bare, profiled, recorded = _best(env, 10)
    for bar, seconds in ((STACK_STEP, profiled), (STACK_TRACED_STEP, recorded)):
        note(bar, "bare", bare)
        note(bar, "tdx", seconds)
    with tdx.profile(env) as measured:
        rewards = [env.step(np.zeros(2, np.float32))[1] for _ in range(200)]
    assert rewards == [1.0] * 200
    note(STACK_UNATTRIBUTED, "tdx", measured.result.modes[0].unattributed)
