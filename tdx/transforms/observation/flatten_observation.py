"""Flatten adjacent dims into one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tdx.core.transforms import TimeBehavior
from tdx.core.transforms.families import ShapeTransform
from tdx.core.transforms.validation import check_dim
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey


class FlattenObservation(ShapeTransform):
    """Flatten the dims from ``first_dim`` to ``last_dim`` into one.

    Args:
        first_dim: First dim to flatten. Negative, so that batch dims do not count.
        last_dim: Last dim to flatten.
        in_keys: Observations to read; ``pixels`` by default.
        out_keys: Keys to write; the in-keys by default.
        allow_positive_dim: Accept dims from 0: in an env counted from the first dim after its
            batch dims, else from the first dim.

    Raises:
        ArgumentError: A dim is not a negative integer, the first dim comes after the last, or
            (when its specs are computed, or in ``forward``) an observation has no such dims.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import FlattenObservation
        >>> flatten = FlattenObservation(-3, -1)
        >>> flatten(TensorDict(pixels=torch.zeros(8, 3, 4, 5)))["pixels"].shape
        torch.Size([8, 60])
    """

    _is_verified = True

    time_behavior = TimeBehavior.POINTWISE
    default_in_keys = ("pixels",)

    def __init__(
        self,
        first_dim: int,
        last_dim: int,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        allow_positive_dim: bool = False,
    ) -> None:
        super().__init__(in_keys, out_keys)
        self.first_dim = check_dim(first_dim, "first_dim", allow_positive_dim)
        self.last_dim = check_dim(last_dim, "last_dim", allow_positive_dim)
        self.allow_positive_dim = allow_positive_dim
        if (self.first_dim < 0) == (self.last_dim < 0) and self.first_dim > self.last_dim:
            raise ArgumentError(
                f"first_dim={first_dim} comes after last_dim={last_dim}", hint="swap them"
            )
        self._set_counted_from_start(self.first_dim, self.last_dim)

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        first, last = (
            dim if dim < 0 else dim + self._leading for dim in (self.first_dim, self.last_dim)
        )
        return tensor.flatten(first, last)

    def _check_features(self, shape: torch.Size) -> None:
        count = len(shape)
        for name in ("first_dim", "last_dim"):
            dim = getattr(self, name)
            if not -count <= dim < count:
                raise ArgumentError(
                    f"{name}={dim} is out of range for the {count} dims {tuple(shape)} after the "
                    "batch dims",
                    hint="count from the end: -1 is the last dim",
                )
        if self.first_dim % count > self.last_dim % count:
            raise ArgumentError(
                f"first_dim={self.first_dim} comes after last_dim={self.last_dim} "
                f"in {tuple(shape)}",
                hint="swap them",
            )

    def __repr__(self) -> str:
        return (
            f"FlattenObservation(first_dim={self.first_dim}, last_dim={self.last_dim}, "
            f"keys={self.in_keys})"
        )
