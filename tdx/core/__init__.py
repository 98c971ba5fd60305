"""Envs, transforms and chains: the base classes, the plan of a rollout and its execution, tracing.

Public names resolve on first use; they are listed in ``__init__.pyi``. The import of this package
connects the methods of ``EnvBase`` to the modules that implement them.
"""

from __future__ import annotations

import lazy_loader

from tdx.core.auto_reset import create_auto_reset_env
from tdx.core.envs import EnvBase
from tdx.core.envs.capabilities import EnvServices
from tdx.core.planned import executor
from tdx.core.spec_check import check_env_specs as _check_env_specs
from tdx.core.tracing.spec_violations import find_stage_violations
from tdx.core.transformed_env import TransformedEnv

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

EnvBase.services = EnvServices(
    executor.rollout,
    executor.iter_rollout,
    TransformedEnv,
    find_stage_violations,
    _check_env_specs,
    create_auto_reset_env,
)
