"""Traces that are read after later steps, and what a step waits for."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tdx.core import StepTrace
from tdx.stacks import open_stack
from tdx.stacks.gymnasium import snapshots
from tests.stacks.bad_envs import pendulum
from tests.stacks.comparing import methods


class Reusing(gym.Env[Any, Any]):
    """Returns the same arrays in each step, and writes into the action.

    Args:
        size: Numbers in an observation.
        nested: True if the observation is a dict.
    """

    action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, size: int, nested: bool) -> None:
        box = gym.spaces.Box(-100.0, 100.0, (size,), np.float32)
        self.observation_space = gym.spaces.Dict(x=box) if nested else box
        self.buffer = np.zeros(size, np.float32)
        self.result: Any = {"x": self.buffer} if nested else self.buffer
        self.info: dict[str, Any] = {
            "count": np.zeros(1),
            "names": ["start"],
            "inner": {"sum": np.zeros(2)},
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.buffer[:] = 0
        return self.result, self.info

    def step(self, action: Any) -> Any:
        self.buffer += 1
        self.info["count"] += 1
        self.info["inner"]["sum"] += 1
        self.info["names"][0] = str(self.buffer[0])
        action[:] = 0
        return self.result, 0.0, False, False, self.info


class Halving(gym.Wrapper[Any, Any, Any, Any]):
    """Halves the observation in its memory, and restores it before the next step."""

    def step(self, action: Any) -> Any:
        self.unwrapped.buffer *= 2  # type: ignore[attr-defined]
        result = self.env.step(action)
        self.unwrapped.buffer /= 2  # type: ignore[attr-defined]
        return result


class Passing(gym.Wrapper[Any, Any, Any, Any]):
    """Passes every step on."""


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("size", [3, 10_000])
def test_values_are_those_of_the_step_if_the_env_reuses_its_memory(size: int, nested: bool) -> None:
    env = Passing(Halving(Passing(Reusing(size, nested))))
    key: Any = ("observation", "x") if nested else "observation"
    traces: list[StepTrace] = []
    expected = []
    with open_stack(env).attach(traces.append):
        env.reset()
        for index in range(1, 5):
            before = float(env.unwrapped.buffer[0])  # type: ignore[attr-defined]
            env.step(np.full(2, index, np.float32))
            expected.append((before * 2 + 1, (before * 2 + 1) / 2))
    for index, (trace, (raw, halved)) in enumerate(zip(traces[1:], expected, strict=True), start=1):
        inner, outer = trace.after(-1), trace.after(2)
        assert inner[key].value.unique().tolist() == [raw]
        assert outer[key].value.unique().tolist() == [halved]
        assert inner["info", "count"].value.tolist() == [index]
        assert inner["info", "inner", "sum"].value.tolist() == [index] * 2
        assert inner["info", "names"].value == [str(np.float32(raw))]
        assert trace.tensordict["action"].unique().tolist() == [index]
        writers = [stage.name for stage in trace.stages if key in stage.written]
        assert writers == ["Reusing", "Halving"]
        overwriting = [stage.name for stage in trace.stages if key in stage.overwritten]
        assert overwriting[-1] == "Passing"


def test_a_step_converts_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0
    convert = snapshots._to_tensor

    def counting(value: Any) -> Any:
        nonlocal count
        count += 1
        return convert(value)

    monkeypatch.setattr(snapshots, "_to_tensor", counting)
    env = Passing(Passing(pendulum()))
    traces: list[StepTrace] = []
    with open_stack(env).attach(traces.append):
        env.reset(seed=0)
        for _ in range(10):
            env.step(np.zeros(1, np.float32))
    assert count == 0
    assert traces[-1].phase == "step"
    assert count == 0
    assert traces[-1].version("observation").value.shape == (3,)
    once = count
    assert once > 0
    # What a wrapper passes on is converted once, and a trace is built once.
    assert once < 20
    assert traces[-1].time_ns > 0
    assert count == once


def test_deferred_traces_are_traces() -> None:
    env = pendulum()
    traces: list[StepTrace] = []
    with open_stack(env).attach(traces.append):
        env.reset(seed=0)
        env.step(np.zeros(1, np.float32))
    numbered = replace(traces[1], step=7)
    assert (numbered.step, numbered.phase) == (7, "step")
    assert numbered.stages is traces[1].stages
    copied = pickle.loads(pickle.dumps(traces[0]))
    assert [stage.place for stage in copied.stages] == [stage.place for stage in traces[0].stages]
    assert not hasattr(traces[0], "missing")


def test_a_run_attaches_once() -> None:
    env = Passing(pendulum())
    before = methods(env)
    attached = []
    tracer: Any = open_stack(env).tracer()
    tracer.run(5, on_step=lambda trace: attached.append(env.__dict__["step"]))
    assert len({id(each) for each in attached}) == 1
    assert methods(env) == before
    with tracer.attached():
        step = env.__dict__["step"]
        tracer.step()
        assert env.__dict__["step"] is step
    assert methods(env) == before


def _interrupt(count: int) -> Callable[[Any], None]:
    def on_step(trace: Any) -> None:
        if trace.step == count:
            raise KeyboardInterrupt

    return on_step


class Interrupted(gym.Wrapper[Any, Any, Any, Any]):
    """Is interrupted in its third step, and works afterwards."""

    count = 0

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self.count += 1
        if self.count == 3:
            raise KeyboardInterrupt
        return result


def test_nothing_remains_attached_after_an_interrupt() -> None:
    env = Passing(Interrupted(pendulum()))
    before = methods(env)
    tracer: Any = open_stack(env).tracer()
    with pytest.raises(KeyboardInterrupt):
        tracer.run(9)
    assert methods(env) == before
    with pytest.raises(KeyboardInterrupt):
        tracer.run(9, on_step=_interrupt(4))
    assert methods(env) == before
    assert tracer.step().phase == "step"


def test_a_call_after_an_interrupted_one_is_recorded() -> None:
    env = Passing(Interrupted(pendulum()))
    traces: list[StepTrace] = []
    with open_stack(env).attach(traces.append):
        env.reset(seed=0)
        for _ in range(3):
            try:
                env.step(np.zeros(1, np.float32))
            except KeyboardInterrupt:
                continue
        env.step(np.zeros(1, np.float32))
    assert [trace.phase for trace in traces] == ["reset", "step", "step", "step"]
    assert traces[-1].error is None
