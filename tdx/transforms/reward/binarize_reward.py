"""Map rewards to zero or one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tdx.core.transforms import RewardTransform, TimeBehavior
from tdx.foundation.keys import NestedKey
from tdx.specs import Binary, TensorSpec


class BinarizeReward(RewardTransform):
    """Map positive rewards to 1 and all others to 0, as int8.

    Args:
        in_keys: Rewards to read; ``reward`` by default.
        out_keys: Keys to write; the in-keys by default.

    Raises:
        ArgumentError: The numbers of keys differ.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import BinarizeReward
        >>> BinarizeReward()(TensorDict(reward=torch.tensor([-2.0, 0.0, 0.5])))["reward"]
        tensor([0, 0, 1], dtype=torch.int8)
    """

    _is_verified = True

    time_behavior = TimeBehavior.POINTWISE

    def __init__(
        self,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys)

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        return (tensor > 0).to(torch.int8)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        return Binary(shape=spec.shape, device=spec.device)
