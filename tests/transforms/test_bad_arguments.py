"""What bad arguments and ill-fitting envs get: one line that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from tensordict import TensorDict

from tdx import (
    ActionScaling,
    Compose,
    GymEnv,
    InitTracker,
    Resize,
    ToTensorImage,
    TransformedEnv,
)
from tdx.errors import ArgumentError, ChainError, KeyNotFoundError, TdxError, UnknownNameError
from tdx.transforms import Transform
from tests.transforms.mocks import RowsEnv


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Resize(0), ArgumentError, "w must be an integer of at least 1, got 0"),
        (lambda: Resize(cast(Any, 2.5)), ArgumentError, "w must be an integer"),
        (lambda: Resize(2, -1), ArgumentError, "h must be an integer"),
        (
            lambda: Resize(2, interpolation=cast(Any, "bilinar")),
            UnknownNameError,
            "did you mean bilinear",
        ),
        (lambda: ToTensorImage(dtype=torch.uint8), ArgumentError, "from_int=False"),
        (lambda: ActionScaling(loc=1.0), ArgumentError, "only one of loc and scale"),
        (lambda: ActionScaling(["a", "b"]), ArgumentError, "one ActionScaling for each"),
        (lambda: ActionScaling([]), ArgumentError, "loc and scale"),
        (lambda: ActionScaling(loc=0.0, scale=0.0), ArgumentError, "must not be zero"),
        (lambda: ActionScaling(loc=0.0, scale=float("inf")), ArgumentError, "must be finite"),
    ],
)
def test_an_argument(make: Callable[[], Any], error: type[TdxError], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("transform", "error", "message"),
    [
        (Resize(4), ArgumentError, "has its channels last .put ToTensorImage.. before it"),
        (Resize(4, in_keys=["observation"]), ArgumentError, "got shape .3,."),
        (Resize(4, in_keys=["pixel"]), KeyNotFoundError, "existing keys: pixels"),
        (ToTensorImage(in_keys=["observation"]), ArgumentError, "got shape .3,."),
        (ActionScaling(["act"]), KeyNotFoundError, "existing keys: action"),
    ],
)
def test_an_env_that_does_not_fit(
    transform: Transform, error: type[TdxError], message: str
) -> None:
    env = TransformedEnv(RowsEnv(), Compose(InitTracker(), transform))
    with pytest.raises(error, match=message) as caught:
        env.output_spec  # noqa: B018
    assert caught.value.where.stage == 1
    assert caught.value.where.transform == type(transform).__name__


def test_an_action_without_a_range() -> None:
    env = TransformedEnv(GymEnv("CartPole-v1"), ActionScaling())
    with pytest.raises(ChainError, match="OneHot without a finite, non-empty range"):
        env.action_spec  # noqa: B018


def test_an_image_without_a_spec() -> None:
    with pytest.raises(ArgumentError, match="channels last"):
        Resize(4)(TensorDict(pixels=torch.zeros(9, 8, 3)))
