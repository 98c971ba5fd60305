"""Permute dims."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tdx.core.transforms import TimeBehavior
from tdx.core.transforms.families import ShapeTransform
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey


class PermuteTransform(ShapeTransform):
    """Permute the last dims of entries, and undo the permutation for inputs of the env.

    Args:
        dims: Permutation of the numbers from ``-len(dims)`` to -1: the source of each of the last
            ``len(dims)`` dims of the result.
        in_keys: Entries to read. Default: no keys if ``in_keys_inv`` are given.
        out_keys: Keys to write; the in-keys by default.
        in_keys_inv: Inputs of the env to map by the inverse. Default: no keys.
        out_keys_inv: Keys that the policy writes for them; ``in_keys_inv`` by default.

    Raises:
        ArgumentError: ``dims`` is not such a permutation, or (when its specs are computed) there
            are no keys, or (there or in ``forward``) an entry has fewer dims.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import PermuteTransform
        >>> channels_first = PermuteTransform((-1, -3, -2), in_keys=["pixels"])
        >>> channels_first(TensorDict(pixels=torch.zeros(2, 5, 6, 3)))["pixels"].shape
        torch.Size([2, 3, 5, 6])
    """

    _is_verified = True

    time_behavior = TimeBehavior.POINTWISE
    _needs_keys = True

    def __init__(
        self,
        dims: Sequence[int],
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        in_keys_inv: Sequence[NestedKey] | None = None,
        out_keys_inv: Sequence[NestedKey] | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        self.dims = _order(dims)
        count = len(self.dims)
        # Inverse permutation.
        self._inverse_dims = tuple(self.dims.index(dim) - count for dim in range(-count, 0))

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        return tensor.permute(*range(tensor.ndim - len(self.dims)), *self.dims)

    def _inv_apply_transform(self, tensor: Tensor) -> Tensor:
        return tensor.permute(*range(tensor.ndim - len(self.dims)), *self._inverse_dims)

    def _check_features(self, shape: torch.Size) -> None:
        if len(self.dims) > len(shape):
            raise ArgumentError(
                f"{len(self.dims)} dims cannot be permuted in an entry with {len(shape)} dims "
                f"{tuple(shape)} after the batch dims",
                hint="list each dim after the batch dims once, such as (-1, -3, -2)",
            )

    def __repr__(self) -> str:
        return f"PermuteTransform(dims={self.dims}, keys={self.in_keys or self.in_keys_inv})"


def _order(dims: Sequence[int]) -> tuple[int, ...]:
    try:
        order = tuple(dims)
    except TypeError:
        order = ()
    if not order or sorted(order) != list(range(-len(order), 0)):
        raise ArgumentError(
            f"dims must be a permutation of the numbers from -n to -1, got {dims!r}",
            hint="count from the end, so that batch dims don't matter: (-1, -3, -2) moves the "
            "channels of [H, W, C] to the front",
        )
    return order
