"""Faults in stacks of Stable-Baselines3: VecNormalize, VecFrameStack and wrappers of sub-envs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from stable_baselines3.common.atari_wrappers import ClipRewardEnv, MaxAndSkipEnv, WarpFrame
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecEnvWrapper,
    VecExtractDictObs,
    VecFrameStack,
    VecNormalize,
    VecTransposeImage,
)

from tests.contracts.envs import MEAN, VAR, Arm, pendulum, sb3_normalized
from tests.explanations.held_out.gymnasium_stacks import observe, same, scale
from tests.explanations.held_out.model import Case, fault
from tests.explanations.mutations.envs import PictureEnv

EXTRA = "missing stage"
V = "VecNormalize"


def vec(make: Callable[[], Any], count: int = 2) -> Any:
    return DummyVecEnv([make] * count)


def frames() -> Any:
    return vec(PictureEnv)


def statistics(mean: Any, var: Any, **kwargs: Any) -> Any:
    env = sb3_normalized(**kwargs)
    env.obs_rms.mean, env.obs_rms.var = np.array(mean), np.array(var)
    return env


class ResetOnly(VecNormalize):
    """A subclass that forgets to normalize the observations of steps."""

    def normalize_obs(self, obs: Any) -> Any:
        return super().normalize_obs(obs) if self.resetting else obs

    def reset(self) -> Any:
        self.resetting = True
        try:
            return super().reset()
        finally:
            self.resetting = False

    resetting = False


class Mapped(VecEnvWrapper):
    """Applies a function of a user to the observations of all envs."""

    def __init__(self, venv: Any, function: Callable[[Any], Any]) -> None:
        super().__init__(venv)
        self.hidden: list[Any] = [function]

    def reset(self) -> Any:
        return self.hidden[0](self.venv.reset())

    def step_wait(self) -> Any:
        value, *rest = self.venv.step_wait()
        return (self.hidden[0](value), *rest)


class Forgetful(Mapped):
    """Maps the observations of steps, or of resets, only."""

    def __init__(self, venv: Any, function: Callable[[Any], Any], resets: bool, steps: bool):
        super().__init__(venv, function)
        self.hidden += [resets, steps]

    def reset(self) -> Any:
        return super().reset() if self.hidden[1] else self.venv.reset()

    def step_wait(self) -> Any:
        return super().step_wait() if self.hidden[2] else self.venv.step_wait()


def normalized_arm(swapped: bool = False, keys: tuple[str, ...] = ("position", "velocity")) -> Any:
    env: Any = VecNormalize(vec(Arm), training=False, norm_obs_keys=list(keys))
    for number, key in enumerate(keys):
        number = len(keys) - 1 - number if swapped else number
        rms = env.obs_rms[key]
        rms.mean, rms.var = np.array([0.3, -0.5]) - number, np.array([0.5, 2.0]) + 3 * number
        rms.count = 100.0
    return env


def _half(value: Any) -> Any:
    return (value * np.float32(0.5)).astype(np.float32)


CASES: dict[str, Case] = {
    "SB3: 3 frames instead of 4": Case(
        lambda: VecFrameStack(sb3_normalized(), 4),
        lambda: VecFrameStack(sb3_normalized(), 3),
        (fault("VecFrameStack", "argument", says="n_stack is 3 instead of 4"),),
    ),
    "SB3: no frame stack, fresh statistics": Case(
        lambda: VecFrameStack(sb3_normalized(), 4),
        lambda: sb3_normalized(count=0),
        (fault("VecFrameStack", EXTRA), fault(V, "state fresh")),
    ),
    "SB3: stack before the statistics": Case(
        lambda: VecFrameStack(sb3_normalized(), 2),
        lambda: VecNormalize(VecFrameStack(vec(pendulum), 2), training=False),
        (fault("VecFrameStack", "order"), fault(V, "order", "state fresh", "value", "spec")),
    ),
    "SB3: clip_obs": Case(
        sb3_normalized,
        partial(sb3_normalized, clip_obs=0.5),
        (fault(V, "argument", says="clip_obs is 0.5 instead of 10"),),
    ),
    "SB3: norm_obs": Case(
        sb3_normalized,
        partial(sb3_normalized, 0, norm_obs=False),
        (fault(V, "argument", "inactive", "state missing"),),
    ),
    "SB3: statistics move below a frame stack": Case(
        lambda: VecFrameStack(sb3_normalized(), 2),
        lambda: VecFrameStack(sb3_normalized(learning=True), 2),
        (fault(V, "state still learning", "moving statistics"),),
    ),
    "SB3: std as variance": Case(
        lambda: statistics(MEAN, VAR),
        lambda: statistics(MEAN, np.sqrt(VAR)),
        (fault(V, "width", "feature scale", numbers={"widths": np.array(VAR) ** -0.25}),),
    ),
    "SB3: statistics of another order": Case(
        lambda: statistics(MEAN, VAR),
        lambda: statistics(np.array(MEAN)[[1, 0, 2]], np.array(VAR)[[1, 0, 2]]),
        (fault(V, "value", says="another order: 1, 0, 2"),),
    ),
    "SB3: normalizes resets only": Case(
        sb3_normalized,
        lambda: _as(ResetOnly, sb3_normalized()),
        (fault("ResetOnly", "inactive", says="after a reset"),),
    ),
    "SB3: maps resets only": Case(
        lambda: Forgetful(vec(pendulum), _half, True, True),
        lambda: Forgetful(vec(pendulum), _half, True, False),
        (fault("Forgetful", "inactive", says="after a reset"),),
    ),
    "SB3: maps steps only": Case(
        lambda: Forgetful(sb3_normalized(), _half, True, True),
        lambda: Forgetful(sb3_normalized(), _half, False, True),
        (fault("Forgetful", "inactive", says="reset"),),
    ),
    "SB3: statistics of keys swapped": Case(
        normalized_arm,
        lambda: normalized_arm(swapped=True),
        (fault(V, "swapped statistics"),),
    ),
    "SB3: one key not normalized": Case(
        normalized_arm,
        lambda: normalized_arm(keys=("position",)),
        (fault(V, "argument", "inactive", "state missing", says="velocity"),),
    ),
    "SB3: other key extracted": Case(
        lambda: VecExtractDictObs(vec(Arm), "position"),
        lambda: VecExtractDictObs(vec(Arm), "velocity"),
        (fault("VecExtractDictObs", "argument", says="velocity"),),
    ),
    "SB3: channels not transposed": Case(
        lambda: VecTransposeImage(frames()),
        frames,
        (fault("VecTransposeImage", EXTRA),),
    ),
    "SB3: smaller frames": Case(
        lambda: vec(lambda: WarpFrame(PictureEnv(), 32, 32)),
        lambda: vec(lambda: WarpFrame(PictureEnv(), 28, 32)),
        (fault("WarpFrame", "argument", says="28"),),
    ),
    "SB3: rewards not clipped": Case(
        lambda: vec(lambda: ClipRewardEnv(pendulum())),
        lambda: vec(pendulum),
        (fault("ClipRewardEnv", EXTRA),),
    ),
    "SB3: frame skip": Case(
        lambda: vec(lambda: MaxAndSkipEnv(PictureEnv(), 4)),
        lambda: vec(lambda: MaxAndSkipEnv(PictureEnv(), 2)),
        (fault("MaxAndSkipEnv", "argument", "inner calls"),),
    ),
    "SB3: features swapped in a sub-env, other clip": Case(
        lambda: sb3_normalized(env=vec(lambda: observe(pendulum(), same))),
        lambda: sb3_normalized(
            env=vec(lambda: observe(pendulum(), lambda x: x[[2, 1, 0]])), clip_obs=0.7
        ),
        (
            fault("TransformObservation", "permutation", "feature order"),
            fault(V, "argument", says="clip_obs"),
        ),
    ),
    "SB3: units of a sub-env, newest frames first": Case(
        lambda: Mapped(VecFrameStack(vec(lambda: observe(pendulum(), same)), 2), same),
        lambda: Mapped(
            VecFrameStack(vec(lambda: observe(pendulum(), scale(1, 1, 0.1))), 2),
            lambda x: x[:, [3, 4, 5, 0, 1, 2]],
        ),
        (
            fault("TransformObservation", "feature scale", numbers={"factor": [1, 1, 0.1]}),
            fault("Mapped", "permutation", "feature order", numbers={"order": [3, 4, 5, 0, 1, 2]}),
        ),
    ),
}


def _as(cls: type, env: Any) -> Any:
    env.__class__ = cls
    return env
