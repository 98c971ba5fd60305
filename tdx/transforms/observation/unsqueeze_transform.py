"""Insert a dim of size 1."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tdx.core.transforms import TimeBehavior
from tdx.core.transforms.families import ShapeTransform
from tdx.core.transforms.validation import check_dim
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey


class UnsqueezeTransform(ShapeTransform):
    """Insert a dim of size 1 into entries, and remove it from inputs of the env.

    Args:
        dim: Position of the new dim in the result. Negative, so that batch dims do not count.
        allow_positive_dim: Accept a dim from 0: in an env counted from the first dim after its
            batch dims, else from the first dim.
        in_keys: Entries to read. Default: no keys if ``in_keys_inv`` are given.
        out_keys: Keys to write; the in-keys by default.
        in_keys_inv: Inputs of the env to remove the dim from. Default: no keys.
        out_keys_inv: Keys that the policy writes for them; ``in_keys_inv`` by default.

    Raises:
        ArgumentError: ``dim`` is not a negative integer, or (when its specs are computed) there
            are no keys, or an entry has too few dims.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import UnsqueezeTransform
        >>> unsqueeze = UnsqueezeTransform(-2, in_keys=["observation"])
        >>> unsqueeze(TensorDict(observation=torch.zeros(4, 3)))["observation"].shape
        torch.Size([4, 1, 3])
    """

    _is_verified = True

    time_behavior = TimeBehavior.POINTWISE
    _needs_keys = True

    def __init__(
        self,
        dim: int,
        *,
        allow_positive_dim: bool = False,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        in_keys_inv: Sequence[NestedKey] | None = None,
        out_keys_inv: Sequence[NestedKey] | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        self.dim = check_dim(dim, "dim", allow_positive_dim)
        self.allow_positive_dim = allow_positive_dim
        self._set_counted_from_start(self.dim)

    @property
    def _position(self) -> int:
        return self.dim if self.dim < 0 else self.dim + self._leading

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        return tensor.unsqueeze(self._position)

    def _inv_apply_transform(self, tensor: Tensor) -> Tensor:
        return tensor.squeeze(self._position)

    def _check_features(self, shape: torch.Size) -> None:
        count = len(shape)
        if not -count - 1 <= self.dim <= count:
            raise ArgumentError(
                f"dim={self.dim} is out of range for the {count} dims {tuple(shape)} after the "
                "batch dims",
                hint=f"use {-count - 1} to -1",
            )

    def __repr__(self) -> str:
        return f"UnsqueezeTransform(dim={self.dim}, keys={self.in_keys or self.in_keys_inv})"
