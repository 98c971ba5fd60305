"""Attaching to unusual wrappers, and detaching without a trace."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tdx.core import StepTrace
from tdx.foundation.errors import ArgumentError, ChainError, EnvError
from tdx.stacks import open_stack
from tests.stacks.bad_envs import Failing, Forwarding, Guarded, Slotted, SoftReset, pendulum
from tests.stacks.comparing import owners_of


class Repeated(gym.Wrapper):
    """Steps three times."""

    def step(self, action: Any) -> Any:
        total = 0.0
        for _ in range(3):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
        return observation, total, terminated, truncated, info


class InPlace(gym.ObservationWrapper):
    """Writes into the array that it gets."""

    def observation(self, observation: Any) -> Any:
        observation /= 2
        return observation


def traces_of(env: Any, steps: int = 2) -> list[StepTrace]:
    traces: list[StepTrace] = []
    with open_stack(env).attach(traces.append):
        env.reset(seed=0)
        for _ in range(steps):
            env.step(np.zeros(1, np.float32))
    return traces


def written(trace: StepTrace, name: str) -> set[Any]:
    return {
        key
        for stage in trace.stages
        if stage.name == name and stage.direction == "forward"
        for key in stage.written
    }


@pytest.mark.parametrize("kind", [Slotted, Forwarding, Guarded, SoftReset, Repeated, InPlace])
def test_unusual_wrappers_are_observed_and_released(kind: Any) -> None:
    env = kind(pendulum())
    before = [(owner.step.__func__, owner.reset.__func__) for owner in owners_of(env)]
    traces = traces_of(env)
    assert [trace.phase for trace in traces] == ["reset", "step", "step"]
    assert all(not {"step", "reset"} & owner.__dict__.keys() for owner in owners_of(env))
    assert [(owner.step.__func__, owner.reset.__func__) for owner in owners_of(env)] == before


def test_repeated_steps_count_as_one() -> None:
    trace = traces_of(Repeated(pendulum()))[1]
    assert written(trace, "Repeated") == {"reward"}
    calls = [stage for stage in trace.stages if stage.name == "Pendulum-v1"]
    assert len(calls) == 1


def test_value_written_in_place_is_attributed_to_the_wrapper() -> None:
    trace = traces_of(InPlace(pendulum()))[1]
    assert written(trace, "InPlace") == {"observation"}
    (env,) = [stage for stage in trace.stages if stage.kind == "env"]
    halved = trace.after(2)["observation"].value
    assert halved.tolist() == (env.written["observation"].value / 2).tolist()


def test_swallowed_reset_writes_everything() -> None:
    env = SoftReset(pendulum())
    traces: list[StepTrace] = []
    with open_stack(env).attach(traces.append):
        env.reset(seed=0)
        env.reset()
    assert written(traces[0], "SoftReset") == set()
    assert "observation" in written(traces[1], "SoftReset")
    assert [stage.name for stage in traces[1].stages] == ["SoftReset"]


def test_copies_of_an_attached_env_step_themselves() -> None:
    env = pendulum()
    traces: list[StepTrace] = []
    with open_stack(env).attach(traces.append):
        env.reset(seed=0)
        twins = [copy.deepcopy(env), pickle.loads(pickle.dumps(env))]
        count = len(traces)
        for twin in twins:
            twin.step(np.ones(1, np.float32))
        assert len(traces) == count
        assert all(twin._elapsed_steps == 1 for twin in twins)
        assert env._elapsed_steps == 0
    for twin in twins:
        twin.step(np.ones(1, np.float32))
        assert twin._elapsed_steps == 2


def test_two_threads() -> None:
    env, other = pendulum(), pendulum()
    traces: list[StepTrace] = []

    def loop() -> None:
        for _ in range(50):
            env.step(np.zeros(1, np.float32))

    env.reset(seed=0)
    with open_stack(env).attach(traces.append):
        threads = [threading.Thread(target=loop) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    other.close()
    assert len(traces) == 100
    expected = [stage.place for stage in traces[0].stages if stage.direction == "forward"]
    for trace in traces:
        found = [stage.place for stage in trace.stages if stage.direction == "forward"]
        assert found == expected
    assert not {"step", "reset"} & env.__dict__.keys()


def test_two_observers_are_refused_and_the_first_continues() -> None:
    env = pendulum()
    traces: list[StepTrace] = []
    with open_stack(env).attach(traces.append):
        with (
            pytest.raises(ArgumentError, match="traced or profiled already"),
            open_stack(env).attach(traces.append),
        ):
            pass
        env.reset()
    assert len(traces) == 1


def test_own_replacement_of_a_method_is_restored() -> None:
    env = pendulum()
    own = env.unwrapped.step
    env.unwrapped.__dict__["step"] = own
    traces_of(env)
    assert env.unwrapped.__dict__["step"] is own


def test_replacement_that_others_wrapped_passes_through() -> None:
    env = pendulum()
    traces: list[StepTrace] = []
    with open_stack(env).attach(traces.append):
        env.reset(seed=0)
        ours = env.step
        env.step = lambda action: ours(action)
    env.step(np.zeros(1, np.float32))
    assert len(traces) == 1


def test_error_names_the_wrapper_and_nothing_remains() -> None:
    env = Failing(pendulum())
    tracer = open_stack(env).tracer()
    with pytest.raises(ChainError, match="raised ValueError in a step: out of fuel") as caught:
        tracer.run(3)
    assert (caught.value.where.stage, caught.value.where.transform) == (2, "Failing")
    assert tracer.last is not None
    assert tracer.last.error is caught.value
    assert all("step" not in owner.__dict__ for owner in owners_of(env))
    with (
        pytest.raises(ValueError, match="out of fuel"),
        open_stack(env).attach(lambda trace: None),
    ):
        env.step(np.zeros(1, np.float32))


def test_error_of_the_env_is_an_env_error() -> None:
    class Broken(gym.Env):
        observation_space = action_space = gym.spaces.Discrete(2)

        def reset(self, **kwargs: Any) -> Any:
            raise RuntimeError("no motor")

    with pytest.raises(EnvError, match="no motor"):
        open_stack(Broken()).tracer().run(1)


def test_result_of_another_form_is_refused() -> None:
    class Old(gym.Env):
        observation_space = action_space = gym.spaces.Discrete(2)

        def reset(self, **kwargs: Any) -> Any:
            return 0, {}

        def step(self, action: Any) -> Any:
            return 0, 0.0, False, {}

    with pytest.raises(EnvError, match="step returned 4 values instead of 5"):
        open_stack(Old()).tracer().run(1)


def test_error_of_the_observer_is_raised_after_the_block() -> None:
    def fail(trace: StepTrace) -> None:
        raise KeyError("observer")

    env = pendulum()
    results: list[Any] = []

    def loop() -> None:
        with open_stack(env).attach(fail):
            env.reset(seed=0)
            results.extend(env.step(np.zeros(1, np.float32)) for _ in range(3))

    with pytest.raises(KeyError, match="observer"):
        loop()
    assert len(results) == 3
    assert not {"step", "reset"} & env.__dict__.keys()
