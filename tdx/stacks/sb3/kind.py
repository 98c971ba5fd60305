"""Stable-Baselines3 VecEnv or algorithm: what the adapter opens."""

from __future__ import annotations

from tdx.stacks.kinds import BuiltinKind
from tdx.stacks.stack import Stack


def _open(target: object) -> Stack:
    from tdx.stacks.sb3.stack import StableBaselines3Stack

    return StableBaselines3Stack(target)


KIND = BuiltinKind(
    "a Stable-Baselines3 VecEnv or algorithm",
    (
        "stable_baselines3.common.vec_env.base_vec_env:VecEnv",
        "stable_baselines3.common.base_class:BaseAlgorithm",
    ),
    _open,
)
