"""Faults in stacks of Gymnasium's wrappers and of functions of users."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cv2
import gymnasium as gym
import numpy as np
from gymnasium import spaces, wrappers

from tests.contracts.envs import Arm, gym_normalized, pendulum
from tests.explanations.held_out.model import Case, Fault, fault, sequence
from tests.explanations.mutations.envs import PictureEnv

Function = Callable[[Any], Any]
EXTRA = "missing stage"
DEGREES = 180 / np.pi


def observe(env: Any, function: Function) -> Any:
    """Return an env whose observations a function of a user maps."""
    sample = function(np.zeros_like(env.observation_space.sample()))
    low, high = (0, 255) if sample.dtype == np.uint8 else (-np.inf, np.inf)
    box = spaces.Box(low, high, sample.shape, sample.dtype.type)
    return wrappers.TransformObservation(env, function, box)


def cartpole() -> Any:
    return gym.make("CartPole-v1", disable_env_checker=True)


def car() -> Any:
    return gym.make("MountainCarContinuous-v0", disable_env_checker=True)


def cheetah() -> Any:
    return gym.make("HalfCheetah-v5", disable_env_checker=True)


def act(env: Any, function: Function) -> Any:
    """Return an env whose actions a function of a user maps."""
    return wrappers.TransformAction(env, function, env.action_space)


def reward(env: Any, function: Function) -> Any:
    return wrappers.TransformReward(env, function)


def stacked(env: Any, size: int = 3, **kwargs: Any) -> Any:
    return wrappers.FrameStackObservation(env, size, **kwargs)


class OnlyOn(gym.Wrapper[Any, Any, Any, Any]):
    """Maps the observations of resets, of steps, or of both.

    Args:
        env: The env.
        function: Maps an observation.
        resets: Whether those of resets are mapped.
        steps: Whether those of steps are mapped.
    """

    def __init__(self, env: Any, function: Function, resets: bool = True, steps: bool = True):
        super().__init__(env)
        self.hidden: list[Any] = [function, resets, steps]

    def reset(self, **kwargs: Any) -> Any:
        value, info = self.env.reset(**kwargs)
        function, resets, _ = self.hidden
        return (function(value) if resets else value), info

    def step(self, action: Any) -> Any:
        value, *rest = self.env.step(action)
        function, _, steps = self.hidden
        return (function(value) if steps else value, *rest)


def scale(*factors: float) -> Function:
    row = np.asarray(factors, np.float32)
    return lambda value: (value * row).astype(np.float32)


def to_float(value: Any) -> Any:
    return value.astype(np.float32) / np.float32(255)


def channels_first(value: Any) -> Any:
    return np.ascontiguousarray(np.moveaxis(value, -1, 0))


def resize(kernel: int, size: tuple[int, int] = (24, 21)) -> Function:
    return lambda value: cv2.resize(value, size, interpolation=kernel)


def standardize(mean: float, std: float) -> Function:
    return lambda value: ((value - np.float32(mean)) / np.float32(std)).astype(np.float32)


def observations(base: Callable[[], Any], one: Function, other: Function, *faults: Fault) -> Case:
    """Return a case whose functions of observations differ."""
    return Case(lambda: observe(base(), one), lambda: observe(base(), other), faults)


def same(value: Any) -> Any:
    return value


F = "TransformObservation"
PERMUTED = ("permutation", "feature order")


def _normalized_then(function: Function, clip: float = 1.0) -> Any:
    env = gym_normalized(env=observe(pendulum(), function))
    return observe(env, lambda value: np.clip(value, -clip, clip).astype(np.float32))


CASES: dict[str, Case] = {
    "cos and sin swapped": observations(
        pendulum, same, lambda x: x[[1, 0, 2]], fault(F, *PERMUTED, numbers={"order": [1, 0, 2]})
    ),
    "angles in degrees": observations(
        cartpole,
        same,
        scale(1, 1, DEGREES, DEGREES),
        fault(F, "feature scale", numbers={"factor": [1, 1, DEGREES, DEGREES]}),
    ),
    "sign of one feature": observations(
        pendulum, same, scale(1, 1, -1), fault(F, "feature scale", numbers={"factor": [1, 1, -1]})
    ),
    "sign and swap": observations(
        pendulum, same, sequence(scale(1, -1, 1), lambda x: x[[1, 0, 2]]), fault(F, *PERMUTED)
    ),
    "tanh instead of clip": observations(
        pendulum,
        lambda x: np.clip(x, -1, 1),
        lambda x: np.tanh(x),
        fault(F, "function"),
    ),
    "last feature dropped": observations(
        cheetah, same, lambda x: x[:-1], fault(F, "selection", "spec")
    ),
    "velocities first": observations(
        cheetah,
        lambda x: x.astype(np.float32),
        lambda x: np.roll(x, 9).astype(np.float32),
        fault(F, *PERMUTED, numbers={"order": [*range(8, 17), *range(8)]}),
    ),
    "velocity not scaled": observations(
        pendulum, scale(1, 1, 0.125), same, fault(F, "feature scale", "inactive")
    ),
    "BGR and channels first": observations(
        PictureEnv,
        sequence(to_float, channels_first),
        sequence(lambda x: x[..., ::-1], to_float, channels_first),
        fault(F, "channel order", numbers={"order": [2, 1, 0]}),
    ),
    "reshaped instead of transposed": observations(
        PictureEnv,
        channels_first,
        lambda x: x.reshape(3, 48, 64),
        fault(F, "reshape"),
    ),
    "divided before the cast": observations(
        PictureEnv,
        lambda x: x.astype(np.float32) / np.float32(255),
        lambda x: (x // 255).astype(np.float32),
        fault(F, "rounding"),
    ),
    "divided twice": observations(
        PictureEnv, to_float, sequence(to_float, to_float), fault(F, "range", "scale", "twice")
    ),
    "-1 to 1": observations(
        PictureEnv,
        to_float,
        lambda x: to_float(x) * 2 - 1,
        fault(F, "range", numbers={"factor": 2, "offset": -1}),
    ),
    "divided by 256": observations(
        PictureEnv,
        to_float,
        lambda x: x.astype(np.float32) / np.float32(256),
        fault(F, "scale", numbers={"factor": 255 / 256, "offset": 0}),
    ),
    "ImageNet's mean in 0 to 255": observations(
        PictureEnv,
        sequence(to_float, standardize(0.485, 0.229)),
        sequence(to_float, standardize(123.7, 58.4)),
        fault(F, "scale"),
    ),
    "upside down": observations(
        PictureEnv, same, lambda x: x[::-1].copy(), fault(F, "flip", numbers={"dim": 0})
    ),
    "turned by 90 degrees": observations(
        PictureEnv,
        same,
        lambda x: np.rot90(x).copy(),
        fault(F, "axis order", "flip"),
    ),
    "bilinear instead of area": observations(
        PictureEnv,
        resize(cv2.INTER_AREA),
        resize(cv2.INTER_LINEAR),
        fault(F, "resampling", numbers={"kernel": "bilinear"}),
    ),
    "bicubic instead of area": observations(
        PictureEnv,
        resize(cv2.INTER_AREA),
        resize(cv2.INTER_CUBIC),
        fault(F, "resampling", numbers={"kernel": "bicubic"}),
    ),
    "nearest instead of area": observations(
        PictureEnv,
        resize(cv2.INTER_AREA),
        resize(cv2.INTER_NEAREST),
        fault(F, "resampling", numbers={"kernel": "nearest"}),
    ),
    "width and height swapped": observations(
        PictureEnv,
        resize(cv2.INTER_AREA, (24, 21)),
        resize(cv2.INTER_AREA, (21, 24)),
        fault(F, "resampling", "spec", numbers={"height": 24, "width": 21}),
    ),
    "center instead of corner": observations(
        PictureEnv,
        lambda x: x[:32, :32].copy(),
        lambda x: x[8:40, 16:48].copy(),
        fault(F, "crop", numbers={"top": 8, "left": 16}),
    ),
    "gray of BGR": observations(
        PictureEnv,
        lambda x: cv2.cvtColor(x, cv2.COLOR_RGB2GRAY),
        lambda x: cv2.cvtColor(x, cv2.COLOR_BGR2GRAY),
        fault(F, "gray weights"),
    ),
    "red instead of gray": observations(
        PictureEnv,
        lambda x: cv2.cvtColor(x, cv2.COLOR_RGB2GRAY),
        lambda x: x[..., 0].copy(),
        fault(F, "gray weights", numbers={"weights": [1, 0, 0]}),
    ),
    "gray levels binarized": observations(
        PictureEnv,
        lambda x: x[..., 0].copy(),
        lambda x: (x[..., 0] > 127).astype(np.uint8) * 255,
        fault(F, "value", "threshold"),
    ),
    "crop and BGR": observations(
        PictureEnv,
        lambda x: x[4:36, 8:40].copy(),
        lambda x: x[0:32, 8:40, ::-1].copy(),
        fault(F, "crop", numbers={"top": 0, "left": 8}),
    ),
    "normalized on reset only": Case(
        lambda: OnlyOn(pendulum(), scale(0.5, 2, 0.125)),
        lambda: OnlyOn(pendulum(), scale(0.5, 2, 0.125), steps=False),
        (fault("OnlyOn", "inactive", says="after a reset"),),
    ),
    "not normalized on reset": Case(
        lambda: OnlyOn(pendulum(), scale(0.5, 2, 0.125)),
        lambda: OnlyOn(pendulum(), scale(0.5, 2, 0.125), resets=False),
        (fault("OnlyOn", "inactive", says="reset"),),
    ),
    "statistics of a training forgotten": Case(
        gym_normalized,
        lambda: gym_normalized(count=0),
        (fault("NormalizeObservation", "state fresh"),),
    ),
    "statistics move, then a stack": Case(
        lambda: stacked(gym_normalized()),
        lambda: stacked(gym_normalized(learning=True)),
        (fault("NormalizeObservation", "state still learning", "moving statistics"),),
    ),
    "statistics before the stack": Case(
        lambda: stacked(gym_normalized()),
        lambda: gym_normalized(env=stacked(pendulum())),
        (fault("FrameStackObservation", "order"),),
    ),
    "epsilon": Case(
        lambda: wrappers.NormalizeObservation(pendulum()),
        lambda: wrappers.NormalizeObservation(pendulum(), epsilon=0.1),
        (fault("NormalizeObservation", "argument", says="epsilon"),),
    ),
    "swap below the statistics, other clip": Case(
        lambda: _normalized_then(same),
        lambda: _normalized_then(lambda x: x[[1, 0, 2]], 0.5),
        (fault(F, *PERMUTED), fault(F, "clip", numbers={"low": -0.5, "high": 0.5})),
    ),
    "padding of the stack": Case(
        lambda: stacked(pendulum()),
        lambda: stacked(pendulum(), padding_type="zero"),
        (fault("FrameStackObservation", "argument", says="padding_type"),),
    ),
    "longer stack, flattened": Case(
        lambda: wrappers.FlattenObservation(stacked(pendulum(), 3)),
        lambda: wrappers.FlattenObservation(stacked(pendulum(), 4)),
        (fault("FrameStackObservation", "argument", says="stack_size is 4 instead of 3"),),
    ),
    "newest first": Case(
        lambda: observe(stacked(pendulum()), same),
        lambda: observe(stacked(pendulum()), lambda x: x[::-1].copy()),
        (fault(F, "channel order", "feature order"),),
    ),
    "range of the observations": Case(
        lambda: wrappers.RescaleObservation(car(), np.float32(-1), np.float32(1)),
        lambda: wrappers.RescaleObservation(car(), np.float32(0), np.float32(1)),
        (fault("RescaleObservation", "argument", says="min_obs"),),
    ),
    "rescaling forgotten": Case(
        lambda: wrappers.RescaleObservation(car(), np.float32(-1), np.float32(1)),
        car,
        (fault("RescaleObservation", EXTRA),),
    ),
    "delay of the camera": Case(
        pendulum,
        lambda: wrappers.DelayObservation(pendulum(), 2),
        (fault("DelayObservation", EXTRA, numbers={"steps": 2}),),
    ),
    "half precision": Case(
        lambda: wrappers.DtypeObservation(pendulum(), np.float32),
        lambda: wrappers.DtypeObservation(pendulum(), np.float16),
        (fault("DtypeObservation", "rounding", "dtype", "argument"),),
    ),
    "time forgotten": Case(
        lambda: wrappers.TimeAwareObservation(pendulum()),
        pendulum,
        (fault("TimeAwareObservation", EXTRA),),
    ),
    "keys filtered": Case(
        lambda: wrappers.FlattenObservation(Arm()),
        lambda: wrappers.FlattenObservation(wrappers.FilterObservation(Arm(), ["position"])),
        (fault("FilterObservation", EXTRA),),
    ),
    "torque halved": Case(
        lambda: act(pendulum(), same),
        lambda: act(pendulum(), lambda a: a / 2),
        (fault("TransformAction", "scale", numbers={"factor": 0.5}),),
    ),
    "torque reversed": Case(
        lambda: act(pendulum(), same),
        lambda: act(pendulum(), lambda a: -a),
        (fault("TransformAction", "scale", numbers={"factor": -1}),),
    ),
    "joints reversed": Case(
        lambda: act(cheetah(), same),
        lambda: act(cheetah(), lambda a: a[::-1].copy()),
        (fault("TransformAction", *PERMUTED, numbers={"order": [5, 4, 3, 2, 1, 0]}),),
    ),
    "action late": Case(
        lambda: act(pendulum(), same),
        lambda: act(pendulum(), _Late()),
        (fault("TransformAction", "time shift", numbers={"steps": 1}),),
    ),
    "action not rescaled": Case(
        lambda: wrappers.RescaleAction(pendulum(), np.float32(-1), np.float32(1)),
        pendulum,
        (fault("RescaleAction", EXTRA),),
    ),
    "action clipped": Case(
        lambda: act(pendulum(), same),
        lambda: act(pendulum(), lambda a: np.clip(a, -0.5, 0.5)),
        (fault("TransformAction", "clip", numbers={"low": -0.5, "high": 0.5}),),
    ),
    "reward scaled": Case(
        lambda: reward(pendulum(), lambda r: float(r) / 16),
        lambda: reward(pendulum(), lambda r: float(r) / 8),
        (fault("TransformReward", "scale", numbers={"factor": 2}),),
    ),
    "reward clipped": Case(
        lambda: reward(pendulum(), float),
        lambda: wrappers.ClipReward(reward(pendulum(), float), -1, 1),
        (fault("ClipReward", EXTRA, numbers={"low": -1}),),
    ),
    "frame skip": Case(
        lambda: wrappers.MaxAndSkipObservation(pendulum(), 4),
        lambda: wrappers.MaxAndSkipObservation(pendulum(), 3),
        (fault("MaxAndSkipObservation", "argument", "inner calls"),),
    ),
    "bound that no value reaches": Case(
        lambda: observe(pendulum(), lambda x: np.clip(x, -50, 50)),
        lambda: observe(pendulum(), lambda x: np.clip(x, -90, 90)),
        (),
    ),
}


class _Late:
    """Passes on the action of the step before."""

    def __init__(self) -> None:
        self.last: Any = None

    def __call__(self, action: Any) -> Any:
        last = action if self.last is None else self.last
        self.last = action
        return last
