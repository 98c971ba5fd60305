"""The same chain over the same env, in tdx and in TorchRL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest

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


def chain_6_env(library: Library) -> Any:
    """The env under six transforms of as many kinds."""
    lib = load(library)
    return lib.TransformedEnv(
        lib.GymEnv(ENV),
        lib.Compose(
            lib.ObservationNorm(0.1, 2.0, in_keys=["observation"]),
            lib.RewardScaling(0.0, 0.1),
            lib.RewardClipping(-1, 1),
            lib.RewardSum(),
            lib.InitTracker(),
            lib.CatFrames(4, dim=-1, in_keys=["observation"]),
        ),
    )


Maker = Callable[[Library], Any]
