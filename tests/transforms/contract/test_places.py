"""A transform gives the same results at every place: chain, batch, worker, stored data."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from tensordict import TensorDictBase

from tdx import Compose, ParallelEnv, SerialEnv, TransformedEnv
from tdx.core.envs import EnvBase
from tdx.foundation.errors import TdxError
from tdx.transforms import TimeBehavior, Transform
from tests.programs import exhaustive, sampled
from tests.transforms.contract.examples import (
    example_of,
    made,
    rows_of,
    skip_if_lasting,
    whole_chain,
)
from tests.transforms.envs import RowsEnv
from tests.transforms.fixed_rollouts import assert_same, fixed_rollout


def alone(name: str) -> EnvBase:
    return TransformedEnv(rows_of(name), made(name))


def all_of_them() -> EnvBase:
    return TransformedEnv(RowsEnv(), whole_chain())


def in_nested_compose(transform: Transform, env: EnvBase) -> EnvBase:
    return TransformedEnv(env, Compose(Compose(transform)))


def appended(transform: Transform, env: EnvBase) -> EnvBase:
    return TransformedEnv(env).append_transform(transform)


def around_a_transformed_env(transform: Transform, env: EnvBase) -> EnvBase:
    return TransformedEnv(TransformedEnv(env), transform)


PLACES: list[Callable[[Transform, EnvBase], EnvBase]] = [
    in_nested_compose,
    appended,
    around_a_transformed_env,
]


@sampled(4)
def test_inside_and_outside_a_chain(name: str) -> None:
    expected = TransformedEnv(rows_of(name, (4,)), made(name))
    envs = [place(made(name), rows_of(name, (4,))) for place in PLACES]
    for env in envs:
        assert env.output_spec == expected.output_spec
        assert env.input_spec == expected.input_spec
    # A rollout may change the specs: a mask is a part of them.
    rollout = fixed_rollout(expected)
    for env in envs:
        assert_same(fixed_rollout(env), rollout)


@sampled(4)
def test_inside_and_outside_a_serial_env(name: str) -> None:
    skip_if_lasting(name)
    inside = SerialEnv(2, partial(alone, name))
    outside = TransformedEnv(SerialEnv(2, example_of(name).rows), made(name))
    assert inside.output_spec == outside.output_spec
    assert inside.input_spec == outside.input_spec
    assert_same(fixed_rollout(inside), fixed_rollout(outside))


@pytest.mark.timeout(120)
@exhaustive
def test_inside_a_parallel_env() -> None:
    serial = SerialEnv(2, all_of_them)
    expected = fixed_rollout(serial)
    parallel = ParallelEnv(2, all_of_them)
    try:
        assert parallel.output_spec == serial.output_spec
        assert_same(fixed_rollout(parallel), expected)
    finally:
        parallel.close()


@pytest.mark.timeout(120)
@exhaustive
def test_around_a_parallel_env() -> None:
    chain = whole_chain()
    expected = fixed_rollout(TransformedEnv(SerialEnv(2, RowsEnv), chain.clone()))
    parallel = TransformedEnv(ParallelEnv(2, RowsEnv), chain)
    try:
        assert_same(fixed_rollout(parallel), expected)
    finally:
        parallel.close()


def stored_data(env: EnvBase) -> TensorDictBase:
    """Return a rollout as stored in a buffer, ``[*B, T]``, with rewards at the root too."""
    stored = fixed_rollout(env)
    for key in env.reward_keys:
        stored[key] = stored["next", key].clone()
    return stored


def test_without_an_env(any_name: str) -> None:
    stored = stored_data(rows_of(any_name, (4,)))
    refusal = example_of(any_name).refuses_stored
    if any_name == "ActionScaling":
        refusal = "has no loc and scale yet"
    if refusal is not None:
        with pytest.raises(TdxError, match=refusal):
            made(any_name)(stored)
        return
    result = made(any_name)(stored.clone())
    if any_name == "RandomCropTensorDict":
        pytest.skip("it draws steps at random")
    assert result.batch_size == stored.batch_size
    assert_same(Compose(made(any_name))(stored.clone()), result)


def test_block_of_steps_equals_single_steps(name: str) -> None:
    env = TransformedEnv(rows_of(name, (4,)), made(name))
    transform = env.transform
    if transform.time_behavior is not TimeBehavior.POINTWISE:
        pytest.skip("it depends on time")
    block = stored_data(rows_of(name, (4,)))
    env.output_spec  # noqa: B018
    steps = [transform(step.clone()) for step in block.unbind(1)]
    assert_same(transform(block.clone()), torch.stack(steps, 1))
    for key in transform.out_keys_inv:
        spec = env.full_action_spec.get(key, None)
        block[key] = block["action"] if spec is None else spec.rand((8,)).movedim(0, 1)
    steps = [transform.inv(step) for step in block.unbind(1)]
    assert_same(transform.inv(block), torch.stack(steps, 1))


def test_inverse_undoes_forward(name: str) -> None:
    env = TransformedEnv(rows_of(name, (4,)), made(name))
    transform = env.transform
    keys = transform.in_keys_inv
    if not env.input_spec.keys() or not keys or transform.in_keys != keys:
        pytest.skip("it maps no key both ways")
    block = stored_data(rows_of(name, (4,)))
    there_and_back = transform.inv(transform(block.clone()))
    for key in keys:
        torch.testing.assert_close(there_and_back[key], block[key])
