"""What ``EnvBase`` declares and the layers above it implement.

:mod:`tdx.core` sets it when it is imported, so that no module of this folder imports these layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tensordict import TensorDictBase

from tdx.core.envs.spec_violations import SpecViolation


@dataclass(frozen=True, slots=True)
class EnvServices:
    """Functions that implement what ``EnvBase`` declares and cannot do itself.

    Args:
        rollout: Returns a whole rollout, ``[*B, T]``; see :meth:`~tdx.core.EnvBase.rollout`.
        iter_rollout: Returns an iterator over the chunks of a rollout, each ``[*B, t]``.
        append_transform: Returns a new env with a transform around an env.
        find_stage_violations: Returns the spec violations of the stages of an env's chain.
        check_env_specs: Checks that an env returns what its specs declare.
        create_auto_reset: Returns an env around one that resets itself.
    """

    rollout: Callable[..., TensorDictBase]
    iter_rollout: Callable[..., Iterator[TensorDictBase]]
    append_transform: Callable[..., Any]
    find_stage_violations: Callable[..., list[SpecViolation]]
    check_env_specs: Callable[..., None]
    create_auto_reset: Callable[..., Any]
