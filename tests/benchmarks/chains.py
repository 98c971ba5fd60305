"""The same chain around the same env in tdx and TorchRL."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import torch
from tensordict.nn import TensorDictModule
from torch import nn

Library = Literal["tdx", "TorchRL"]
ENV = "Pendulum-v1"


def load(library: Library) -> Any:
    """Import the module with envs and transforms."""
    return import_module("torchrl.envs" if library == "TorchRL" else "tdx")


def libraries() -> tuple[Library, ...]:
    """Return tdx, and TorchRL if it is installed."""
    return ("tdx", "TorchRL") if find_spec("torchrl") else ("tdx",)


def plain_env(library: Library) -> Any:
    """Return the env without transforms."""
    return load(library).GymEnv(ENV)


def chain_6(library: Library) -> Any:
    """Return six transforms of different kinds."""
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
    """Return the env with the six transforms.

    Args:
        library: Library of the env.
        options: Arguments of ``TransformedEnv``.
    """
    lib = load(library)
    return lib.TransformedEnv(lib.GymEnv(ENV), chain_6(library), **options)


def chain_env(library: Library, stages: int, **options: Any) -> Any:
    """Return the env with a chain that repeats five kinds of transforms.

    The kinds are those of chain 6 without clipping, after which TorchRL cannot scale rewards.
    Stages that add an entry use different keys, so that all stages of a kind cost the same.

    Args:
        library: Library of the env.
        stages: Number of stages.
        options: Arguments of ``TransformedEnv``.
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
    """Return a batched native pendulum with the six transforms.

    Args:
        envs: Number of envs.
        options: Arguments of ``TransformedEnv``.
    """
    lib = load("tdx")
    return lib.TransformedEnv(lib.PendulumEnv(batch_size=[envs]), chain_6("tdx"), **options)


def serial_env(library: Library, envs: int, **options: Any) -> Any:
    """Return serial envs with the six transforms.

    Args:
        library: Library of the envs.
        envs: Number of envs.
        options: Arguments of ``TransformedEnv``.
    """
    lib = load(library)
    return lib.TransformedEnv(
        lib.SerialEnv(envs, lambda: lib.GymEnv(ENV)), chain_6(library), **options
    )


def vec_norm_env(library: Library) -> Any:
    """Return the env with observations and rewards normalized by running statistics."""
    lib = load(library)
    return lib.TransformedEnv(lib.GymEnv(ENV), lib.VecNorm())


def policy_of_stacks() -> TensorDictModule:
    """Return a small network that reads the observation of the six transforms."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 1))
    return TensorDictModule(network, in_keys=["observation"], out_keys=["action"])


Maker = Callable[[Library], Any]
