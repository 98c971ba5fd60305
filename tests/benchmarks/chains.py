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


def chain_6_env(library: Library) -> Any:
    """The env under the six transforms."""
    lib = load(library)
    return lib.TransformedEnv(lib.GymEnv(ENV), chain_6(library))


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
