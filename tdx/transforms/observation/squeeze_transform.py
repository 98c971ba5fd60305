"""Remove a dim of size 1."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tdx.core.transforms import TimeBehavior
from tdx.core.transforms.families import ShapeTransform
from tdx.core.transforms.validation import check_dim
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey
from tdx.specs import TensorSpec


class SqueezeTransform(ShapeTransform):
    """Remove a dim of size 1 from entries, and insert it into inputs of the env.

    A dim of another size stays, as in ``torch.squeeze``.

    Args:
        dim: Dim to remove. Negative, so that batch dims do not count.
        in_keys: Entries to read. Default: no keys if ``in_keys_inv`` are given.
        out_keys: Keys to write; the in-keys by default.
        in_keys_inv: Inputs of the env to insert the dim into. Default: no keys.
        out_keys_inv: Keys that the policy writes for them; ``in_keys_inv`` by default.
        allow_positive_dim: Accept a dim from 0: in an env counted from the first dim after its
            batch dims, else from the first dim.

    Raises:
        ArgumentError: ``dim`` is not a negative integer, or (when its specs are computed) there
            are no keys, or (there or in ``forward``) an entry has no such dim.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import SqueezeTransform
        >>> squeeze = SqueezeTransform(-2, in_keys=["observation"])
        >>> squeeze(TensorDict(observation=torch.zeros(4, 1, 3)))["observation"].shape
        torch.Size([4, 3])
    """

    _is_verified = True

    time_behavior = TimeBehavior.POINTWISE
    _needs_keys = True

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
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        self.dim = check_dim(dim, "dim", allow_positive_dim)
        self.allow_positive_dim = allow_positive_dim
        self._set_counted_from_start(self.dim)

    @property
    def _position(self) -> int:
        return self.dim if self.dim < 0 else self.dim + self._leading

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        return tensor.squeeze(self._position)

    def _inv_apply_transform(self, tensor: Tensor) -> Tensor:
        return tensor.unsqueeze(self._position)

    def _check_features(self, shape: torch.Size) -> None:
        count = len(shape)
        if not -count <= self.dim < count:
            raise ArgumentError(
                f"dim={self.dim} is out of range for the {count} dims {tuple(shape)} after the "
                "batch dims",
                hint="count from the end: -1 is the last dim",
            )

    def _inv_transform_spec(self, spec: TensorSpec) -> TensorSpec:
        mapped = super()._inv_transform_spec(spec)
        if mapped.ndim == spec.ndim:
            raise ArgumentError(
                f"dim={self.dim} of {tuple(spec.shape)} does not have size 1, so it cannot be "
                "inserted into the input of the env",
                hint="remove the key from in_keys_inv",
            )
        return mapped

    def __repr__(self) -> str:
        return f"SqueezeTransform(dim={self.dim}, keys={self.in_keys or self.in_keys_inv})"
