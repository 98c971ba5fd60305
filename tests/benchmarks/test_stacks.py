"""S1 to S3: what observing the wrappers of another library costs."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import tdx
from tdx.profiling.machine import quiet_environment
from tdx.stacks import open_stack
from tests.benchmarks.bars import (
    STACK_CALL,
    STACK_STEP,
    STACK_TRACED_CALL,
    STACK_TRACED_STEP,
    STACK_UNATTRIBUTED,
)
from tests.benchmarks.conftest import Note

WRAPPERS = 8
ROUNDS = 40


class Spinning(gym.Env[Any, Any]):
    """Waits actively in each step.

    Args:
        microseconds: Duration of a step.
    """

    observation_space = spaces.Box(-1.0, 1.0, (8,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, microseconds: float) -> None:
        self.duration_ns = round(microseconds * 1000)
        self.result: Any = np.zeros(8, np.float32), 0.0, False, False, {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.result[0], {}

    def step(self, action: Any) -> Any:
        until = time.perf_counter_ns() + self.duration_ns
        while time.perf_counter_ns() < until:
            pass
        return self.result


class Passing(gym.Wrapper[Any, Any, Any, Any]):
    """Passes every step on."""

    def step(self, action: Any) -> Any:
        return self.env.step(action)


def make(microseconds: float) -> Any:
    env: Any = Spinning(microseconds)
    for _ in range(WRAPPERS):
        env = Passing(env)
    return env


def _run(env: Any, block: AbstractContextManager[Any], steps: int) -> float:
    """Return the seconds of the fastest step in a block; others may have been interrupted."""
    action, fastest = np.zeros(2, np.float32), float("inf")
    with block:
        for _ in range(steps):
            start = time.perf_counter()
            env.step(action)
            fastest = min(fastest, time.perf_counter() - start)
    return fastest


def _best(env: Any, steps: int) -> tuple[float, float, float]:
    """Return the best seconds of a bare, a profiled and a recorded step, in alternation."""
    stack = open_stack(env)
    found = []
    with quiet_environment():
        for _ in range(ROUNDS):
            blocks = (nullcontext(), tdx.profile(env), stack.attach(lambda trace: None))
            found.append([_run(env, block, steps) for block in blocks])
    bare, profiled, recorded = np.array(found).min(0).tolist()
    return bare, profiled, recorded


def test_call(note: Note) -> None:
    """The difference of the best steps of an env that does nothing, for each wrapper."""
    bare, profiled, recorded = _best(make(0), 200)
    note(STACK_CALL, "tdx", (profiled - bare) / WRAPPERS)
    note(STACK_TRACED_CALL, "tdx", (recorded - bare) / WRAPPERS)


def test_step(note: Note) -> None:
    """Steps of 1 ms."""
    env = make(1000)
    bare, profiled, recorded = _best(env, 10)
    for bar, seconds in ((STACK_STEP, profiled), (STACK_TRACED_STEP, recorded)):
        note(bar, "bare", bare)
        note(bar, "tdx", seconds)
    with tdx.profile(env) as measured:
        for _ in range(200):
            env.step(np.zeros(2, np.float32))
    note(STACK_UNATTRIBUTED, "tdx", measured.result.modes[0].unattributed)
