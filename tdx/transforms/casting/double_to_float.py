"""Cast float64 to float32."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tdx.core.transforms import TimeBehavior
from tdx.foundation.keys import NestedKey
from tdx.transforms.casting.dtype_cast_transform import DTypeCastTransform


class DoubleToFloat(DTypeCastTransform):
    """Cast the output of an env from float64 to float32, and its input back to float64.

    Args:
        in_keys: Entries to cast; all float64 observations and rewards by default.
        out_keys: Keys to write; the in-keys by default.
        in_keys_inv: Inputs of the env to cast back; by default all float64 actions and states,
            or none if ``in_keys`` are given.
        out_keys_inv: Keys that the policy writes for them; ``in_keys_inv`` by default.

    Raises:
        ArgumentError: The numbers of keys differ.
        ChainError: A given entry is not float64 (when its specs are computed).

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import DoubleToFloat
        >>> DoubleToFloat()(TensorDict(observation=torch.zeros(1).double()))["observation"].dtype
        torch.float32
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
        super().__init__(torch.float64, torch.float32, in_keys, out_keys, in_keys_inv, out_keys_inv)

    def __repr__(self) -> str:
        return f"DoubleToFloat({self._key_repr()})"
