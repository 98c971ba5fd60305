"""Construction of env classes and envs.

Specs may change until the constructor of an env returns, and are locked then. What ``EnvBase``
declares and the layers above it implement is set by :mod:`tdx.core` when it is imported, so that
no module of this folder imports these layers.
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tensordict import TensorDictBase

from tdx.core.envs.spec_violations import SpecViolation


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


@dataclass(frozen=True, slots=True)
class EnvServices:
    """Functions that implement what ``EnvBase`` declares and cannot do itself.

    Args:
        rollout: Returns a whole rollout, ``[*B, T]``; see :meth:`~tdx.core.EnvBase.rollout`.
        iter_rollout: Returns an iterator over the chunks of a rollout, each ``[*B, t]``.
        append_transform: Returns a new env with a transform around an env.
        find_stage_violations: Returns the spec violations of the stages of an env's chain.
        check_env_specs: Checks that an env returns what its specs declare.
    """

    rollout: Callable[..., TensorDictBase]
    iter_rollout: Callable[..., Iterator[TensorDictBase]]
    append_transform: Callable[..., Any]
    find_stage_violations: Callable[..., list[SpecViolation]]
    check_env_specs: Callable[..., None]
