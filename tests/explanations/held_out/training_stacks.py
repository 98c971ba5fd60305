"""Faults in stacks as scripts of CleanRL, the zoo of Stable-Baselines3 and TorchRL build them.

The labels were written before the cases were run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces, wrappers
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecFrameStack
from torchrl import envs as rl

from tests.contracts.envs import MEAN, VAR, gym_normalized, pendulum, sb3_normalized
from tests.explanations.held_out.gymnasium_stacks import (
    act,
    cartpole,
    cheetah,
    observe,
    reward,
    same,
    scale,
    to_float,
)
from tests.explanations.held_out.lerobot_folders import (
    N,
    case,
    dtype,
    joints,
    no_crop,
    step,
)
from tests.explanations.held_out.model import Case, fault
from tests.explanations.held_out.sb3_stacks import frames as vec_frames
from tests.explanations.held_out.sb3_stacks import statistics, vec
from tests.explanations.held_out.torchrl_stacks import Mapped, chains, image, norm, pictures
from tests.explanations.mutations.envs import PictureEnv
from tests.explanations.mutations.lerobot_steps import CROPS
from tests.stacks.checkpoints.folders import ACTION, STATE, Folder
from tests.stacks.checkpoints.folders import IMAGE as CAMERA

EXTRA = "missing stage"
F, A, R, V = "TransformObservation", "TransformAction", "TransformReward", "VecNormalize"


def symlog(value: Any) -> Any:
    return np.sign(value) * np.log1p(np.abs(value))


def ppo(
    bound: float = 10.0, gamma: float = 0.99, count: int | None = None, clips_actions: bool = True
) -> Any:
    """Return the stack of CleanRL's PPO for continuous actions, with frozen statistics."""
    env: Any = wrappers.RecordEpisodeStatistics(wrappers.FlattenObservation(pendulum()))
    env = wrappers.ClipAction(env) if clips_actions else env
    env = gym_normalized(env=env) if count is None else gym_normalized(env=env, count=count)
    env = observe(env, lambda x: np.clip(x, -bound, bound).astype(np.float32))
    env = wrappers.NormalizeReward(env, gamma=gamma)
    return reward(env, lambda r: float(np.clip(r, -10, 10)))


def atari(size: tuple[int, int] = (24, 24), length: int = 4, function: Any = same) -> Any:
    env: Any = wrappers.ResizeObservation(PictureEnv(), size)
    env = wrappers.GrayscaleObservation(env)
    return observe(wrappers.FrameStackObservation(env, length), function)


class TimeFeature(gym.ObservationWrapper[Any, Any, Any]):
    """Appends the time that remains, or a constant in a test."""

    def __init__(self, env: Any, test: bool = False) -> None:
        super().__init__(env)
        self.hidden = [test]
        self.taken = 0
        shape = (env.observation_space.shape[0] + 1,)
        self.observation_space = spaces.Box(-np.inf, np.inf, shape, np.float32)

    def reset(self, **kwargs: Any) -> Any:
        self.taken = 0
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.taken += 1
        return super().step(action)

    def observation(self, observation: Any) -> Any:
        left = 0.0 if self.hidden[0] else 1 - self.taken / 200
        return np.append(observation, left).astype(np.float32)


class HistoryWrapper(gym.Wrapper[Any, Any, Any, Any]):
    """Joins the last observations; the first ones are zeros."""

    def __init__(self, env: Any, horizon: int = 2, newest_first: bool = False) -> None:
        super().__init__(env)
        self.hidden: list[Any] = [newest_first, deque(maxlen=horizon)]
        size = env.observation_space.shape[0] * horizon
        self.observation_space = spaces.Box(-np.inf, np.inf, (size,), np.float32)

    def _joined(self) -> Any:
        newest_first, past = self.hidden
        return np.concatenate(list(past)[::-1] if newest_first else list(past))

    def reset(self, **kwargs: Any) -> Any:
        value, info = self.env.reset(**kwargs)
        past = self.hidden[1]
        past.extend([np.zeros_like(value)] * past.maxlen)
        past.append(value)
        return self._joined(), info

    def step(self, action: Any) -> Any:
        value, *rest = self.env.step(action)
        self.hidden[1].append(value)
        return (self._joined(), *rest)


class Smoothed:
    """Averages an action with the one before."""

    def __init__(self) -> None:
        self.last: Any = 0.0

    def __call__(self, action: Any) -> Any:
        self.last = (action + self.last) / 2
        return self.last


