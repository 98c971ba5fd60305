"""``env.rollout`` and ``env.iter_rollout``: their arguments, checked and completed.

:func:`rollout` and :func:`iter_rollout` are methods of ``EnvBase``. They pass a
:class:`RolloutRequest` to :mod:`tdx.core.planned.executor`, which runs it. This folder cannot
import the executor, so they call it by ``EnvBase.services``, which ``tdx/core/__init__.py`` sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.foundation.errors import ArgumentError

Policy = Callable[[TensorDictBase], TensorDictBase]


Callback = Callable[[Any, TensorDictBase], object]
"""Called after each step with the env and that step's TensorDict."""


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


def rollout(
    env: Any,
    max_steps: int,
    policy: Policy | None = None,
    callback: Callback | None = None,
    *,
    auto_reset: bool = True,
    auto_cast_to_device: bool = False,
    break_when_any_done: bool | None = True,
    break_when_all_done: bool | None = False,
    return_contiguous: bool | None = True,
    tensordict: TensorDictBase | None = None,
    set_truncated: bool = False,
    actions: Iterable[Tensor | TensorDictBase] | None = None,
    storing_device: torch.device | str | int | None = None,
) -> TensorDictBase:
    """Step the env until it is done, at most ``max_steps`` times.

    Args:
        env: The env.
        max_steps: Maximum number of steps.
        policy: Writes the action into the TensorDict that it is called with; random actions
            by default. A module over tensors is called with the observations that its
            arguments are named after, or with all of them in order, and returns the action.
        callback: Called after each step with the env and the TensorDict of the step.
        auto_reset: If True, reset the env first.
        auto_cast_to_device: If True, the policy gets its input on its own device.
        break_when_any_done: If False, done rows are reset and the rollout continues. Otherwise
            it stops at the first done flag.
        break_when_all_done: If True, stop once every row is done.
        return_contiguous: If True, return one block; if False, a lazy stack. ``None``: one block,
            unless a declared shape varies.
        tensordict: Input of the first step if ``auto_reset`` is False.
        set_truncated: If True, mark the last step as truncated and done.
        actions: Actions to play one after another instead of a policy, each ``[*B, ...]``. If
            their number is known, the rollout has at most as many steps.
        storing_device: Device of the result; that of the env by default.

    Returns:
        TensorDict of shape ``[*B, T]``; the name of its last dim is ``time``.

    Raises:
        ArgumentError: ``max_steps`` is below 1, the input of the first step is missing, or both
            a policy and actions are given.
    """
    if actions is not None:
        if policy is not None:
            raise ArgumentError("policy and actions are both given", hint="pass one of the two")
        following, key = iter(actions), next(iter(env.full_action_spec.keys()))
        policy = lambda tensordict: tensordict.set(key, next(following))  # noqa: E731
        max_steps = min(max_steps, len(actions)) if isinstance(actions, Sized) else max_steps
    if return_contiguous is None:
        return_contiguous = not env.env_specs.has_dynamic_shapes()
    stops_at_all = bool(break_when_all_done)
    stops_at_any = break_when_any_done is not False and not stops_at_all
    result = type(env).services.rollout(
        env,
        max_steps,
        RolloutRequest(policy, callback, auto_cast_to_device, stops_at_any, stops_at_all),
        auto_reset=auto_reset,
        return_contiguous=return_contiguous,
        tensordict=tensordict,
        set_truncated=set_truncated,
    )
    return result if storing_device is None else result.to(storing_device)


def iter_rollout(
    env: Any,
    max_steps: int | None = None,
    policy: Policy | None = None,
    callback: Callback | None = None,
    *,
    chunk_steps: int | None = None,
    chunk_bytes: int | None = None,
    auto_reset: bool = True,
    auto_cast_to_device: bool = False,
    break_when_any_done: bool = False,
    tensordict: TensorDictBase | None = None,
) -> Iterator[TensorDictBase]:
    """Iterate over the chunks of a rollout of any length, in constant memory.

    The concatenated chunks equal the result of :meth:`rollout`. If a step raises, the chunk
    with the steps before it is yielded first. The other arguments are those of
    :meth:`rollout`.

    Args:
        env: The env.
        max_steps: Maximum number of steps; unlimited by default.
        policy: See :meth:`rollout`.
        callback: See :meth:`rollout`.
        chunk_steps: Number of steps of a chunk; chosen by their size by default.
        chunk_bytes: Memory of a chunk, as an alternative to ``chunk_steps``.
        auto_reset: See :meth:`rollout`.
        auto_cast_to_device: See :meth:`rollout`.
        break_when_any_done: See :meth:`rollout`.
        tensordict: See :meth:`rollout`.

    Yields:
        TensorDicts of shape ``[*B, t]``; the name of their last dim is ``time``.

    Raises:
        ArgumentError: A number of steps or a size is below 1, or both sizes are given.

    Example:
        >>> from tdx import GymEnv
        >>> chunks = GymEnv("Pendulum-v1").iter_rollout(1000, chunk_steps=400)
        >>> [chunk.shape[0] for chunk in chunks]
        [400, 400, 200]
    """
    return type(env).services.iter_rollout(
        env,
        max_steps,
        RolloutRequest(policy, callback, auto_cast_to_device, break_when_any_done, False),
        chunk_steps=chunk_steps,
        chunk_bytes=chunk_bytes,
        auto_reset=auto_reset,
        tensordict=tensordict,
    )
