"""Steps of a VecEnv are the same while they are recorded, and nothing remains attached."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecCheckNan,
    VecEnvWrapper,
    VecExtractDictObs,
    VecMonitor,
    VecNormalize,
)

import tdx
from tdx.core import StepTrace
from tdx.foundation.errors import ArgumentError, TdxError
from tdx.stacks import open_stack
from tests.stacks.sb3.envs import (
    Images,
    assert_equal,
    make_classic,
    make_images,
    replaced_methods,
    run,
)


class Doubled(VecEnvWrapper):
    """Has a ``step`` of its own, which does not call ``step_async``."""

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        raise NotImplementedError

    def step(self, actions: Any) -> Any:
        observation, reward, done, infos = self.venv.step(actions / 2)
        return observation, reward * 2, done, infos


def make_doubled() -> Any:
    return Doubled(VecCheckNan(make_vec_env("Pendulum-v1", n_envs=2)))


def make_speeds() -> Any:
    return VecMonitor(VecExtractDictObs(DummyVecEnv([Images, Images]), "speed"))


@pytest.mark.parametrize("make", [make_classic, make_images, make_doubled, make_speeds])
def test_attached_run_equals_the_bare_run(make: Callable[[], Any]) -> None:
    expected = run(make(), 50)
    env = make()
    traces: list[StepTrace] = []
    stack: Any = open_stack(env)
    with stack.attach(traces.append):
        found = run(env, 50)
    assert_equal(found, expected)
    assert [trace.phase for trace in traces] == ["reset", *["step"] * 50]
    assert replaced_methods(stack) == []


def test_a_step_has_one_trace() -> None:
    env = make_doubled()
    traces: list[StepTrace] = []
    with open_stack(env).attach(traces.append):
        env.reset()
        env.step(np.ones((2, 1), np.float32))
    changed = {
        stage.place: (stage.direction, tuple(stage.written))
        for stage in traces[1].stages
        if stage.written and stage.kind == "stage" and stage.index > 3
    }
    inverse = [stage for stage in traces[1].stages if stage.direction == "inverse"]
    assert [stage.place for stage in inverse if stage.written] == ["given", "6 Doubled"]
    assert inverse[1].written["action"].value.tolist() == [[0.5], [0.5]]
    assert changed["6 Doubled"] == ("forward", ("reward",))


def test_halves_of_a_step_that_are_called_alone() -> None:
    env = make_classic()
    traces: list[StepTrace] = []
    with open_stack(env).attach(traces.append):
        env.reset()
        env.step_async(np.array([0, 1]))
        env.step_wait()
    assert traces[1].stages[0].written["action"].value.tolist() == [0, 1]


def test_learning_is_the_same_while_it_is_recorded() -> None:
    def learn(attach: bool) -> Any:
        env = make_classic()
        model = PPO("MlpPolicy", env, n_steps=16, batch_size=16, n_epochs=1, seed=0)
        traces: list[StepTrace] = []
        if attach:
            with open_stack(model).attach(traces.append):
                model.learn(32)
            assert len(traces) == 17
        else:
            model.learn(32)
        return [each.detach().numpy() for each in model.policy.parameters()]

    assert_equal(learn(True), learn(False))


def test_copies_and_pickles_of_an_attached_env_are_not_attached() -> None:
    env = make_classic()
    traces: list[StepTrace] = []
    normalize = env.venv
    assert isinstance(normalize, VecNormalize)
    with open_stack(env).attach(traces.append):
        other = copy.deepcopy(normalize.venv)
        loaded = pickle.loads(pickle.dumps(normalize))
        loaded.set_venv(make_vec_env("CartPole-v1", n_envs=2))
        run(other, 3)
        run(loaded, 3)
    assert traces == []


def test_errors_name_the_stage() -> None:
    class Failing(VecEnvWrapper):
        def reset(self) -> Any:
            return self.venv.reset()

        def step_wait(self) -> Any:
            self.venv.step_wait()
            raise ValueError("no reward")

    stack: Any = open_stack(VecNormalize(Failing(make_vec_env("CartPole-v1", n_envs=2))))
    with pytest.raises(TdxError, match="raised ValueError in a step: no reward") as caught:
        stack.tracer().run(3)
    assert (caught.value.where.stage, caught.value.where.transform) == (5, "Failing")
    assert replaced_methods(stack) == []


def test_an_error_in_step_async_names_the_stage() -> None:
    env = VecCheckNan(make_vec_env("Pendulum-v1", n_envs=2), raise_exception=True)
    tracer = tdx.trace(env)
    with pytest.raises(TdxError, match="found nan in actions") as caught:
        tracer.step(np.full((2, 1), np.nan, np.float32))  # type: ignore[attr-defined]
    assert caught.value.where.transform == "VecCheckNan"


def test_an_algorithm_without_env_is_refused() -> None:
    model = PPO("MlpPolicy", make_classic())
    model.env = None
    with pytest.raises(ArgumentError, match="the PPO has no env") as caught:
        open_stack(model)
    assert "set_env" in str(caught.value.hint)
