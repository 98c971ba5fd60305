"""Values, specs and errors of transforms that rearrange dims."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from tensordict import TensorDict

from tdx import (
    Binary,
    Bounded,
    Compose,
    Composite,
    FlattenObservation,
    GymEnv,
    InitTracker,
    OneHot,
    PermuteTransform,
    SerialEnv,
    SqueezeTransform,
    TransformedEnv,
    UnsqueezeTransform,
    check_env_specs,
)
from tdx.foundation.errors import ArgumentError, SpecError
from tdx.transforms import TimeBehavior, Transform
from tests.transforms.envs import RowsEnv
from tests.transforms.fixed_rollouts import assert_same

LEADING = [(), (5,), (2, 5), (2, 1, 5)]


# Shapes

KEYS: dict[str, Any] = {"in_keys": ["pixels"]}


@pytest.mark.parametrize("leading", LEADING, ids=str)
@pytest.mark.parametrize(
    ("transform", "before", "after"),
    [
        (UnsqueezeTransform(-1, **KEYS), (4, 5), (4, 5, 1)),
        (UnsqueezeTransform(-3, **KEYS), (4, 5), (1, 4, 5)),
        (SqueezeTransform(-2, **KEYS), (4, 1, 5), (4, 5)),
        (SqueezeTransform(-2, **KEYS), (4, 3, 5), (4, 3, 5)),
        (FlattenObservation(-3, -2), (2, 3, 4), (6, 4)),
        (FlattenObservation(-1, -1), (2, 3, 4), (2, 3, 4)),
        (PermuteTransform((-2, -1, -3), **KEYS), (2, 3, 4), (3, 4, 2)),
        (PermuteTransform((-1, -2), **KEYS), (2, 3, 4), (2, 4, 3)),
    ],
    ids=repr,
)
def test_batch_dims_are_kept(
    transform: Transform, before: tuple[int, ...], after: tuple[int, ...], leading: tuple[int, ...]
) -> None:
    values = torch.arange(torch.Size((*leading, *before)).numel()).reshape(*leading, *before)
    data = TensorDict({"pixels": values}, batch_size=leading)
    spec = Composite(pixels=Bounded(0.0, 1.0, shape=values.shape), shape=leading)
    promised = transform.transform_observation_spec(spec)["pixels"]
    result = transform(data)["pixels"]
    assert result.shape == promised.shape == (*leading, *after)
    one = values[(0,) * len(leading)]
    alone = transform(TensorDict(pixels=one))["pixels"]
    assert torch.equal(result[(0,) * len(leading)], alone)


def test_bounds_move_with_their_elements() -> None:
    high = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    spec = Composite(pixels=Bounded(torch.zeros(2, 3), high))
    for transform in (PermuteTransform((-1, -2), **KEYS), FlattenObservation(-2, -1)):
        promised = transform.transform_observation_spec(spec)["pixels"]
        assert isinstance(promised, Bounded)
        assert torch.equal(promised.high, transform(TensorDict(pixels=high))["pixels"])


def test_one_hot_spec_is_kept_if_its_last_dim_is() -> None:
    spec = Composite(pixels=OneHot(3, shape=(3, 3)))
    unsqueezed = UnsqueezeTransform(-3, **KEYS).transform_observation_spec(spec)["pixels"]
    turned = PermuteTransform((-1, -2), **KEYS).transform_observation_spec(spec)["pixels"]
    assert isinstance(unsqueezed, OneHot)
    assert unsqueezed.shape == (1, 3, 3)
    assert isinstance(turned, Binary)
    assert turned.dtype is torch.bool


@pytest.mark.parametrize(
    ("transform", "before", "after"),
    [
        (UnsqueezeTransform(2, **KEYS, allow_positive_dim=True), (2, 4, 5), (2, 4, 1, 5)),
        (SqueezeTransform(1, **KEYS, allow_positive_dim=True), (2, 1, 5), (2, 5)),
        (FlattenObservation(1, 2, allow_positive_dim=True), (2, 3, 4), (2, 12)),
        (FlattenObservation(1, -1, allow_positive_dim=True), (2, 3, 4), (2, 12)),
    ],
    ids=repr,
)
def test_without_an_env_positive_dims_count_from_the_first(
    transform: Transform, before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    data = TensorDict({"pixels": torch.rand(before)}, batch_size=[2])
    assert transform(data)["pixels"].shape == after
    leaf: Any = Bounded(0.0, 1.0, shape=before)
    assert transform.transform_observation_spec(leaf).shape == after


def test_a_positive_dim_does_not_reach_into_the_batch() -> None:
    data = TensorDict({"pixels": torch.rand(2, 3, 4)}, batch_size=[2, 3])
    with pytest.raises(RuntimeError, match="batch dimension mismatch"):
        UnsqueezeTransform(1, **KEYS, allow_positive_dim=True)(data)


def test_positive_dim_runs_step_by_step() -> None:
    there, counted = (
        UnsqueezeTransform(-1, in_keys=["observation"]),
        UnsqueezeTransform(0, in_keys=["observation"], allow_positive_dim=True),
    )
    assert there.time_behavior is TimeBehavior.POINTWISE
    assert counted.time_behavior is TimeBehavior.CONTROL
    env = TransformedEnv(SerialEnv(2, RowsEnv), counted)
    assert env.reset()["observation"].shape == (2, 1, 3)
    # Stored data of that env has a dim of time more.
    stored = RowsEnv((2,)).rollout(4, break_when_any_done=False)
    assert counted(stored)["observation"].shape == (2, 4, 1, 3)
    check_env_specs(env)


@pytest.mark.parametrize(
    ("transform", "outside"),
    [
        (UnsqueezeTransform(-1, in_keys_inv=["action"]), (4, 2, 1)),
        (UnsqueezeTransform(0, in_keys_inv=["action"], allow_positive_dim=True), (4, 1, 2)),
        (
            Compose(
                UnsqueezeTransform(-2, in_keys_inv=["action"]),
                SqueezeTransform(-2, in_keys_inv=["action"]),
            ),
            (4, 2),
        ),
        (
            Compose(
                UnsqueezeTransform(-2, in_keys_inv=["action"]),
                PermuteTransform((-1, -2), in_keys_inv=["action"], out_keys_inv=["turned"]),
            ),
            (4, 2, 1),
        ),
    ],
)
def test_inverse(transform: Transform, outside: tuple[int, ...]) -> None:
    base = RowsEnv((4,))
    env = TransformedEnv(base, transform)
    assert env.action_spec.shape == outside
    step = env.rand_step(env.reset())
    (key,) = env.action_keys
    assert base.given is not None
    assert torch.equal(base.given, step[key].reshape(4, 2))
    check_env_specs(env)


def test_permutation_and_inverse() -> None:
    for dims in [(-1, -3, -2), (-2, -1, -3), (-3, -1, -2), (-3, -2, -1)]:
        transform = PermuteTransform(dims, ["x"], in_keys_inv=["x"])
        data = TensorDict(x=torch.rand(5, 2, 3, 4))
        assert torch.equal(transform.inv(transform(data.clone()))["x"], data["x"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: UnsqueezeTransform(0, **KEYS), "dim must be negative, got 0 .count from the end"),
        (lambda: SqueezeTransform(1, **KEYS), "allow_positive_dim=True"),
        (lambda: UnsqueezeTransform(cast(Any, "a"), **KEYS), "dim must be an integer, got 'a'"),
        (lambda: FlattenObservation(-3, 1), "last_dim must be negative"),
        (lambda: FlattenObservation(-1, -2), "first_dim=-1 comes after last_dim=-2"),
        (
            lambda: PermuteTransform((0, 1), **KEYS),
            "got .0, 1.",
        ),
        (lambda: PermuteTransform((-1, -1), **KEYS), "permutation of the numbers"),
        (lambda: PermuteTransform((), **KEYS), "permutation of the numbers"),
    ],
)
def test_invalid_arguments(make: Callable[[], Transform], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (
            UnsqueezeTransform(-5, **KEYS),
            "dim=-5 is out of range for the 3 dims .6, 7, 3.",
        ),
        (SqueezeTransform(-1, in_keys_inv=["action"]), "does not have size 1, so it cannot be"),
        (SqueezeTransform(-4, **KEYS), "dim=-4 is out of range for the 3 dims"),
        (
            FlattenObservation(-4, -1),
            "first_dim=-4 is out of range for the 3 dims .6, 7, 3. after the batch",
        ),
        (FlattenObservation(2, -3, allow_positive_dim=True), "first_dim=2 comes after last_dim=-3"),
        (PermuteTransform((-4, -3, -2, -1), **KEYS), "4 dims cannot be permuted in an entry with"),
        (
            UnsqueezeTransform(-4, in_keys_inv=["action"]),
            "dim=-4 is out of range for the 1 dims",
        ),
    ],
)
def test_batch_dims_are_refused(transform: Transform, message: str) -> None:
    env = TransformedEnv(RowsEnv((1, 4)), Compose(InitTracker(), transform))
    with pytest.raises(ArgumentError, match=message) as caught:
        env.output_spec, env.input_spec  # noqa: B018
    assert caught.value.where.stage == 1


def test_dims_of_stored_steps_are_refused() -> None:
    stored = RowsEnv((4,)).rollout(3, break_when_any_done=False)
    with pytest.raises(ArgumentError, match="first_dim=-4 is out of range for the 3 dims"):
        FlattenObservation(-4, -1)(stored)


def test_a_one_hot_action_keeps_its_last_dim() -> None:
    env = TransformedEnv(GymEnv("CartPole-v1"), UnsqueezeTransform(-1, in_keys_inv=["action"]))
    with pytest.raises(SpecError, match="takes a OneHot, whose last dim must not change"):
        env.input_spec  # noqa: B018


@pytest.mark.parametrize(
    "transform", [UnsqueezeTransform(-1), SqueezeTransform(-1), PermuteTransform((-1, -2))]
)
def test_an_env_needs_keys(transform: Transform) -> None:
    stored = TensorDict(x=torch.rand(5, 2, 3))
    assert_same(transform(stored.clone()), stored)
    env = TransformedEnv(RowsEnv(), transform)
    with pytest.raises(ArgumentError, match="needs in_keys or in_keys_inv"):
        env.output_spec  # noqa: B018
