"""Faults in wrappers of users, as in MiniGrid, robosuite and gym-pybullet-drones.

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
from stable_baselines3.common.vec_env import (
    VecEnvWrapper,
    VecFrameStack,
    VecNormalize,
    VecTransposeImage,
)
from torchrl import envs as rl

from tests.contracts.envs import Arm, pendulum
from tests.explanations.held_out.gymnasium_stacks import cartpole, cheetah, observe, same
from tests.explanations.held_out.lerobot_folders import N, case, step
from tests.explanations.held_out.model import Case, fault
from tests.explanations.held_out.sb3_stacks import frames as vec_frames
from tests.explanations.held_out.sb3_stacks import vec
from tests.explanations.held_out.torchrl_stacks import chains, image, norm, pictures
from tests.explanations.mutations.envs import PictureEnv
from tests.stacks.checkpoints.folders import ACTION, STATE, Folder

EXTRA = "missing stage"
IMAGE_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
IMAGE_STD = np.array([0.229, 0.224, 0.225], np.float32)


class Robot(gym.Wrapper[Any, Any, Any, Any]):
    """Joins named parts of a state in an order, as robosuite's GymWrapper does."""

    def __init__(self, env: Any, parts: tuple[str, ...], goal: bool = True) -> None:
        super().__init__(env)
        self.hidden: list[Any] = [parts, goal]
        size = len(self._join(np.zeros(env.observation_space.shape, np.float32)))
        self.observation_space = spaces.Box(-np.inf, np.inf, (size,), np.float32)

    def _join(self, value: Any) -> Any:
        names, goal = self.hidden
        parts = {"base": value[:3], "joints": value[3:9], "velocities": value[9:17]}
        joined = np.concatenate([parts[name] for name in names])
        if not goal:
            joined[:3] = 0
        return joined.astype(np.float32)

    def reset(self, **kwargs: Any) -> Any:
        value, info = self.env.reset(**kwargs)
        return self._join(value), info

    def step(self, action: Any) -> Any:
        value, *rest = self.env.step(action)
        return (self._join(value), *rest)


PARTS = ("base", "joints", "velocities")


class ImgNorm(gym.ObservationWrapper[Any, Any, Any]):
    """Normalizes colors as an encoder that was trained on ImageNet expects them."""

    def __init__(self, env: Any, mean: Any = IMAGE_MEAN, std: Any = IMAGE_STD, unit: float = 255):
        super().__init__(env)
        self.hidden = [mean, std, unit]
        shape = env.observation_space.shape
        self.observation_space = spaces.Box(-np.inf, np.inf, shape, np.float32)

    def observation(self, value: Any) -> Any:
        mean, std, unit = self.hidden
        return ((value / np.float32(unit) - mean) / std).astype(np.float32)


class Delayed(gym.Wrapper[Any, Any, Any, Any]):
    """Returns observations some steps late, as a camera does."""

    def __init__(self, env: Any, delay: int) -> None:
        super().__init__(env)
        self.hidden: list[Any] = [deque(maxlen=delay + 1)]

    def reset(self, **kwargs: Any) -> Any:
        value, info = self.env.reset(**kwargs)
        queue = self.hidden[0]
        queue.extend([value] * queue.maxlen)
        return queue[0], info

    def step(self, action: Any) -> Any:
        value, *rest = self.env.step(action)
        self.hidden[0].append(value)
        return (self.hidden[0][0], *rest)


class ActionBuffer(gym.Wrapper[Any, Any, Any, Any]):
    """Appends the last actions to an observation."""

    def __init__(self, env: Any, length: int = 2, newest_first: bool = False) -> None:
        super().__init__(env)
        self.hidden: list[Any] = [deque(maxlen=length), newest_first]
        size = env.observation_space.shape[0] + length * env.action_space.shape[0]
        self.observation_space = spaces.Box(-np.inf, np.inf, (size,), np.float32)

    def _joined(self, value: Any) -> Any:
        queue, newest_first = self.hidden
        return np.concatenate([value, *(reversed(queue) if newest_first else queue)]).astype("f4")

    def reset(self, **kwargs: Any) -> Any:
        value, info = self.env.reset(**kwargs)
        queue = self.hidden[0]
        nothing = np.zeros_like(self.env.action_space.sample())
        queue.extend([nothing] * queue.maxlen)
        return self._joined(value), info

    def step(self, action: Any) -> Any:
        value, *rest = self.env.step(action)
        self.hidden[0].append(np.asarray(action, np.float32))
        return (self._joined(value), *rest)


class Repeat(gym.Wrapper[Any, Any, Any, Any]):
    """Repeats an action, as CleanRL's wrapper for DMC does."""

    def __init__(self, env: Any, count: int, mean: bool = False) -> None:
        super().__init__(env)
        self.hidden = [count, mean]

    def step(self, action: Any) -> Any:
        total = 0.0
        count, mean = self.hidden
        for _ in range(count):
            value, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return value, total / count if mean else total, terminated, truncated, info


