"""Flatten dims of an action."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.transforms import TimeBehavior
from tdx.core.transforms.families import ActionTransform, action_leaf, batch_dims_of
from tdx.core.transforms.spec_maps import unlocked_copy
from tdx.foundation.errors import ArgumentError, ChainError, Where
from tdx.foundation.keys import NestedKey, format_key
from tdx.foundation.tensordicts import read, write
from tdx.specs import Composite, TensorSpec


class FlattenAction(ActionTransform):
    """Take flat actions from the policy, and restore their dims for the env.

    Stored actions are flattened.

    Args:
        first_dim: First dim to flatten, counted from the end: -1 is the last.
        last_dim: Last dim to flatten.
        in_keys_inv: Actions of the env; ``action`` by default.
        out_keys_inv: Keys that the policy writes; ``in_keys_inv`` by default.
        in_keys: Actions in stored data; ``in_keys_inv`` by default.
        out_keys: Keys to write in stored data; the in-keys by default.
        allow_positive_dim: Accept dims from 0, which include the batch dims.
        action_shape: Sizes of the flattened dims, for use without an env. ``None``: from the
            action spec.

    Raises:
        ArgumentError: A dim is not negative without ``allow_positive_dim``, the dims are in the
            wrong order, or ``action_shape`` does not have one size for each.
        ChainError: An action has no such dims, or they are batch dims (when its specs are
            computed); or an action is restored without an env and without ``action_shape``.
        KeyNotFoundError: The env has no such action (when its specs are computed).

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import FlattenAction
        >>> flatten = FlattenAction(action_shape=[2, 3])
        >>> flatten(TensorDict(action=torch.zeros(4, 2, 3)))["action"].shape
        torch.Size([4, 6])
        >>> flatten.inv(TensorDict(action=torch.zeros(4, 6)))["action"].shape
        torch.Size([4, 2, 3])
    """

    _is_verified = True

    time_behavior = TimeBehavior.POINTWISE

    def __init__(
        self,
        first_dim: int = -2,
        last_dim: int = -1,
        in_keys_inv: Sequence[NestedKey] | None = None,
        out_keys_inv: Sequence[NestedKey] | None = None,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        allow_positive_dim: bool = False,
        *,
        action_shape: Sequence[int] | None = None,
    ) -> None:
        super().__init__(in_keys_inv, out_keys_inv, in_keys, out_keys)
        if not allow_positive_dim and (first_dim >= 0 or last_dim >= 0):
            raise ArgumentError(
                f"the dims {first_dim} to {last_dim} count from the front, where an env may have "
                "batch dims",
                hint="count from the end, or set allow_positive_dim=True",
            )
        if (first_dim < 0) == (last_dim < 0) and first_dim > last_dim:
            raise ArgumentError(
                f"first_dim ({first_dim}) comes after last_dim ({last_dim})",
                hint="swap the two",
            )
        self.first_dim, self.last_dim = first_dim, last_dim
        self.allow_positive_dim = allow_positive_dim
        self.action_shape = None if action_shape is None else torch.Size(action_shape)
        if self.action_shape is not None and (first_dim < 0) == (last_dim < 0):
            count = last_dim - first_dim + 1
            if len(self.action_shape) != count:
                raise ArgumentError(
                    f"action_shape {list(self.action_shape)} has {len(self.action_shape)} sizes, "
                    f"the dims {first_dim} to {last_dim} are {count}",
                    hint="pass one size for each flattened dim",
                )
        # Counted from the end once the number of dims is known from an env.
        self._dims = first_dim, last_dim
        # Position of the flat dim, counted from the end, and the sizes it replaces, per action.
        self._spans: dict[NestedKey, tuple[int, torch.Size]] = {}

    # Data

    def _apply_transform(self, action: Tensor) -> Tensor:
        return action.flatten(*self._dims)

    def _inv_apply_transform(self, action: Tensor) -> Tensor:
        if len(self.in_keys_inv) != 1:
            raise ArgumentError(
                "the sizes of the restored dims differ by key, and a lone tensor has none",
                hint="call inv() with a TensorDict",
            )
        return self._restore(self.in_keys_inv[0], action)

    def _restore(self, key: NestedKey, action: Tensor) -> Tensor:
        span = self._spans.get(key)
        if span is None:
            if self.action_shape is None or self.last_dim >= 0:
                raise ChainError(
                    "FlattenAction cannot restore dims of unknown size",
                    hint="pass action_shape, or put the transform into an env",
                    where=Where(key=key),
                )
            span = self.last_dim, self.action_shape
        return action.unflatten(*span)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        for in_key, out_key in self._inverse_pairs:
            value = read(tensordict, out_key)
            if value is not None:
                write(tensordict, in_key, self._restore(in_key, value))
            elif not self._missing_tolerance:
                raise self._missing_key(out_key, tensordict)
        return tensordict

    # Specs

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        actions = input_spec["full_action_spec"]
        self._spans = {}
        for key in self.in_keys_inv:
            spec = action_leaf(input_spec, key)
            self._spans[key] = self._span(spec, batch_dims_of(actions, key), key)

    def _span(self, spec: TensorSpec, batch_dims: int, key: NestedKey) -> tuple[int, torch.Size]:
        dims = spec.ndim
        first, last = (dim + dims if dim < 0 else dim for dim in (self.first_dim, self.last_dim))
        if not batch_dims <= first <= last < dims:
            raise ChainError(
                f"the action {format_key(key)!r} has shape {tuple(spec.shape[batch_dims:])} "
                f"after its batch dims, without dims {self.first_dim} to {self.last_dim}",
                hint="remove FlattenAction, or choose dims that the action has",
                where=Where(key=key),
            )
        sizes = spec.shape[first : last + 1]
        if self.action_shape is not None and sizes != self.action_shape:
            raise ChainError(
                f"the dims {self.first_dim} to {self.last_dim} of the action have the sizes "
                f"{list(sizes)}, but action_shape is {list(self.action_shape)}",
                hint="remove action_shape in an env",
                where=Where(key=key),
            )
        self._dims = first - dims, last - dims
        return last - dims, sizes

    @property
    def _is_bound(self) -> bool:  # type: ignore[override]
        return bool(self._spans)

    def _map_inverse_spec(self, spec: Composite) -> Composite:
        result = unlocked_copy(spec)
        for in_key, out_key in self._inverse_pairs:
            inner = spec.get(in_key, None)
            if inner is not None:
                flat_dim, sizes = self._spans[in_key]
                last = inner.ndim + flat_dim
                del result[in_key]
                result[out_key] = inner.flatten(last - len(sizes) + 1, last)
        return result

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """Return the state spec unchanged."""
        return state_spec

    def __repr__(self) -> str:
        return (
            f"FlattenAction(first_dim={self.first_dim}, last_dim={self.last_dim}, "
            f"keys={self.in_keys_inv})"
        )
