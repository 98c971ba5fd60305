"""Cast doubles to floats."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tdx.core.transforms import TimeBehaviour
from tdx.keys import NestedKey
from tdx.transforms.casting.dtype_cast_transform import DTypeCastTransform


class DoubleToFloat(DTypeCastTransform):
    """Cast float64 to float32 on the way out, and back to float64 on the way in.

    Args:
        in_keys: the entries cast on the way out; by default every float64 observation and
            reward. Where they are given, nothing else is cast.
        out_keys: the keys written; the in-keys by default.
        in_keys_inv: the env's inputs that are cast on the way in; by default every float64
            action and state, or none where ``in_keys`` are given.
        out_keys_inv: their names outside; ``in_keys_inv`` by default.

    Raises:
        ArgumentError: the numbers of keys differ.
        ChainError: an entry asked for is not float64 (when its specs are computed).

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import DoubleToFloat
        >>> DoubleToFloat()(TensorDict(observation=torch.zeros(1).double()))["observation"].dtype
        torch.float32
    """

    _is_verified = True

    time_behaviour = TimeBehaviour.POINTWISE

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