class GripperAction(gym.ActionWrapper[Any, Any, Any]):
    """Maps the action of a policy to that of a controller."""

    def __init__(self, env: Any, scale: float = 1.0, sign: float = 1.0) -> None:
        super().__init__(env)
        self.hidden = [scale, sign]

    def action(self, action: Any) -> Any:
        scale, sign = self.hidden
        mapped = np.asarray(action, np.float32) * np.float32(scale)
        mapped[-1] *= sign
        return mapped


class CenterCrop(gym.ObservationWrapper[Any, Any, Any]):
    """Cuts a square out of a picture."""

    def __init__(self, env: Any, size: int = 32, left: int = 16) -> None:
        super().__init__(env)
        self.hidden = [size, left]
        self.observation_space = spaces.Box(0, 255, (size, size, 3), np.uint8)

    def observation(self, value: Any) -> Any:
        size, left = self.hidden
        return value[8 : 8 + size, left : left + size]


class PixelNoise(gym.ObservationWrapper[Any, Any, Any]):
    """Adds noise to a picture, as an augmentation does."""

    def observation(self, value: Any) -> Any:
        drawn = self.np_random.normal(0, 4, value.shape)
        return np.clip(value + drawn, 0, 255).astype(np.uint8)


class Blend(VecEnvWrapper):
    """Mixes the last two observations of a VecEnv, against flicker."""

    def __init__(self, venv: Any, weight: float) -> None:
        super().__init__(venv)
        self.hidden: list[Any] = [weight, None]

    def reset(self) -> Any:
        self.hidden[1] = self.venv.reset()
        return self.hidden[1]

    def step_wait(self) -> Any:
        value, *rest = self.venv.step_wait()
        weight, before = self.hidden
        self.hidden[1] = (weight * value + (1 - weight) * before).astype(np.float32)
        return (self.hidden[1], *rest)


def robot(parts: tuple[str, ...] = PARTS, **kwargs: Any) -> Any:
    return Robot(cheetah(), parts, **kwargs)


def pair(
    make: Callable[..., Any], before: dict[str, Any], after: dict[str, Any], *faults: Any
) -> Case:
    return Case(partial(make, **before), partial(make, **after), faults)


def normalized(mean: Any = (0.2, 0.1, -0.5), stack_first: bool = False) -> Any:
    env: Any = vec(pendulum)
    for name in ("stack", "norm") if stack_first else ("norm", "stack"):
        if name == "stack":
            env = VecFrameStack(env, 3)
        else:
            env = VecNormalize(env, training=False, norm_reward=False)
            size = env.observation_space.shape[0] // 3
            env.obs_rms.mean = np.tile(mean, size)
            env.obs_rms.var = np.tile([0.5, 0.7, 6.0], size)
    return env


def wrong_key(folder: Folder) -> None:
    statistics = folder.statistics["before"]
    statistics["observation.joints"] = statistics.pop(STATE)


def wide_actions(folder: Folder) -> None:
    for statistics in folder.statistics.values():
        if ACTION in statistics:
            for name in ("mean", "std"):
                statistics[ACTION][name] = 2 * np.asarray(statistics[ACTION][name])


def wide_eps(folder: Folder) -> None:
    step(folder, "normalizer_processor")["config"]["eps"] = 0.5


