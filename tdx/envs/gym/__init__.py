"""Gymnasium's envs as tdx envs.

Names resolve on first use, so that ``tdx.envs.gym.registry`` loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tdx.envs.gym.gym_env import GymEnv
    from tdx.envs.gym.gym_wrapper import GymWrapper
    from tdx.envs.gym.infos import default_info_dict_reader
    from tdx.envs.gym.registry import RegisteredEnv, available_envs

_MODULES = {
    "GymEnv": "gym_env",
    "GymWrapper": "gym_wrapper",
    "RegisteredEnv": "registry",
    "available_envs": "registry",
    "default_info_dict_reader": "infos",
}

__all__ = [
    "GymEnv",
    "GymWrapper",
    "RegisteredEnv",
    "available_envs",
    "default_info_dict_reader",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
