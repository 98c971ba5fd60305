"""Make rewards zero or one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tdx.core.transforms import RewardTransform, TimeBehaviour
from tdx.keys import NestedKey
from tdx.specs import Binary, TensorSpec


class BinarizeReward(RewardTransform):
    """Map every reward to 1 where it is positive, and to 0 elsewhere, as int8.

    Args:
        in_keys: the rewards read; ``reward`` by default.
        out_keys: the keys written; the in-keys by default.

    Raises:
        ArgumentError: the numbers of keys differ.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import BinarizeReward
        >>> BinarizeReward()(TensorDict(reward=torch.tensor([-2.0, 0.0, 0.5])))["reward"]
        tensor([0, 0, 1], dtype=torch.int8)
    """

    _is_verified = True

    time_behaviour = TimeBehaviour.POINTWISE

    def __init__(
        self,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys)

    def _apply_transform(self, reward: Tensor) -> Tensor:
        return (reward > 0).to(torch.int8)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        return Binary(shape=spec.shape, device=spec.device)
