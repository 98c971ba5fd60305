"""A transform survives a pipeline file, its state_dict, a copy, pickling and a move."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch

from tdx import TransformedEnv
from tdx.core import TransformedEnv as Engine
from tdx.pipeline import (
    Call,
    Dtype,
    Pipeline,
    StageConfig,
    build_checked_env,
    from_flags,
    read_pipeline,
    to_flags,
    write_pipeline,
)
from tdx.specs import TensorSpec
from tdx.transforms import Transform
from tests.programs import sampled
from tests.transforms.contract.examples import example_of, made, rows_of, skip_if_lasting
from tests.transforms.envs import RowsEnv
from tests.transforms.fixed_rollouts import assert_same, fixed_rollout


def as_value(argument: Any) -> Any:
    """Return a constructor argument as a value of a pipeline."""
    if isinstance(argument, TensorSpec):
        return Call(type(argument).__name__, (), {"shape": tuple(argument.shape)})
    if isinstance(argument, torch.dtype):
        return Dtype(str(argument).removeprefix("torch."))
    if isinstance(argument, dict):
        return {key: as_value(value) for key, value in argument.items()}
    if inspect.isfunction(argument):
        return f"{argument.__module__}:{argument.__name__}"
    if isinstance(argument, (list, tuple)):
        return tuple(as_value(value) for value in argument)
    return argument


def through_the_file(pipeline: Pipeline) -> Pipeline:
    return read_pipeline(write_pipeline(pipeline), "pipeline.yaml")


def through_the_flags(pipeline: Pipeline) -> Pipeline:
    return from_flags(to_flags(pipeline))


@sampled(4)
def test_a_pipeline(name: str) -> None:
    arguments = {key: as_value(value) for key, value in example_of(name).arguments.items()}
    unnamed = arguments.pop("*", ())
    rows = example_of(name).rows
    env_id = f"{rows.__module__}:{rows.__name__}"
    pipeline = Pipeline.of(env_id, StageConfig(name, unnamed, arguments))
    read = through_the_file(pipeline)
    assert read == through_the_flags(pipeline) == pipeline
    env, expected = (
        build_checked_env(read, allow_code=True),
        TransformedEnv(rows_of(name), made(name)),
    )
    assert env.output_spec == expected.output_spec
    assert env.input_spec == expected.input_spec
    assert_same(fixed_rollout(env), fixed_rollout(expected))


@sampled(4)
def test_state_dict(name: str) -> None:
    env = TransformedEnv(rows_of(name, (4,)), made(name))
    fixed_rollout(env)
    state = env.state_dict()
    other = TransformedEnv(rows_of(name, (4,)), made(name))
    other.load_state_dict(state)
    again = other.state_dict()
    assert again.keys() == state.keys()
    assert all(torch.equal(again[key], value) for key, value in state.items())
    assert_same(fixed_rollout(other), fixed_rollout(env))


def clone_of_the_stage(env: Engine) -> Engine:
    transform = env.transform
    assert isinstance(transform, Transform)
    base = env.base_env
    assert isinstance(base, RowsEnv)
    return TransformedEnv(type(base)((4,)), transform.clone())


def copy_of_the_env(env: Engine) -> Engine:
    return deepcopy(env)


def pickled_env(env: Engine) -> Engine:
    unpickled: Engine = pickle.loads(pickle.dumps(env))
    return unpickled


COPIES: list[Callable[[Engine], Engine]] = [clone_of_the_stage, copy_of_the_env, pickled_env]


@sampled(4)
def test_copies_are_independent(name: str) -> None:
    skip_if_lasting(name)
    env = TransformedEnv(rows_of(name, (4,)), made(name))
    expected = fixed_rollout(env)
    copies = [copy(env) for copy in COPIES]
    for copied in copies:
        fixed_rollout(copied, 3)
    assert_same(fixed_rollout(env), expected)
    for copied in copies:
        assert_same(fixed_rollout(copied), expected)


def test_tensors_move_to_a_device(name: str) -> None:
    env = TransformedEnv(rows_of(name, (4,)), made(name))
    fixed_rollout(env, 2)
    transform = env.transform.clone()
    assert transform.to("meta") is transform
    assert {tensor.device.type for tensor in transform.state_dict().values()} <= {"meta"}


@pytest.mark.gpu
def test_around_a_cpu_env_on_an_accelerator(name: str) -> None:
    env = TransformedEnv(rows_of(name, (4,)), made(name), device="cuda")
    rollout = fixed_rollout(env)
    assert {value.device.type for value in rollout.values(True, True)} == {"cuda"}
    expected = fixed_rollout(TransformedEnv(rows_of(name, (4,)), made(name)))
    for key, value in expected.items(True, True):
        torch.testing.assert_close(rollout[key].cpu(), value)
