"""Envs of tdx as pipelines: their stages with the arguments that they were created with."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, cast

import gymnasium
import pytest
import torch
from gymnasium import wrappers
from tensordict import TensorDictBase

import tdx
from tdx.foundation.errors import ArgumentError
from tdx.inspection.stack_import import StackImport, import_stack
from tdx.pipeline import EnvConfig, Pipeline, read_pipeline, to_python, write_pipeline
from tdx.pipeline.arguments import bind_stage
from tdx.pipeline.values import Dtype
from tdx.stacks import open_stack
from tdx.stacks.conversion import Convertible
from tests.artifacts.catalog_examples import _ENVS, CHAINS
from tests.pipeline.test_samples import SAMPLES, sample, sample_file
from tests.programs import exhaustive
from tests.stacks.comparing import proofs, stages
from tests.transforms.envs import RowsEnv

Make = Callable[[], Any]


def converted(make: Make, steps: int = 20) -> StackImport:
    found = import_stack(lambda: open_stack(make()), steps=steps)
    written = read_pipeline(write_pipeline(found.pipeline), "written.yaml")
    assert written.env == found.pipeline.env
    for stage, read in zip(found.pipeline.transforms, written.transforms, strict=True):
        assert not bind_stage(read).errors
        assert (read.name, bind_stage(read).given) == (stage.name, bind_stage(stage).given)
    return found


def run_program(pipeline: Pipeline) -> Any:
    names: dict[str, Any] = {}
    exec(to_python(pipeline), names)
    return names["env"]


def name_programs() -> list[str]:
    """Return the samples whose env is not Python code, which a program may return as it is."""
    pipelines = {path.stem: sample_file(path) for path in SAMPLES}
    return [name for name, pipeline in pipelines.items() if pipeline.env.code is None]


@pytest.mark.parametrize("name", name_programs())
def test_program_of_a_pipeline_becomes_the_same_pipeline(name: str) -> None:
    """A program has no policy, no rollout and no seed, and a ``Timer`` writes times."""
    whole = sample(name)
    timeless = tuple(stage for stage in whole.transforms if stage.name != "Timer")
    timeout = whole.env.worker_timeout if whole.env.batching == "parallel" else None
    pipeline = Pipeline(replace(whole.env, seed=None, worker_timeout=timeout), timeless)
    found = converted(lambda: run_program(pipeline))
    assert found.pipeline.env == pipeline.env
    # A program has the arguments with the types that the transforms declare.
    assert to_python(replace(found.pipeline, env=pipeline.env)) == to_python(pipeline)
    assert found.is_equal, proofs(found)


NO_STEPS = {"ActionMask", "LineariseRewards"}
"""Transforms of the catalog whose example only declares what they read."""


@pytest.mark.parametrize("name", sorted(CHAINS.keys() - NO_STEPS - {"ModuleTransform"}))
def test_stage_of_the_catalog_is_equal(name: str) -> None:
    env = _ENVS.get(name, RowsEnv)
    found = converted(lambda: tdx.TransformedEnv(env(), tdx.Compose(*CHAINS[name]())), 5)
    assert not any(stage.missing for stage in found.stages)
    assert not found.has_difference, proofs(found)


class Scale(tdx.Transform):
    """Multiplies rewards by a number, or maps them by a function."""

    def __init__(self, factor: float, function: Callable[[Any], Any] | None = None) -> None:
        super().__init__(in_keys=["reward"])
        self.factor, self.function = factor, function

    def _apply_transform(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor * self.factor


def double(tensordict: TensorDictBase) -> TensorDictBase:
    return tensordict.set("double", tensordict["observation"] * 2)


class Heavy(tdx.PendulumEnv):
    """A pendulum with another gravity."""

    def __init__(self, g: float = 20.0) -> None:
        super().__init__(g=g)


def pendulum(*stages: Any) -> Any:
    return tdx.TransformedEnv(tdx.PendulumEnv(), tdx.Compose(*stages))


def test_code_is_named_by_its_module() -> None:
    found = converted(lambda: tdx.TransformedEnv(Heavy(15.0), tdx.Compose(Scale(2.0), double)))
    module = "tests.stacks.test_native_import"
    assert stages(found) == [f"{module}:Scale(2.0)", f"{module}:double"]
    assert (found.pipeline.env.id, found.pipeline.env.kwargs) == (f"{module}:Heavy", {"g": 15.0})
    assert found.is_equal, proofs(found)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            lambda: tdx.SerialEnv(2, partial(tdx.PendulumEnv, g=8.0)),
            EnvConfig("tdx/Pendulum", {"g": 8.0}, num_envs=2, batching="serial"),
        ),
        (
            lambda: tdx.CartPoleEnv(
                batch_size=[3], max_episode_steps=20, state_dtype=torch.float32
            ),
            EnvConfig(
                "tdx/CartPole",
                {"max_episode_steps": 20, "state_dtype": Dtype("float32")},
                num_envs=3,
            ),
        ),
        (
            lambda: tdx.GymEnv("CartPole-v1", True, num_envs=2),
            EnvConfig("CartPole-v1", {"categorical_action_encoding": True}, num_envs=2),
        ),
        pytest.param(
            lambda: tdx.ParallelEnv(2, tdx.PendulumEnv, worker_timeout=50.0),
            EnvConfig("tdx/Pendulum", num_envs=2, batching="parallel", worker_timeout=50.0),
            marks=exhaustive,
        ),
    ],
)
def test_batches_and_arguments_of_envs_are_settings(make: Make, expected: EnvConfig) -> None:
    found = converted(make)
    assert found.pipeline == Pipeline(expected)
    assert found.is_equal, proofs(found)


def test_nested_chains_stay_nested() -> None:
    def make() -> Any:
        inner = pendulum(tdx.StepCounter(5), tdx.Compose(tdx.InitTracker(), tdx.RewardSum()))
        return tdx.TransformedEnv(inner, tdx.TensorDictPrimer(hidden=tdx.Unbounded(2)))

    found = converted(make)
    assert stages(found) == [
        "StepCounter(5)",
        "Compose(InitTracker(), RewardSum())",
        "TensorDictPrimer(hidden=Unbounded(shape=(2,)))",
    ]
    assert found.is_equal, proofs(found)


def test_nested_chain_with_code_is_written_as_its_stages() -> None:
    found = converted(lambda: pendulum(tdx.RewardSum(), tdx.Compose(Scale(2.0), tdx.StepCounter())))
    scale = "tests.stacks.test_native_import:Scale(2.0)"
    assert stages(found) == ["RewardSum", scale, "StepCounter"]
    assert found.is_equal, proofs(found)


def test_learned_statistics_are_written_as_arguments() -> None:
    def make() -> Any:
        torch.manual_seed(0)
        env = pendulum(tdx.ObservationNorm(in_keys=["observation"]))
        env.set_seed(0)
        env.transform[0].init_stats(20)
        return env

    found = converted(make)
    (stage,) = found.pipeline.transforms
    loc = make().transform[0].loc
    assert torch.tensor(stage.kwargs["loc"]).equal(loc)
    assert found.is_equal, proofs(found)


def trained() -> Any:
    env = pendulum(tdx.StepCounter(), tdx.VecNorm(in_keys=["observation"]))
    env.rollout(5)
    return env


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: pendulum(tdx.StepCounter(), lambda data: data), "cannot be imported by name"),
        (lambda: pendulum(tdx.StepCounter(), Scale(1.0, abs)), "its argument function is Python"),
        (lambda: copy.deepcopy(pendulum(double, tdx.StepCounter(5))), "its arguments are unknown"),
        (trained, "a file cannot contain its running statistics"),
    ],
)
def test_stage_that_a_file_cannot_contain_has_a_reason(make: Make, reason: str) -> None:
    found = converted(make)
    assert [stage.missing is None for stage in found.stages] == [True, False]
    missing = found.stages[1].missing
    assert missing is not None
    assert reason in missing.reason
    assert not found.is_equal
    assert not found.has_difference


def with_infos() -> Any:
    env = tdx.GymEnv("CartPole-v1")
    env.set_info_dict_reader(
        tdx.default_info_dict_reader(["lives"], tdx.Composite(lives=tdx.Unbounded(())))
    )
    return tdx.TransformedEnv(env, tdx.StepCounter(5))


def test_env_with_an_info_reader_is_only_a_proposal() -> None:
    with closing(open_stack(with_infos())) as stack:
        missing = cast(Convertible, stack).convert().missing_env
    assert missing is not None
    assert missing.reason.startswith("it reads entries of the infos")


def test_module_is_not_converted() -> None:
    with pytest.raises(ArgumentError, match="cannot contain a TensorDictModule"):
        converted(lambda: pendulum(*CHAINS["ModuleTransform"]()))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tdx.GymEnv("CartPole-v1", frame_skip=2), "the env repeats each action 2 times"),
        (lambda: tdx.PendulumEnv(batch_size=[2, 3]), "a file cannot contain the batch size"),
        (
            lambda: tdx.SerialEnv(2, lambda: pendulum(tdx.StepCounter())),
            "the envs of the SerialEnv have transforms of their own",
        ),
        (
            lambda: tdx.SerialEnv(2, [tdx.PendulumEnv, Heavy]),
            "the envs of the SerialEnv have functions of their own",
        ),
        (
            lambda: tdx.GymWrapper(wrappers.ClipReward(gymnasium.make("Pendulum-v1"), -1.0, 1.0)),
            "the env inside has the Gymnasium wrapper ClipReward",
        ),
    ],
)
def test_envs_that_cannot_be_converted(make: Make, message: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        converted(make)
    assert raised.value.message.startswith(message)
    assert raised.value.hint


def test_chain_does_not_keep_a_stage_that_was_removed() -> None:
    chain = tdx.Compose(tdx.StepCounter(), tdx.RewardSum())
    removed = weakref.ref(chain.pop())
    gc.collect()
    assert removed() is None