class Noisy:
    """Adds noise to the actions."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)

    def __call__(self, action: Any) -> Any:
        return action + self.random.normal(0, 0.1, action.shape).astype(action.dtype)


def robot(*stages: Any) -> Any:
    return rl.TransformedEnv(rl.GymWrapper(cheetah()), rl.Compose(*stages))


def rewarded(one: Callable[[Any], Any], other: Callable[[Any], Any], *faults: Any) -> Case:
    """Return a case whose functions of rewards differ."""
    return Case(lambda: reward(cheetah(), one), lambda: reward(cheetah(), other), faults)


def acting(one: Callable[[Any], Any], other: Callable[[Any], Any], *faults: Any) -> Case:
    """Return a case whose functions of actions differ."""
    return Case(lambda: act(cheetah(), one), lambda: act(cheetah(), other), faults)


def min_max(folder: Folder) -> None:
    folder.normalizer["norm_map"]["STATE"] = "MIN_MAX"


def tenfold(folder: Folder) -> None:
    folder.statistics["before"][STATE]["std"][2] *= np.float32(10)


def bgr_statistics(folder: Folder) -> None:
    named = folder.statistics["before"][CAMERA]
    for name, value in named.items():
        named[name] = value[::-1].copy()


def shifted_actions(folder: Folder) -> None:
    folder.statistics["after"][ACTION]["mean"] += np.float32(0.5)


def smaller_crop(folder: Folder) -> None:
    boxes = step(folder, CROPS)["config"]["crop_params_dict"]
    top, left, height, width = boxes[CAMERA]
    boxes[CAMERA] = [top, left, height - 4, width]


CASES: dict[str, Case] = {
    # Scripts of CleanRL.
    "PPO: observations clipped at 1": Case(
        ppo, partial(ppo, 1.0), (fault(F, "clip", numbers={"low": -1, "high": 1}),)
    ),
    "PPO: gamma of the rewards": Case(
        ppo,
        partial(ppo, gamma=0.9),
        (fault("NormalizeReward", "argument", says="gamma is 0.9 instead of 0.99"),),
    ),
    "PPO: no statistics": Case(
        ppo, partial(ppo, count=0), (fault("NormalizeObservation", "state fresh"),)
    ),
    "PPO: no statistics, clipped at 1": Case(
        ppo,
        partial(ppo, 1.0, count=0),
        (fault("NormalizeObservation", "state fresh"), fault(F, "clip")),
    ),
    "PPO: actions not clipped": Case(
        ppo, partial(ppo, clips_actions=False), (fault("ClipAction", EXTRA),)
    ),
    "DQN: sign of the rewards": rewarded(
        float, lambda r: float(np.sign(r)), fault(R, "function", numbers={"function": "sign(x)"})
    ),
    "DQN: rewards clipped instead of their sign": rewarded(
        lambda r: float(np.sign(r)),
        lambda r: float(np.clip(r, -1, 1)),
        fault(R, "clip", "inactive", "function"),
    ),
    "Dreamer: symlog of the observations": Case(
        lambda: observe(cheetah(), symlog),
        lambda: observe(cheetah(), same),
        (fault(F, "function", "inactive", numbers={}),),
    ),
    "Dreamer: symlog of the rewards": rewarded(
        float, lambda r: float(symlog(r)), fault(R, "function", numbers={"function": "symlog(x)"})
    ),
    "R2D2: rewards not rescaled": rewarded(
        lambda r: float(np.sign(r) * (np.sqrt(abs(r) + 1) - 1) + 1e-3 * r),
        float,
        fault(R, "function", "inactive"),
    ),
    "SAC: actions not squashed": acting(np.tanh, same, fault(A, "function", "inactive")),
    "SAC: squashed to half of the range": acting(
        np.tanh, lambda a: np.tanh(a) / 2, fault(A, "scale", numbers={"factor": 0.5})
    ),
    "SAC: clipped instead of squashed": acting(
        np.tanh, lambda a: np.clip(a, -1, 1), fault(A, "function", "inactive")
    ),
    "bonus for being alive": rewarded(
        float, lambda r: float(r) + 1, fault(R, "scale", numbers={"offset": 1})
    ),
    "Atari: another size": Case(
        atari, partial(atari, (21, 24)), (fault("ResizeObservation", "argument", says="21"),)
    ),
    "Atari: three frames": Case(
        atari,
        partial(atari, length=3),
        (fault("FrameStackObservation", "argument", says="stack_size is 3 instead of 4"),),
    ),
    "Atari: frames divided by 255": Case(
        atari,
        partial(atari, function=to_float),
        (fault(F, "range", "scale", numbers={"factor": 1 / 255}),),
    ),
    "Atari: newest frame only": Case(
        lambda: atari(function=same),
        lambda: atari(function=lambda x: np.stack([x[-1]] * 4)),
        (fault(F, "selection", "history", "channel order", "repetition"),),
    ),
    "velocities masked": Case(
        lambda: observe(cartpole(), same),
        lambda: observe(cartpole(), scale(1, 0, 1, 0)),
        (fault(F, "constant", "feature scale"),),
    ),
    # The zoo of Stable-Baselines3.
    "zoo: time of a test": Case(
        lambda: TimeFeature(pendulum()),
        lambda: TimeFeature(pendulum(), test=True),
        (fault("TimeFeature", "constant"),),
    ),
    "zoo: longer history": Case(
        lambda: HistoryWrapper(pendulum(), 2),
        lambda: HistoryWrapper(pendulum(), 3),
        (fault("HistoryWrapper", "history", numbers={"length": 3}),),
    ),
    "zoo: history in another order": Case(
        lambda: HistoryWrapper(pendulum(), 3),
        lambda: HistoryWrapper(pendulum(), 3, newest_first=True),
        (fault("HistoryWrapper", "history", "permutation", "feature order"),),
    ),
    "zoo: actions smoothed": Case(
        lambda: act(cheetah(), same),
        lambda: act(cheetah(), Smoothed()),
        (fault(A, "smoothing"),),
    ),
    "zoo: noise of the actions": Case(
        lambda: act(cheetah(), same), lambda: act(cheetah(), Noisy()), (fault(A, "noise"),)
    ),
    "zoo: rewards not normalized": Case(
        lambda: sb3_normalized(0),
        lambda: sb3_normalized(0, norm_reward=False),
        (fault(V, "argument", says="norm_reward is False"),),
    ),
    "zoo: epsilon": Case(
        sb3_normalized,
        partial(sb3_normalized, epsilon=0.1),
        (fault(V, "argument", says="epsilon is 0.1"),),
    ),
    "zoo: statistics of another env": Case(
        lambda: statistics(MEAN, VAR),
        lambda: statistics([0.1, 0.2, -1.0], [1.0, 0.5, 9.0]),
        (fault(V, "feature scale", "value"),),
    ),
    "zoo: frames along the last axis": Case(
        lambda: VecFrameStack(vec_frames(), 2, channels_order="last"),
        lambda: VecFrameStack(vec_frames(), 2, channels_order="first"),
        (fault("VecFrameStack", "argument", "axis order", "history", says="channels_first"),),
    ),
    "zoo: no monitor": Case(lambda: vec(lambda: Monitor(pendulum())), lambda: vec(pendulum), ()),
    # Chains of TorchRL.
    "TorchRL: no cast to float32": Case(
        lambda: robot(rl.DoubleToFloat(in_keys=["observation"])),
        robot,
        (fault("DoubleToFloat", EXTRA, "dtype"),),
    ),
    "TorchRL: variance as scale": chains(
        [norm],
        [lambda: norm(scale=torch.tensor(VAR))],
        fault("ObservationNorm", "width", numbers={"widths": np.sqrt(VAR)}),
    ),
    "TorchRL: no sign": chains(
        [lambda: rl.SignTransform(in_keys=["reward"])],
        [lambda: rl.RewardSum()],
        fault("SignTransform", EXTRA),
    ),
    "TorchRL: tanh in a custom transform": chains(
        [lambda: Mapped(lambda x: x)],
        [lambda: Mapped(torch.tanh)],
        fault("Mapped", "function", numbers={"function": "tanh(x)"}),
    ),
    "TorchRL: loc of the rewards": chains(
        [lambda: rl.RewardScaling(0.0, 0.1)],
        [lambda: rl.RewardScaling(1.0, 0.1)],
        fault("RewardScaling", "value", "scale", "argument", says="loc is 1"),
    ),
    "TorchRL: frames not flattened": pictures(
        [image, lambda: rl.FlattenObservation(-2, -1, in_keys=["pixels"])],
        [image],
        fault("FlattenObservation", EXTRA),
    ),
    # Checkpoints of LeRobot.
    "LeRobot: range instead of deviation": case(
        min_max, faults=(fault(N, "argument", says="MIN_MAX"),)
    ),
    "LeRobot: one joint ten times wider": case(
        tenfold, faults=(fault(N, "value", "feature scale", "width"),)
    ),
    "LeRobot: BGR in the statistics": case(
        bgr_statistics, faults=(fault(N, "value", "feature scale"),)
    ),
    "LeRobot: mean of the actions": case(
        shifted_actions, faults=(fault("unnormalizer", "value", "scale", numbers={"offset": 0.5}),)
    ),
    "LeRobot: smaller crop": case(
        smaller_crop, faults=(fault("image_crop_resize", "argument", "crop"),)
    ),
    "LeRobot: joints of the statistics, float16": case(
        joints,
        dtype("float16"),
        faults=(
            fault(N, "value", "feature scale", says="1, 0, 2, 3, 4, 5"),
            fault("device", "rounding", "argument", "dtype"),
        ),
    ),
    "LeRobot: no crop, one joint wider": case(
        no_crop,
        tenfold,
        faults=(fault("image_crop_resize", EXTRA), fault(N, "value", "feature scale", "width")),
    ),
}
