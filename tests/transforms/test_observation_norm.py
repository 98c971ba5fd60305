"""``ObservationNorm.init_stats``: measured dims, and refused measurements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tdx import (
    ArgumentError,
    CatFrames,
    ChainError,
    Compose,
    GymEnv,
    KeyNotFoundError,
    ObservationNorm,
    PendulumEnv,
    RenameTransform,
    SerialEnv,
    StepCounter,
    TransformedEnv,
)

BOTH: dict[str, Any] = {"reduce_dim": (0, 1), "cat_dim": 1}


@pytest.mark.parametrize("standard_normal", [True, False])
def test_the_result_is_standard_normal(standard_normal: bool) -> None:
    norm = ObservationNorm(standard_normal=standard_normal)
    env = TransformedEnv(PendulumEnv(batch_size=[64]), norm)
    env.set_seed(0)
    norm.init_stats(40, **BOTH)
    env.set_seed(0)
    torch.manual_seed(0)
    observed = env.rollout(40)["observation"].flatten(0, 1)
    torch.testing.assert_close(observed.mean(0), torch.zeros(3), atol=0.3, rtol=0)
    torch.testing.assert_close(observed.std(0), torch.ones(3), atol=0.3, rtol=0)
    assert env.observation_spec["observation"].is_in(env.reset()["observation"])


@pytest.mark.parametrize(
    ("batch", "arguments", "shape"),
    [
        ((), {}, (3,)),
        ((4,), BOTH, (3,)),
        ((4,), {"reduce_dim": 1}, (4, 3)),
        ((4,), {"reduce_dim": (-2, -3), "cat_dim": -2}, (3,)),
        ((4,), {**BOTH, "keep_dims": [1]}, (1, 3)),
        ((2, 3), {"reduce_dim": (0, 1, 2), "cat_dim": 2}, (3,)),
        ((2, 3), {"reduce_dim": (0, 2), "cat_dim": 2, "keep_dims": (0,)}, (1, 3, 3)),
    ],
)
def test_dims(batch: tuple[int, ...], arguments: dict[str, Any], shape: tuple[int, ...]) -> None:
    norm = ObservationNorm()
    env = TransformedEnv(PendulumEnv(batch_size=batch), norm)
    norm.init_stats(10, **arguments)
    assert norm.loc is not None
    assert norm.loc.shape == shape
    assert env.rollout(2)["observation"].shape == (*batch, 2, 3)


@pytest.mark.parametrize(
    ("before", "keys", "arguments"),
    [
        (CatFrames(3, -1, in_keys=["observation"]), ["observation"], {}),
        (RenameTransform(["observation"], [("a", "seen")]), [("a", "seen")], {}),
        (
            RenameTransform(["observation"], ["seen"], create_copy=True),
            ["observation", "seen"],
            {"key": "seen"},
        ),
    ],
)
def test_statistics_are_of_the_input_of_the_stage(
    before: Any, keys: list[Any], arguments: dict[str, Any]
) -> None:
    norm = ObservationNorm(in_keys=keys)
    env = TransformedEnv(GymEnv("Pendulum-v1"), Compose(before.clone(), norm))
    norm.init_stats(30, **arguments)
    for key in keys:
        assert env.observation_spec[key].is_in(env.reset()[key])


def test_episodes_can_end_during_the_measurement() -> None:
    norm = ObservationNorm()
    inner = SerialEnv(2, lambda: TransformedEnv(GymEnv("Pendulum-v1"), StepCounter(5)))
    env = TransformedEnv(inner, norm)
    norm.init_stats(20, **BOTH)
    assert norm.loc is not None
    assert norm.loc.shape == (3,)
    env.close()


@pytest.mark.parametrize(
    ("make", "arguments", "error", "message"),
    [
        (ObservationNorm, {"reduce_dim": (0, 1)}, ArgumentError, "cat_dim is required"),
        (ObservationNorm, {}, ArgumentError, r"\[0\] of the data \(4, 10, 3\).*fit an observation"),
        (ObservationNorm, {**BOTH, "keep_dims": [0, 1]}, ArgumentError, "fit an observation"),
        (ObservationNorm, {"reduce_dim": 5}, ArgumentError, "dim 5 is out of range"),
        (ObservationNorm, {"reduce_dim": 1, "cat_dim": 0}, ArgumentError, "one of the reduced"),
        (
            ObservationNorm,
            {"num_iter": 1},
            ArgumentError,
            "num_iter must be an integer of at least 2",
        ),
        (ObservationNorm, {"key": "seen"}, KeyNotFoundError, "no key 'seen'"),
        (lambda: ObservationNorm(0.0, 1.0), BOTH, ChainError, "are set already"),
        (
            lambda: ObservationNorm(in_keys=["observation", "other"]),
            BOTH,
            ArgumentError,
            r"several in-keys to measure: observation, other",
        ),
    ],
)
def test_invalid_measurements(
    make: Callable[[], ObservationNorm],
    arguments: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    norm = make()
    TransformedEnv(PendulumEnv(batch_size=[4]), norm)
    with pytest.raises(ChainError, match="needs an env"):
        ObservationNorm().init_stats(10)
    env = TransformedEnv(PendulumEnv(batch_size=[4]), norm.clone())
    stage = env.transform
    assert isinstance(stage, ObservationNorm)
    with pytest.raises(error, match=message):
        stage.init_stats(**{"num_iter": 10, **arguments})


def test_an_unmeasured_stage_before_it_is_named() -> None:
    norm = ObservationNorm()
    env = TransformedEnv(PendulumEnv(), Compose(ObservationNorm(), StepCounter(), norm))
    with pytest.raises(ChainError, match=r"stage 0 \(ObservationNorm\).*no loc and scale yet"):
        norm.init_stats(10)
    assert not norm.initialized
    assert env.stages[2] is norm


def test_keys_other_than_the_measured_one_are_checked_in_a_step() -> None:
    env = TransformedEnv(PendulumEnv(), ObservationNorm(in_keys=["observation", "later"]))
    norm = env.transform
    assert isinstance(norm, ObservationNorm)
    norm.init_stats(11, key="observation")
    assert norm.loc is not None
    assert norm.loc.shape == env.observation_spec["observation"].shape
    with pytest.raises(KeyNotFoundError, match="later"):
        env.rollout(2)
