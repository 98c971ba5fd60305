"""Connects the methods that ``EnvBase`` declares to the modules that implement them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensordict import TensorDictBase

from tdx.core.chain_specs import find_stage_violations
from tdx.core.envs.env_base import EnvBase
from tdx.core.envs.services import RolloutRequest
from tdx.core.envs.spec_violations import SpecViolation
from tdx.core.planned import executor
from tdx.core.transformed_env import TransformedEnv


class CoreServices:
    """Rollouts, chains and checks; implements :class:`~tdx.core.envs.services.EnvServices`."""

    def rollout(
        self, env: EnvBase, max_steps: int, request: RolloutRequest, **options: Any
    ) -> TensorDictBase:
        """Return a whole rollout, ``[*B, T]``."""
        return executor.rollout(env, max_steps, request, **options)

    def iter_rollout(
        self, env: EnvBase, max_steps: int | None, request: RolloutRequest, **options: Any
    ) -> Iterator[TensorDictBase]:
        """Return an iterator over the chunks of a rollout, each ``[*B, t]``."""
        return executor.iter_rollout(env, max_steps, request, **options)

    def append_transform(self, env: EnvBase, transform: Any) -> TransformedEnv:
        """Return a new env with a transform around ``env``."""
        return TransformedEnv(env, transform)

    def find_stage_violations(
        self, env: EnvBase, check_dtype: bool, tensordict: TensorDictBase | None, steps: int
    ) -> list[SpecViolation]:
        """Return the spec violations of the stages of an env's chain."""
        return find_stage_violations(env, check_dtype, tensordict, steps)


def connect_services() -> None:
    """Set the services on ``EnvBase``; called when ``tdx.core`` is imported."""
    EnvBase._services = CoreServices()
