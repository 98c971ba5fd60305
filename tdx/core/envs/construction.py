"""Construction of envs: specs may change until the constructor returns, and are locked then."""

from __future__ import annotations

from abc import ABCMeta
from typing import Any


class EnvMeta(ABCMeta):
    """Metaclass of envs: locks the specs once an env is constructed.

    A constructor may set specs before or after ``super().__init__()``, and change them in place.
    With the keyword argument ``spec_locked=False`` they stay unlocked afterwards.
    """

    def __call__(cls, *args: Any, spec_locked: bool = True, **kwargs: Any) -> Any:
        """Create an env and lock its specs."""
        env = super().__call__(*args, **kwargs)
        if isinstance(env, cls) and spec_locked:
            env._specs.lock()
        return env
