"""The same chain over the same env, in tdx and in TorchRL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

Library = Literal["tdx", "TorchRL"]
ENV = "Pendulum-v1"


def load(library: Library) -> Any:
    """The module that has envs and transforms; skips where TorchRL is not installed."""
    if library == "TorchRL":
        return pytest.importorskip("torchrl.envs")
    return pytest.importorskip("tdx")


def plain_env(library: Library) -> Any:
    """The env without transforms."""
    return load(library).GymEnv(ENV)


def chain_6(library: Library) -> Any:
    """Six transforms of as many kinds."""
    lib = load(library)
    return lib.Compose(
        lib.ObservationNorm(0.1, 2.0, in_keys=["observation"]),
        lib.RewardScaling(0.0, 0.1),
        lib.RewardClipping(-1, 1),
        lib.RewardSum(),
        lib.InitTracker(),
        lib.CatFrames(4, dim=-1, in_keys=["observation"]),
    )


def chain_6_env(library: Library, **options: Any) -> Any:
    """The env under the six transforms.

    Args:
        library: whose.
        options: given to ``TransformedEnv``.
    """
    lib = load(library)
    return lib.TransformedEnv(lib.GymEnv(ENV), chain_6(library), **options)


def chain_env(library: Library, stages: int, **options: Any) -> Any:
    """The env under as many transforms, of the same five kinds in turns.

    They are chain 6 without the clipping, after which TorchRL lets no reward be scaled. Those that
    add an entry add one of their own each, so that all stages of a kind cost the same.

    Args:
        library: whose.
        stages: how many.
        options: given to ``TransformedEnv``.
    """
    lib = load(library)
    kinds: tuple[Callable[[int], Any], ...] = (
        lambda _: lib.ObservationNorm(0.1, 1.1, in_keys=["observation"]),
        lambda _: lib.RewardScaling(0.0, 0.9),
        lambda place: lib.RewardSum(in_keys=["reward"], out_keys=[f"sum_{place}"]),
        lambda place: lib.InitTracker(f"init_{place}"),
        lambda place: lib.CatFrames(
            4, dim=-1, in_keys=["observation"], out_keys=[f"stack_{place}"]
        ),
    )
    chain = [kinds[place % len(kinds)](place) for place in range(stages)]
    return lib.TransformedEnv(lib.GymEnv(ENV), lib.Compose(*chain), **options)


def native_env(envs: int, **options: Any) -> Any:
    """A batched pendulum in tensors under the six transforms.

    Args:
        envs: how many.
        options: given to ``TransformedEnv``.
    """
    lib = load("tdx")
    return lib.TransformedEnv(lib.PendulumEnv(batch_size=[envs]), chain_6("tdx"), **options)


def serial_env(library: Library, envs: int, **options: Any) -> Any:
    """Several envs in turns under the six transforms.

    Args:
        library: whose.
        envs: how many.
        options: given to ``TransformedEnv``.
    """
    lib = load(library)
    return lib.TransformedEnv(
        lib.SerialEnv(envs, lambda: lib.GymEnv(ENV)), chain_6(library), **options
    )


def vec_norm_env(library: Library) -> Any:
    """The env with its observations and rewards normalised by running statistics."""
    lib = load(library)
    return lib.TransformedEnv(lib.GymEnv(ENV), lib.VecNorm())


def policy_of_stacks() -> TensorDictModule:
    """A small network that reads the observation of the six transforms."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 1))
    return TensorDictModule(network, in_keys=["observation"], out_keys=["action"])


Maker = Callable[[Library], Any]
