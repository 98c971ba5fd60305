"""Envs of TorchRL and random chains of its transforms."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torchrl.data as data
import torchrl.envs as rl
from tensordict import TensorDict


class Camera(rl.EnvBase):  # type: ignore[misc]
    """Images, a nested vector and float64 values; rows end at random.

    Its step writes ``terminated`` only.

    Args:
        batch_size: Number of rows.
        flat: True to return rewards without the last dimension of their spec.
    """

    def __init__(self, batch_size: tuple[int, ...] = (), flat: bool = False) -> None:
        super().__init__(batch_size=batch_size, device="cpu")
        self.flat = flat
        rows = self.batch_size
        self.observation_spec = data.Composite(
            {
                "pixels": data.Bounded(0, 255, (*rows, 6, 6, 3), dtype=torch.uint8),
                "agent": data.Composite(
                    position=data.Unbounded((*rows, 2), dtype=torch.float64), shape=rows
                ),
                "observation": data.Unbounded((*rows, 3)),
            },
            shape=rows,
        )
        self.action_spec = data.Bounded(-1.0, 1.0, (*rows, 2))
        self.reward_spec = data.Unbounded((*rows, 1))
        self._set_seed(0)

    def _observe(self) -> TensorDict:
        draw = self.generator
        rows = tuple(self.batch_size)
        return TensorDict(
            {
                "pixels": torch.randint(
                    0, 256, (*rows, 6, 6, 3), generator=draw, dtype=torch.uint8
                ),
                "agent": {"position": torch.randn(*rows, 2, generator=draw, dtype=torch.float64)},
                "observation": torch.randn(*rows, 3, generator=draw),
            },
            rows,
        )

    def _reset(self, tensordict: Any = None, **kwargs: Any) -> Any:
        return self._observe()

    def _step(self, tensordict: Any) -> Any:
        result = self._observe()
        ended = torch.rand(*self.batch_size, 1, generator=self.generator) < 0.1
        reward = tensordict["action"].sum(-1, keepdim=not self.flat)
        return result.update({"reward": reward, "terminated": ended})

    def _set_seed(self, seed: int | None) -> None:
        self.generator = torch.Generator().manual_seed(0 if seed is None else seed)


def cart_pole() -> Any:
    return rl.GymEnv("CartPole-v1")


def counted_cart_pole() -> Any:
    return rl.TransformedEnv(cart_pole(), rl.StepCounter(max_steps=12))


BASES: dict[str, Callable[[], Any]] = {
    "pendulum": lambda: rl.GymEnv("Pendulum-v1"),
    "cart pole": cart_pole,
    "camera": Camera,
    "batch of cameras": lambda: Camera((3,)),
    "batch": lambda: rl.SerialEnv(3, counted_cart_pole),
}

# Stages that fit any of these envs.
COMMON: tuple[Callable[[random.Random], Any], ...] = (
    lambda draw: rl.StepCounter(max_steps=draw.randint(3, 20)),
    lambda draw: rl.RewardSum(),
    lambda draw: rl.InitTracker(),
    lambda draw: rl.RewardScaling(draw.random(), draw.uniform(0.5, 2)),
    lambda draw: rl.RewardClipping(-0.5, 0.5),
    lambda draw: rl.SignTransform(in_keys=["reward"]),
    lambda draw: rl.BinarizeReward(),
    lambda draw: rl.ClipTransform(in_keys=["observation"], low=-1.0, high=1.0),
    lambda draw: rl.VecNorm(in_keys=["observation"]),
    lambda draw: rl.VecNormV2(in_keys=["observation", "reward"], decay=0.9),
    lambda draw: rl.ObservationNorm(0.5, 2.0, in_keys=["observation"], standard_normal=True),
    lambda draw: rl.CatFrames(N=draw.randint(2, 4), dim=-1, in_keys=["observation"]),
    lambda draw: rl.UnsqueezeTransform(-1, in_keys=["observation"], out_keys=["tall"]),
    lambda draw: rl.FlattenObservation(-1, -1, in_keys=["observation"]),
    lambda draw: rl.DTypeCastTransform(torch.float32, torch.float64, in_keys=["observation"]),
    lambda draw: rl.DoubleToFloat(),
    lambda draw: rl.FiniteTensorDictCheck(),
    lambda draw: rl.TensorDictPrimer(
        {"memory": data.Unbounded((2,))}, default_value=draw.random(), expand_specs=True
    ),
    lambda draw: rl.RenameTransform(["observation"], ["seen"], create_copy=True),
    lambda draw: rl.CatTensors(["observation"], "joined", del_keys=False),
    lambda draw: rl.FrameSkipTransform(draw.randint(2, 3)),
    lambda draw: rl.TargetReturn(10.0),
    lambda draw: rl.Compose(rl.StepCounter(step_count_key="ticks"), rl.RewardScaling(0.0, 0.5)),
)
SINGLE: tuple[Callable[[random.Random], Any], ...] = (
    lambda draw: rl.NoopResetEnv(noops=draw.randint(1, 3)),
)
CONTINUOUS: tuple[Callable[[random.Random], Any], ...] = (
    lambda draw: rl.ActionDiscretizer(draw.randint(2, 5)),
)
CAMERA: tuple[Callable[[random.Random], Any], ...] = (
    lambda draw: rl.Compose(
        rl.ToTensorImage(in_keys=["pixels"]),
        rl.GrayScale(in_keys=["pixels"]),
        rl.Resize(4, in_keys=["pixels"]),
        rl.CatFrames(N=2, dim=-3, in_keys=["pixels"]),
    ),
    lambda draw: rl.CenterCrop(4, in_keys=["pixels"], out_keys=["cropped"]),
    lambda draw: rl.PermuteTransform([-1, -3, -2], in_keys=["pixels"], out_keys=["channels"]),
    lambda draw: rl.DoubleToFloat(in_keys=[("agent", "position")]),
    lambda draw: rl.ExcludeTransform("pixels"),
)


def make_chain(seed: int) -> Any:
    """Return a TorchRL env with up to six random transforms.

    Args:
        seed: Decides about the env and the transforms.
    """
    draw = random.Random(seed)
    name = draw.choice(list(BASES))
    pool = list(COMMON)
    if name in ("pendulum", "cart pole", "camera"):
        pool += SINGLE
    if name in ("pendulum", "camera"):
        pool += CONTINUOUS
    if "camera" in name:
        pool += [*CAMERA, *CAMERA]
    stages = [draw.choice(pool)(draw) for _ in range(draw.randint(1, 6))]
    return rl.TransformedEnv(BASES[name](), rl.Compose(*stages))


def differences(one: Any, other: Any) -> list[Any]:
    """Return the keys of two rollouts whose values, dtypes or shapes differ."""
    keys = set(one.keys(True, True)) | set(other.keys(True, True))
    return [
        key
        for key in keys
        if one.get(key, None) is None
        or other.get(key, None) is None
        or one[key].dtype != other[key].dtype
        or not np.array_equal(one[key].numpy(), other[key].numpy(), equal_nan=True)
    ]


def rollout(env: Any, steps: int, **options: Any) -> Any:
    """Return a seeded rollout with random actions."""
    env.set_seed(5)
    torch.manual_seed(0)
    return env.rollout(steps, **options)
