"""Stages of one class are paired by what they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import pytest
import torch
from gymnasium.wrappers import NormalizeObservation, TransformObservation
from tensordict import TensorDictBase

import tdx
from tests.programs import exhaustive

Array = npt.NDArray[np.float32]
Function = Callable[[Array], Array]


class Apply(tdx.Transform):
    """A transform of a user: its class does not say what it does.

    Args:
        function: Function of an observation and of the one before.
    """

    time_behavior = tdx.TimeBehavior.CONTROL

    def __init__(self, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__(["observation"], ["observation"])
        self.function = function
        self.before = torch.zeros(3)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        value = next_tensordict["observation"]
        next_tensordict["observation"] = self.function(value, self.before)
        self.before = value
        return next_tensordict

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        self.before = tensordict_reset["observation"]
        return self._call(tensordict_reset)


def _scale(value: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return value * torch.tensor([2.0, 3.0, 0.5]) + 1


def _reverse(value: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return value.flip(-1)


def _change(value: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    return value - before


def _tdx_env(*transforms: tdx.Transform) -> tdx.TransformedEnv:
    return tdx.TransformedEnv(tdx.GymEnv("Pendulum-v1"), tdx.Compose(*transforms))


@pytest.mark.parametrize(("added", "kind"), [(_reverse, "permutation"), (_change, "delta")])
@exhaustive
def test_added_stage_is_told_from_the_one_that_follows(
    added: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], kind: str
) -> None:
    report = tdx.diff_stacks(_tdx_env(Apply(_scale)), _tdx_env(Apply(added), Apply(_scale)))
    (cause,) = report.causes
    assert (cause.kind, cause.stage, cause.reference_stage) == ("missing stage", 0, None)
    assert cause.explanation is not None
    assert cause.explanation.kind == kind


@pytest.mark.parametrize(
    ("loc", "scale"),
    [
        (torch.tensor([0.1, 0.2, 0.3]), torch.tensor([2.0, 3.0, 4.0])),
        (torch.tensor([0.1]), torch.tensor([2.0])),
    ],
    ids=["features", "one number"],
)
@exhaustive
def test_normalizer_without_numbers_is_named_beside_another_difference(
    loc: torch.Tensor, scale: torch.Tensor
) -> None:
    normalizer, inactive = (
        tdx.ObservationNorm(mean, width, in_keys=["observation"], standard_normal=True)
        for mean, width in ((loc, scale), (0.0, 1.0))
    )
    clip = tdx.ClipTransform(in_keys=["observation"], low=-0.5, high=0.5)
    other = tdx.ClipTransform(in_keys=["observation"], low=-100, high=100)
    report = tdx.diff_stacks(_tdx_env(clip, normalizer), _tdx_env(other, inactive))
    named = {cause.stage: cause for cause in report.causes}
    assert set(named) == {0, 1}
    assert named[1].hint == "give ObservationNorm the loc of the reference, or load its state"


def _wrapped(env: gymnasium.Env[Array, Array], function: Function) -> gymnasium.Env[Array, Array]:
    size = function(np.zeros(env.observation_space.shape or (), np.float32)).shape
    space = gymnasium.spaces.Box(-np.inf, np.inf, size, np.float32)
    return TransformObservation(env, function, space)


def _gymnasium_env(*functions: Function | None) -> gymnasium.Env[Array, Array]:
    """Return an env in wrappers of functions; ``None`` stands for a normalizer."""
    env: gymnasium.Env[Array, Array] = gymnasium.make("Pendulum-v1")
    for function in functions:
        if function is None:
            env = NormalizeObservation(env)
            env.update_running_mean = False
            env.obs_rms.mean, env.obs_rms.var = np.full(3, 0.5), np.full(3, 4.0)
        else:
            env = _wrapped(env, function)
    return env


def _double(value: Array) -> Array:
    return value * 2 + 1


def _swap(value: Array) -> Array:
    return value[::-1].copy()


@exhaustive
def test_another_function_is_no_moved_stage() -> None:
    one, other = _gymnasium_env(_double, None), _gymnasium_env(None, _swap)
    # The wrapper is the same class, and has another place.
    report = tdx.diff_stacks(one, other)
    assert "order" not in [cause.kind for cause in report.causes]
    places = {(cause.stage is None, cause.reference_stage is None) for cause in report.causes}
    assert {(True, False), (False, True)} <= places


@exhaustive
def test_function_that_moved_past_a_normalizer_is_found() -> None:
    one, other = _gymnasium_env(None, _double), _gymnasium_env(_double, None, _swap)
    report = tdx.diff_stacks(one, other)
    kinds = {
        cause.kind if cause.explanation is None else cause.explanation.kind
        for cause in report.causes
    }
    assert kinds == {"order", "permutation"}


Named = dict[str, Any]


class TwoKeys(gymnasium.ObservationWrapper[Named, Array, Array]):
    """The observation of an env under two keys."""

    def __init__(self, env: gymnasium.Env[Array, Array]) -> None:
        super().__init__(env)
        self.observation_space = _named_space(a=3, b=3)

    def observation(self, observation: Array) -> Named:
        return {"a": observation, "b": observation[::-1].copy()}


def _named_space(**sizes: int) -> gymnasium.spaces.Dict:
    boxes: dict[str, gymnasium.Space[Any]] = {
        key: gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        for key, size in sizes.items()
    }
    return gymnasium.spaces.Dict(boxes)


class FirstTwo(gymnasium.ObservationWrapper[Named, Array, Named]):
    """A wrapper of a user that passes on two features of a key."""

    def __init__(self, env: gymnasium.Env[Named, Array]) -> None:
        super().__init__(env)
        self.observation_space = _named_space(a=2, b=3)

    def observation(self, observation: Named) -> Named:
        return {"a": observation["a"][:2], "b": observation["b"]}


class Scaled(gymnasium.ObservationWrapper[Named, Array, Named]):
    """A wrapper of a user with a factor for each key."""

    def __init__(self, env: gymnasium.Env[Named, Array], **factors: float) -> None:
        super().__init__(env)
        self.factors = factors

    def observation(self, observation: Named) -> Named:
        return {
            key: (value * self.factors[key]).astype(np.float32)
            for key, value in observation.items()
        }


@exhaustive
def test_missing_stage_is_not_one_that_another_class_replaces() -> None:
    def env() -> gymnasium.Env[Named, Array]:
        return TwoKeys(gymnasium.make("Pendulum-v1"))

    report = tdx.diff_stacks(Scaled(FirstTwo(env()), a=2, b=3), Scaled(env(), a=3, b=2))
    lacking = [cause.name for cause in report.causes if cause.stage is None]
    assert lacking == ["FirstTwo"]
    assert "Scaled" in [cause.name for cause in report.causes if cause.stage is not None]


class LastFrames:
    """An object of a user that is called, and keeps what it has received."""

    def __init__(self) -> None:
        self.frames: list[Array] = []

    def __call__(self, value: Array) -> Array:
        self.frames = [*self.frames, value][-2:]
        return np.concatenate([self.frames[0], value])


@exhaustive
def test_objects_that_are_called_keep_what_they_had() -> None:
    class Stacked(gymnasium.ObservationWrapper[Array, Array, Array]):
        def __init__(self, env: gymnasium.Env[Array, Array]) -> None:
            super().__init__(env)
            self.frames = LastFrames()
            self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (6,), np.float32)

        def observation(self, observation: Array) -> Array:
            return self.frames(observation)

    env = Stacked(gymnasium.make("Pendulum-v1"))
    tdx.freeze(env)
    assert env.frames.frames == []
