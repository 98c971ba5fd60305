"""Terminate episodes by a custom condition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.env_specs import DoneGroup, done_groups
from tdx.core.transforms import TimeBehavior, Transform
from tdx.core.transforms.spec_maps import missing_key_error, require_composite, with_entries
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey, normalize_key, split_key
from tdx.foundation.tensordicts import read, write
from tdx.specs import Categorical, Composite


class TerminateTransform(Transform):
    """Set ``terminated`` if a function of the step's output returns true.

    Flags set by the env are kept. Every group of done flags gets the flag. In stored data the
    flags under ``next`` are set, or those at the root if there is no ``next``.

    Args:
        stop: Function of the output of a step, ``[*B]``, which it must not change. Returns a bool
            or a tensor of shape ``[*B]``, ``[*B, 1]`` or that of the done flags.
        write_done: Set ``done`` too.

    Raises:
        ArgumentError: ``stop`` is not a function; or, in a step, its result is not a bool or has
            another shape.

    Example:
        >>> from tdx import GymEnv, TerminateTransform, TransformedEnv
        >>> def far(tensordict):
        ...     return tensordict["observation"][..., 0].abs() > 0.1
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), TerminateTransform(far))
        >>> env.rollout(1000)["next", "terminated"][-1]
        tensor([True])
    """

    _is_verified = True

    time_behavior = TimeBehavior.CONTROL

    def __init__(self, stop: Callable[[TensorDictBase], Any], *, write_done: bool = True) -> None:
        if not callable(stop):
            raise ArgumentError(
                f"stop must be a function of a TensorDict, got {stop!r}",
                hint='for example lambda td: td["observation"][..., 0] > 1',
            )
        super().__init__()
        self.stop = stop
        self.write_done = write_done
        self._groups: tuple[DoneGroup, ...] = ()

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        self._groups = done_groups(output_spec["full_done_spec"])

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """Return the spec of the done flags with the terminated flags."""
        require_composite(done_spec)
        added = {
            group.sibling("terminated"): Categorical(
                2, shape=group.shape, dtype=torch.bool, device=group.device
            )
            for group in done_groups(done_spec)
            if not group.has("terminated")
        }
        return with_entries(done_spec, added) if added else done_spec

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        stop = self._stops(next_tensordict)
        for group in self._groups:
            ended = _fit_flags(stop, group.shape, next_tensordict.ndim)
            for name in self._names:
                key = group.sibling(name)
                flag = read(next_tensordict, key)
                if flag is not None:
                    write(next_tensordict, key, flag | ended)
                elif name == "terminated":
                    write(next_tensordict, key, ended.clone())
        return next_tensordict

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        for group in self._groups:
            key = group.sibling("terminated")
            if read(tensordict_reset, key) is None:
                zeros = torch.zeros(group.shape, dtype=torch.bool, device=group.device)
                write(tensordict_reset, key, zeros)
        return tensordict_reset

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Set the flags of stored data ``[*B]`` in place.

        Raises:
            KeyNotFoundError: It has no flag to set.
        """
        level = tensordict.get("next", None)
        level = tensordict if level is None else level
        keys = [normalize_key(key) for key in level.keys(True, True)]
        flags = [key for key in keys if split_key(key)[-1] in self._names]
        if not flags:
            raise missing_key_error("terminated", keys, "the stored data")
        stop = self._stops(level)
        for key in flags:
            flag = level.get(key)
            level.set(key, flag | _fit_flags(stop, flag.shape, level.ndim))
        return tensordict

    @property
    def written_keys(self) -> tuple[NestedKey, ...]:
        return tuple(group.sibling(name) for group in self._groups for name in self._names)

    @property
    def _names(self) -> tuple[str, ...]:
        return ("terminated", "done") if self.write_done else ("terminated",)

    def _stops(self, tensordict: TensorDictBase) -> Tensor:
        """Return the result of ``stop`` as bools."""
        result = self.stop(tensordict)
        try:
            stops = torch.as_tensor(result, device=tensordict.device)
        except (TypeError, ValueError, RuntimeError):
            raise ArgumentError(
                f"stop returned {type(result).__name__} instead of a bool or a tensor",
                hint='return the condition: `return td["observation"][..., 0] > 1`',
            ) from None
        return stops if stops.dtype is torch.bool else stops != 0

    def __repr__(self) -> str:
        name = getattr(self.stop, "__qualname__", repr(self.stop))
        return f"TerminateTransform({name})"


def _fit_flags(stop: Tensor, shape: torch.Size, batch_dims: int) -> Tensor:
    """Return a condition ``[]``, ``[*B]`` or ``[*B, 1]`` shaped like a flag, ``[*B, *G, 1]``."""
    batch = shape[:batch_dims]
    if stop.ndim == 0 or stop.shape == shape:
        return stop.expand(shape)
    if stop.numel() == batch.numel() and stop.shape[:batch_dims] == batch:
        return stop.reshape(*batch, *[1] * (len(shape) - batch_dims)).expand(shape)
    raise ArgumentError(
        f"stop returned shape {tuple(stop.shape)}, the done flag has {tuple(shape)}",
        hint=f"return one bool for each env, of shape {tuple(batch)}",
    )
