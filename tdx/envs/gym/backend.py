"""The library behind Gymnasium envs, for code that chooses it."""

from __future__ import annotations

from contextlib import ContextDecorator
from types import ModuleType
from typing import Any

from tdx.errors import ArgumentError


class set_gym_backend(ContextDecorator):  # noqa: N801
    """Accept Gymnasium as the library of envs; tdx supports no other.

    Args:
        backend: ``gymnasium`` or the module.

    Raises:
        ArgumentError: Another library is chosen.

    Example:
        >>> from tdx import GymEnv
        >>> with set_gym_backend("gymnasium"):
        ...     env = GymEnv("CartPole-v1")
    """

    def __init__(self, backend: str | ModuleType) -> None:
        name = backend.__name__ if isinstance(backend, ModuleType) else backend
        if name != "gymnasium":
            raise ArgumentError(
                f"unknown backend {name!r}", hint="port the env to Gymnasium, or wrap it"
            )

    def set(self) -> None:
        """Use the library from now on."""

    def __enter__(self) -> None:
        self.set()

    def __exit__(self, *exception: Any) -> None:
        """Leave the library as it is."""