CASES: dict[str, Case] = {
    "robosuite: parts in another order": pair(
        robot,
        {},
        {"parts": ("joints", "base", "velocities")},
        fault(
            "Robot",
            "permutation",
            "feature order",
            numbers={"order": [3, 4, 5, 6, 7, 8, 0, 1, 2, *range(9, 17)]},
        ),
    ),
    "robosuite: no velocities": pair(
        robot, {}, {"parts": PARTS[:2]}, fault("Robot", "selection", "spec")
    ),
    "robosuite: goal of zeros": pair(
        robot, {}, {"goal": False}, fault("Robot", "constant", "feature scale")
    ),
    "robosuite: gripper opens instead of closing": Case(
        lambda: GripperAction(cheetah()),
        lambda: GripperAction(cheetah(), sign=-1.0),
        (fault("GripperAction", "feature scale"),),
    ),
    "robosuite: half of the output scale": Case(
        lambda: GripperAction(cheetah(), 0.1),
        lambda: GripperAction(cheetah(), 0.05),
        (fault("GripperAction", "scale", numbers={"factor": 0.5}),),
    ),
    "encoder: ImageNet in BGR": Case(
        lambda: ImgNorm(PictureEnv()),
        lambda: ImgNorm(PictureEnv(), IMAGE_MEAN[::-1], IMAGE_STD[::-1]),
        (fault("ImgNorm", "feature scale"),),
    ),
    "encoder: not divided by 255": Case(
        lambda: ImgNorm(PictureEnv()),
        lambda: ImgNorm(PictureEnv(), unit=1),
        (fault("ImgNorm", "feature scale", "scale"),),
    ),
    "encoder: half instead of ImageNet": Case(
        lambda: ImgNorm(PictureEnv()),
        lambda: ImgNorm(PictureEnv(), np.float32(0.5), np.float32(0.5)),
        (fault("ImgNorm", "feature scale"),),
    ),
    "camera: two steps late": Case(
        lambda: Delayed(pendulum(), 0),
        lambda: Delayed(pendulum(), 2),
        (fault("Delayed", "time shift", numbers={"steps": 2}),),
    ),
    "drones: newest action first": Case(
        lambda: ActionBuffer(pendulum(), 2),
        lambda: ActionBuffer(pendulum(), 2, newest_first=True),
        (
            fault(
                "ActionBuffer", "permutation", "feature order", numbers={"order": [0, 1, 2, 4, 3]}
            ),
        ),
    ),
    "drones: three actions": Case(
        lambda: ActionBuffer(pendulum(), 2),
        lambda: ActionBuffer(pendulum(), 3),
        (fault("ActionBuffer", "spec", "padding", "history", "selection"),),
    ),
    "DMC: action repeated four times": Case(
        lambda: Repeat(pendulum(), 2),
        lambda: Repeat(pendulum(), 4),
        (fault("Repeat", "inner calls"),),
    ),
    "DMC: mean of the rewards": Case(
        lambda: Repeat(pendulum(), 2),
        lambda: Repeat(pendulum(), 2, mean=True),
        (fault("Repeat", "scale", numbers={"factor": 0.5}),),
    ),
    "picture: crop four pixels to the left": Case(
        lambda: CenterCrop(PictureEnv()),
        lambda: CenterCrop(PictureEnv(), left=12),
        (fault("CenterCrop", "crop"),),
    ),
    "picture: noise on top": Case(
        PictureEnv, lambda: PixelNoise(PictureEnv()), (fault("PixelNoise", "noise"),)
    ),
    "picture: noise before gray": Case(
        lambda: wrappers.GrayscaleObservation(PictureEnv()),
        lambda: wrappers.GrayscaleObservation(PixelNoise(PictureEnv())),
        (fault("PixelNoise", "noise"),),
    ),
    "MiniGrid: another order of axes": Case(
        lambda: observe(PictureEnv(), lambda x: np.ascontiguousarray(x.transpose(2, 0, 1))),
        lambda: observe(PictureEnv(), lambda x: np.ascontiguousarray(x.transpose(2, 1, 0))),
        (fault("TransformObservation", "axis order", "spec"),),
    ),
    "cart pole: the pole in degrees": Case(
        lambda: observe(cartpole(), same),
        lambda: observe(cartpole(), lambda x: x * np.array([1, 1, 180 / np.pi, 1], np.float32)),
        (fault("TransformObservation", "feature scale"),),
    ),
    "arm: tanh of all parts": Case(
        lambda: wrappers.FlattenObservation(Arm()),
        lambda: observe(wrappers.FlattenObservation(Arm()), np.tanh),
        (fault("TransformObservation", EXTRA, "function"),),
    ),
    # The zeros before the first step are normalized too.
    "SB3: normalized after the stack": Case(
        normalized,
        lambda: normalized(stack_first=True),
        (fault("VecFrameStack", "order"),),
    ),
    "SB3: mean of another robot": Case(
        normalized,
        lambda: normalized((0.2, 0.4, -0.5)),
        (fault("VecNormalize", "value", "feature scale", says="obs_rms.mean"),),
    ),
    "SB3: flicker blended": Case(
        lambda: Blend(vec(pendulum), 1.0),
        lambda: Blend(vec(pendulum), 0.25),
        (fault("Blend", "smoothing", numbers={"weight": 0.25}),),
    ),
    "SB3: pictures not transposed": Case(
        lambda: VecTransposeImage(vec_frames()),
        vec_frames,
        (fault("VecTransposeImage", EXTRA),),
    ),
    "TorchRL: pictures half as bright, and clipped": pictures(
        [image],
        [image, lambda: rl.ObservationNorm(0.0, 0.5, in_keys=["pixels"])],
        fault("ObservationNorm", EXTRA, "scale"),
    ),
    "TorchRL: statistics permuted": chains(
        [lambda: norm(loc=torch.tensor([0.1, 0.2, 3.0]))],
        [lambda: norm(loc=torch.tensor([3.0, 0.2, 0.1]))],
        fault("ObservationNorm", "value", "feature scale", "feature order", says="loc"),
    ),
    "LeRobot: statistics under another key": case(
        wrong_key, faults=(fault(N, "argument", "state missing", "inactive", "state", "value"),)
    ),
    "LeRobot: actions twice as wide": case(
        wide_actions,
        # Recorded actions are normalized with the same statistics.
        faults=(
            fault("unnormalizer", "value", "scale", "feature scale"),
            fault(N, "value", says="action.mean"),
        ),
    ),
    "LeRobot: wide epsilon": case(wide_eps, faults=(fault(N, "argument", says="eps is 0.5"),)),
}
