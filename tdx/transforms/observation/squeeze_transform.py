"""Remove a dim of size 1."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tdx.core.transforms import TimeBehaviour
from tdx.core.transforms.shape_transform import ShapeTransform, checked_dim, require_some_keys
from tdx.errors import ArgumentError
from tdx.keys import NestedKey


class SqueezeTransform(ShapeTransform):
    """Remove a dim of size 1; on the way in, insert it.

    Args:
        dim: the dim. Negative, so that batch dims don't matter.
        in_keys: the entries read; none by default if ``in_keys_inv`` are given.
        out_keys: the keys written; the in-keys by default.
        in_keys_inv: the inputs of the env that get the dim on the way in; none by default.
        out_keys_inv: their names outside; ``in_keys_inv`` by default.
        allow_positive_dim: whether ``dim`` may also count up from 0, for the first dim after the
            batch dims: those of the env, or of stored data.

    Raises:
        ArgumentError: there are no keys, ``dim`` is no negative integer, or (when its specs are
            computed, or in ``forward``) an entry has no such dim or one of another size.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import SqueezeTransform
        >>> squeeze = SqueezeTransform(-2, in_keys=["observation"])
        >>> squeeze(TensorDict(observation=torch.zeros(4, 1, 3)))["observation"].shape
        torch.Size([4, 3])
    """

    _is_verified = True

    time_behaviour = TimeBehaviour.POINTWISE

    def __init__(
        self,
        dim: int,
        *,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        in_keys_inv: Sequence[NestedKey] | None = None,
        out_keys_inv: Sequence[NestedKey] | None = None,
        allow_positive_dim: bool = False,
    ) -> None:
        in_keys = require_some_keys("SqueezeTransform", in_keys, in_keys_inv)
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
        return tensor.squeeze(self._place)

    def _inv_apply_transform(self, tensor: Tensor) -> Tensor:
        return tensor.unsqueeze(self._place)

    def _check_features(self, shape: torch.Size) -> None:
        count = len(shape)
        if not -count <= self.dim < count:
            raise ArgumentError(
                f"dim={self.dim} is beyond the {count} dims {tuple(shape)} after the batch dims",
                hint="count from the end: -1 is the last dim",
            )
        if shape[self.dim] != 1:
            raise ArgumentError(
                f"dim={self.dim} of {tuple(shape)} has size {shape[self.dim]}, "
                "only a dim of size 1 can be removed",
                hint="FlattenObservation joins dims of any size",
            )

    def __repr__(self) -> str:
        return f"SqueezeTransform(dim={self.dim}, keys={self.in_keys or self.in_keys_inv})"
