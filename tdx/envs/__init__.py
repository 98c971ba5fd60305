"""Environments: Gymnasium envs, batches of envs, and envs implemented in torch.

Names are resolved lazily, so that listing the registered env ids does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tdx.core.envs import ActionSequence, EnvBase, step_mdp
    from tdx.core.spec_check import check_env_specs
    from tdx.envs.batched import EnvCreator, ParallelEnv, SerialEnv
    from tdx.envs.gym.gym_env import GymEnv
    from tdx.envs.gym.gym_wrapper import GymWrapper
    from tdx.envs.gym.infos import default_info_dict_reader
    from tdx.envs.native import CartPoleEnv, PendulumEnv

_MODULES = {
    "ActionSequence": "tdx.core.envs",
    "CartPoleEnv": "tdx.envs.native",
    "EnvBase": "tdx.core.envs",
    "EnvCreator": "tdx.envs.batched",
    "GymEnv": "tdx.envs.gym.gym_env",
    "GymWrapper": "tdx.envs.gym.gym_wrapper",
    "ParallelEnv": "tdx.envs.batched",
    "PendulumEnv": "tdx.envs.native",
    "SerialEnv": "tdx.envs.batched",
    "check_env_specs": "tdx.core.spec_check",
    "default_info_dict_reader": "tdx.envs.gym.infos",
    "step_mdp": "tdx.core.envs",
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
    "check_env_specs",
    "default_info_dict_reader",
    "step_mdp",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Later uses find the name without this function.
    found = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return found
