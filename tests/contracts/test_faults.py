"""Planted differences between training and deployment: kind, stage and key are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium import wrappers
from stable_baselines3.common.env_util import make_vec_env
from torchrl import envs as rl

import tdx
from tests.contracts import envs as made
from tests.programs import exhaustive, sampled


class Fault(NamedTuple):
    kind: str
    stage: str
    key: str
    train: Callable[[], Any]
    deploy: Callable[[], Any]


def _cast(dtype: Any) -> Any:
    def apply(observation: Any) -> Any:
        return observation.astype(dtype)

    box: dict[str, Any] = {"low": -8.0, "high": 8.0, "shape": (3,), "dtype": dtype}
    return made.Mapped(made.Pendulum64(), apply, **box)


def _rl_clip() -> Any:
    return rl.ClipTransform(["observation"], low=-1, high=1)


def _stacked_gym(size: int = 3, **kwargs: Any) -> Any:
    return wrappers.FrameStackObservation(made.pendulum(), size, **kwargs)


FAULTS = {
    # A stage is missing.
    "missing VecNormalize": Fault(
        *("missing stage", "VecNormalize", "observation"),
        made.sb3_normalized,
        lambda: make_vec_env("Pendulum-v1", n_envs=2),
    ),
    "missing RescaleAction": Fault(
        *("missing stage", "RescaleAction", "action"),
        made.rescaled,
        made.pendulum,
    ),
    "missing CatFrames": Fault(
        *("missing stage", "CatFrames", "observation"),
        lambda: made.chain(made.fixed_norm(), tdx.CatFrames(3, dim=-1, in_keys=["observation"])),
        lambda: made.chain(made.fixed_norm()),
    ),
    # Stages are in another order.
    "order in Gymnasium": Fault(
        *("order", "FrameStackObservation", "observation"),
        lambda: wrappers.FrameStackObservation(made.gym_normalized(), 2),
        lambda: made.gym_normalized(env=_stacked_gym(2)),
    ),
    "order in tdx": Fault(
        *("order", "ClipTransform", "observation"),
        lambda: made.chain(made.fixed_norm(), tdx.ClipTransform(["observation"], low=-1, high=1)),
        lambda: made.chain(tdx.ClipTransform(["observation"], low=-1, high=1), made.fixed_norm()),
    ),
    "order in TorchRL": Fault(
        *("order", "ClipTransform", "observation"),
        lambda: made.rl_chain(made.rl_fixed_norm(), _rl_clip()),
        lambda: made.rl_chain(_rl_clip(), made.rl_fixed_norm()),
    ),
    # An argument differs.
    "n_stack of VecFrameStack": Fault(
        *("argument", "VecFrameStack", "observation"),
        lambda: made.sb3_stacked(4),
        lambda: made.sb3_stacked(2),
    ),
    "range of RescaleAction": Fault(
        *("argument", "RescaleAction", "action"),
        made.rescaled,
        lambda: made.rescaled(-0.5, 0.5),
    ),
    "padding of CatFrames": Fault(
        *("argument", "CatFrames", "observation"),
        lambda: made.rl_chain(rl.CatFrames(3, -1, in_keys=["observation"], padding="same")),
        lambda: made.rl_chain(rl.CatFrames(3, -1, in_keys=["observation"], padding="constant")),
    ),
    # The spec differs.
    "frame shape": Fault(
        *("spec", "Camera", "observation"), made.Camera, lambda: made.Camera(size=32)
    ),
    "key of the env": Fault(
        *("spec", "GymWrapper", "velocity"),
        made.tdx_arm,
        lambda: tdx.GymWrapper(made.Arm(names=("position", "speed"))),
    ),
    "bounds of the torque": Fault(
        *("spec", "Pendulum64", "action"),
        lambda: made.sb3_normalized(env=make_vec_env(made.Pendulum64, n_envs=2)),
        lambda: made.sb3_normalized(
            env=make_vec_env(made.Pendulum64, n_envs=2, env_kwargs={"torque": 3.0})
        ),
    ),
    # Features are in another order.
    "order of joined entries": Fault(
        *("feature order", "Join", "observation"),
        lambda: made.Join(made.Arm(), ["position", "velocity"]),
        lambda: made.Join(made.Arm(), ["velocity", "position"]),
    ),
    "in_keys of CatTensors": Fault(
        *("feature order", "CatTensors", "state"),
        lambda: made.chain(
            tdx.CatTensors(["position", "velocity"], "state", sort=False), env=made.tdx_arm()
        ),
        lambda: made.chain(
            tdx.CatTensors(["velocity", "position"], "state", sort=False), env=made.tdx_arm()
        ),
    ),
    "BGR instead of RGB": Fault(
        *("feature order", "Mapped", "observation"),
        lambda: make_vec_env(lambda: made.Mapped(made.Camera(), lambda x: x), n_envs=1),
        lambda: make_vec_env(lambda: made.Mapped(made.Camera(), lambda x: x[..., ::-1]), n_envs=1),
    ),
    # Values are scaled.
    "scale in Gymnasium": Fault(
        *("scale", "TransformObservation", "observation"),
        lambda: wrappers.TransformObservation(made.pendulum(), lambda x: x / 8, None),
        lambda: wrappers.TransformObservation(made.pendulum(), lambda x: x / 4, None),
    ),
    "scale in TorchRL": Fault(
        *("scale", "Factor", "observation"),
        lambda: made.rl_chain(made.Factor(0.1)),
        lambda: made.rl_chain(made.Factor(1.0)),
    ),
    "scale of a chain that replaces VecNormalize": Fault(
        *("scale", "ObservationNorm", "observation"),
        made.sb3_normalized,
        lambda: made.chain(made.fixed_norm(scale=2.0)),
    ),
    # The dtype differs.
    "dtype of a sub-env": Fault(
        *("dtype", "Mapped", "observation"),
        lambda: make_vec_env(lambda: _cast(np.float32), n_envs=2),
        lambda: make_vec_env(lambda: _cast(np.float64), n_envs=2),
    ),
    "dtype of the env": Fault(
        *("dtype", "GymWrapper", "observation"),
        lambda: tdx.GymWrapper(made.Pendulum64()),
        lambda: tdx.GymWrapper(made.Pendulum64(np.float64)),
    ),
    "dtype of a frame": Fault(
        *("dtype", "Mapped", "observation"),
        lambda: made.Mapped(made.Camera(), lambda x: x),
        lambda: made.Mapped(
            *(made.Camera(), lambda x: x.astype(np.float32)), low=0.0, high=255.0, shape=(40, 40, 3)
        ),
    ),
    # The stage has no state.
    "statistics not loaded": Fault(
        *("state missing", "Normalized", "observation"),
        lambda: made.Normalized(made.pendulum()).load(made.MEAN, made.VAR),
        lambda: made.Normalized(made.pendulum()),
    ),
    "statistics not loaded in a sub-env": Fault(
        *("state missing", "Normalized", "observation"),
        lambda: make_vec_env(
            lambda: made.Normalized(made.pendulum()).load(made.MEAN, made.VAR), n_envs=2
        ),
        lambda: make_vec_env(lambda: made.Normalized(made.pendulum()), n_envs=2),
    ),
    "buffer of TorchRL not loaded": Fault(
        *("state missing", "Shift", "observation"),
        lambda: made.rl_chain(made.Shift(made.MEAN)),
        lambda: made.rl_chain(made.Shift()),
    ),
    # The state is fresh.
    "fresh VecNormalize": Fault(
        *("state fresh", "VecNormalize", "observation"),
        made.sb3_normalized,
        lambda: made.sb3_normalized(count=0),
    ),
    "fresh NormalizeObservation": Fault(
        *("state fresh", "NormalizeObservation", "observation"),
        made.gym_normalized,
        lambda: made.gym_normalized(count=0),
    ),
    "fresh VecNorm": Fault(
        *("state fresh", "VecNorm", "observation"),
        made.tdx_normalized,
        lambda: made.tdx_normalized(steps=0, learning=True),
    ),
    # The state still changes.
    "learning VecNormalize": Fault(
        *("state still learning", "VecNormalize", "observation"),
        made.sb3_normalized,
        lambda: made.sb3_normalized(learning=True),
    ),
    "learning NormalizeObservation": Fault(
        *("state still learning", "NormalizeObservation", "observation"),
        made.gym_normalized,
        lambda: made.gym_normalized(learning=True),
    ),
    "learning VecNorm": Fault(
        *("state still learning", "VecNormV2", "observation"),
        made.rl_normalized,
        lambda: made.rl_normalized(learning=True),
    ),
    # Values differ in another way.
    "statistics of another run": Fault(
        *("value", "VecNormalize", "obs_rms.mean"),
        made.sb3_normalized,
        lambda: _other_statistics(made.sb3_normalized()),
    ),
    "another function": Fault(
        *("value", "Mapped", "observation"),
        lambda: made.Mapped(made.pendulum(), np.tanh),
        lambda: made.Mapped(made.pendulum(), lambda x: np.clip(x, -1, 1)),
    ),
    "another callable in tdx": Fault(
        *("value", "CallableTransform", "observation"),
        lambda: made.chain(_callable(lambda x: x.tanh())),
        lambda: made.chain(_callable(lambda x: x.sin())),
    ),
}


def _other_statistics(env: Any) -> Any:
    env.obs_rms.mean = env.obs_rms.mean + 1.0
    return env


def _callable(function: Callable[[Any], Any]) -> Any:
    def apply(tensordict: Any) -> Any:
        return tensordict.set("observation", function(tensordict["observation"]))

    return tdx.CallableTransform(apply)


@pytest.mark.parametrize("name", FAULTS)
@sampled(5)
def test_fault_is_named_with_stage_and_key(name: str) -> None:
    fault = FAULTS[name]
    report = tdx.check_contract(fault.deploy(), tdx.freeze(fault.train()))
    first = report.first
    assert first is not None
    assert (first.kind, first.name, first.key) == (fault.kind, fault.stage, fault.key), report


def _mapped(*functions: Callable[[Any], Any]) -> Any:
    """Return an env with a wrapper of one class for each function, whose arguments are unknown."""
    env: Any = made.Pendulum64()
    for function in functions:
        env = made.Mapped(env, function, low=-100.0, high=100.0, shape=(3,), dtype=np.float32)
    return env


def _shift(value: Any) -> Any:
    return value + np.float32(1)


def _double(value: Any) -> Any:
    return value * np.float32(2)


def _limit(value: Any) -> Any:
    return np.clip(value, -0.5, 0.5)


def _turn(value: Any) -> Any:
    return value[::-1].copy()


@exhaustive
def test_wrappers_of_one_class_in_another_order_are_told_apart_by_what_they_do() -> None:
    report = tdx.diff_stacks(_mapped(_shift, _limit, _turn), _mapped(_limit, _shift, _turn))
    (difference,) = report.causes
    assert difference.kind == "order"
    assert {difference.stage, difference.reference_stage} == {0, 1}


@exhaustive
def test_a_wrapper_that_is_missing_and_another_that_is_added_are_two_differences() -> None:
    report = tdx.diff_stacks(_mapped(_shift, _limit, _double), _mapped(_shift, _turn, _limit))
    missing, added = sorted(report.causes, key=lambda cause: cause.stage is not None)
    assert (missing.kind, missing.reference_stage) == ("missing stage", 2)
    assert (added.kind, added.stage) == ("missing stage", 1)
    assert added.explanation is not None
    assert added.explanation.kind == "permutation"


@exhaustive
def test_a_narrower_clip_before_a_wider_one_is_not_the_same_stage_twice() -> None:
    def wide(value: Any) -> Any:
        return np.clip(value, -0.9, 0.9)

    report = tdx.diff_stacks(_mapped(_shift, wide), _mapped(_shift, _limit, wide))
    (difference,) = report.causes
    assert difference.explanation is not None
    assert difference.explanation.kind == "clip"


@exhaustive
def test_an_argument_without_an_effect_says_that_no_difference_is_observed() -> None:
    def clipped(limit: float) -> Any:
        env = made.sb3_normalized()
        env.clip_obs = limit
        return env

    report = tdx.diff_stacks(clipped(1e6), clipped(1e7))
    assert [cause.kind for cause in report.causes] == ["argument"]
    assert "no difference of values is observed" in report.causes[0].sentence
    (difference,) = tdx.diff_stacks(clipped(1e6), clipped(0.01)).causes
    assert "no difference of values" not in difference.sentence
