"""Envs: the base class, Gymnasium's envs, batches of envs, native envs.

Names resolve on first use, so that reading the list of registered ids loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tdx.core.envs import ActionSequence, EnvBase, step_mdp
    from tdx.envs.batched import EnvCreator, ParallelEnv, SerialEnv
    from tdx.envs.gym import GymEnv, GymWrapper, default_info_dict_reader
    from tdx.envs.native import CartPoleEnv, PendulumEnv

_MODULES = {
    "ActionSequence": "base",
    "CartPoleEnv": "native",
    "EnvBase": "base",
    "EnvCreator": "batched",
    "GymEnv": "gym",
    "GymWrapper": "gym",
    "ParallelEnv": "batched",
    "PendulumEnv": "native",
    "SerialEnv": "batched",
    "default_info_dict_reader": "gym",
    "step_mdp": "base",
}

__all__ = [
    "ActionSequence",
    "CartPoleEnv",
    "EnvBase",
    "EnvCreator",
    "GymEnv",
    "GymWrapper",
    "ParallelEnv",
    "PendulumEnv",
    "SerialEnv",
    "default_info_dict_reader",
    "step_mdp",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
