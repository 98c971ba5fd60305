"""Insert a dim of size 1."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tdx.core.transforms import TimeBehaviour
from tdx.core.transforms.shape_transform import ShapeTransform, checked_dim, require_some_keys
from tdx.errors import ArgumentError
from tdx.keys import NestedKey


class UnsqueezeTransform(ShapeTransform):
    """Insert a dim of size 1; on the way in, remove it.

    Args:
        dim: where it is in the result. Negative, so that batch dims don't matter.
        allow_positive_dim: whether ``dim`` may also count up from 0, for the first dim after the
            batch dims: those of the env, or of stored data.
        in_keys: the entries read; none by default if ``in_keys_inv`` are given.
        out_keys: the keys written; the in-keys by default.
        in_keys_inv: the inputs of the env that lose the dim on the way in; none by default.
        out_keys_inv: their names outside; ``in_keys_inv`` by default.

    Raises:
        ArgumentError: there are no keys, ``dim`` is no negative integer, or (when its specs are
            computed) an entry has too few dims for it.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import UnsqueezeTransform
        >>> unsqueeze = UnsqueezeTransform(-2, in_keys=["observation"])
        >>> unsqueeze(TensorDict(observation=torch.zeros(4, 3)))["observation"].shape
        torch.Size([4, 1, 3])
    """

    _is_verified = True

    time_behaviour = TimeBehaviour.POINTWISE

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
        in_keys = require_some_keys("UnsqueezeTransform", in_keys, in_keys_inv)
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        self.dim = checked_dim(dim, "dim", allow_positive_dim)
        self.allow_positive_dim = allow_positive_dim
        if self.dim >= 0:
            # A block of steps has leading dims where a single step has none.
            self.time_behaviour = TimeBehaviour.CONTROL

    @property
    def _place(self) -> int:
        return self.dim if self.dim < 0 else self.dim + self._leading

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        return tensor.unsqueeze(self._place)

    def _inv_apply_transform(self, tensor: Tensor) -> Tensor:
        return tensor.squeeze(self._place)

    def _check_features(self, shape: torch.Size) -> None:
        count = len(shape)
        if not -count - 1 <= self.dim <= count:
            raise ArgumentError(
                f"dim={self.dim} is beyond the {count} dims {tuple(shape)} after the batch dims",
                hint=f"from {-count - 1} to -1",
            )

    def __repr__(self) -> str:
        return f"UnsqueezeTransform(dim={self.dim}, keys={self.in_keys or self.in_keys_inv})"
