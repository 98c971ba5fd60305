"""What an env asks of the layers that are built on it: rollouts, chains, checks of a chain.

``EnvBase`` declares the methods. :mod:`tdx.core` sets the functions that implement them when it is
imported, so that no module of this folder imports the layers above it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from tensordict import TensorDictBase

from tdx.core.envs.spec_violations import SpecViolation

Policy = Callable[[TensorDictBase], TensorDictBase]


class Callback(Protocol):
    """Called after each step with the env and that step's TensorDict."""

    def __call__(self, env: Any, tensordict: TensorDictBase, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """Arguments of a rollout; see :meth:`~tdx.core.envs.EnvBase.rollout`."""

    policy: Any
    callback: Callback | None
    auto_cast_to_device: bool
    break_when_any_done: bool
    break_when_all_done: bool

    @property
    def breaks(self) -> bool:
        """True if a done flag ends the rollout."""
        return self.break_when_any_done or self.break_when_all_done


@dataclass(frozen=True, slots=True)
class EnvServices:
    """Functions that implement what ``EnvBase`` declares and cannot do itself.

    Args:
        rollout: Returns a whole rollout, ``[*B, T]``; see :meth:`~tdx.core.EnvBase.rollout`.
        iter_rollout: Returns an iterator over the chunks of a rollout, each ``[*B, t]``.
        append_transform: Returns a new env with a transform around an env.
        find_stage_violations: Returns the spec violations of the stages of an env's chain.
    """

    rollout: Callable[..., TensorDictBase]
    iter_rollout: Callable[..., Iterator[TensorDictBase]]
    append_transform: Callable[..., Any]
    find_stage_violations: Callable[..., list[SpecViolation]]
