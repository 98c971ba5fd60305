"""Replace values by their signs."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tdx.core.transforms import TimeBehavior, Transform
from tdx.core.transforms.spec_maps import map_bounds, require_some_keys
from tdx.foundation.keys import NestedKey
from tdx.specs import Bounded, TensorSpec


class SignTransform(Transform):
    """Replace values of the env's output or input by their signs: -1, 0 or 1.

    Entries keep their dtype. The action spec is unchanged: the env takes the signs of the
    policy's actions.

    Args:
        in_keys: Entries of the env's output to read. Default: no keys.
        out_keys: Keys to write; the in-keys by default.
        in_keys_inv: Entries of the env's input to write. Default: no keys.
        out_keys_inv: Keys that the policy writes; ``in_keys_inv`` by default.

    Raises:
        ArgumentError: There are no keys, or the numbers of keys differ.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import SignTransform
        >>> SignTransform(["reward"])(TensorDict(reward=torch.tensor([-3.0, 0.0, 0.5])))["reward"]
        tensor([-1.,  0.,  1.])
    """

    _is_verified = True

    time_behavior = TimeBehavior.POINTWISE

    def __init__(
        self,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        in_keys_inv: Sequence[NestedKey] | None = None,
        out_keys_inv: Sequence[NestedKey] | None = None,
    ) -> None:
        in_keys = require_some_keys("SignTransform", in_keys, in_keys_inv)
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        return tensor.sign()

    def _inv_apply_transform(self, tensor: Tensor) -> Tensor:
        return tensor.sign()

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        if isinstance(spec, Bounded):
            return map_bounds(spec, self._apply_transform)
        is_signed = spec.dtype is None or spec.dtype.is_signed
        low = -1 if is_signed else 0
        return Bounded(low, 1, shape=spec.shape, device=spec.device, dtype=spec.dtype)

    def _inv_transform_spec(self, spec: TensorSpec) -> TensorSpec:
        return spec
