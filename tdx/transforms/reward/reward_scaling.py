"""Scale and shift rewards."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tdx.core.transforms import RewardTransform, TimeBehavior
from tdx.core.transforms.parameters import AffineTransform
from tdx.foundation.keys import NestedKey


class RewardScaling(AffineTransform, RewardTransform):
    """Map every reward to ``reward * scale + loc``.

    Args:
        loc: Offset.
        scale: Factor; broadcasts with the reward.
        in_keys: Rewards to read; ``reward`` by default.
        out_keys: Keys to write; the in-keys by default.
        standard_normal: Map to ``(reward - loc) / scale`` instead.

    Raises:
        ArgumentError: ``loc`` or ``scale`` is not a finite number or tensor.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import RewardScaling
        >>> RewardScaling(loc=1.0, scale=0.5)(TensorDict(reward=torch.tensor([4.0])))["reward"]
        tensor([3.])
    """

    _is_verified = True

    time_behavior = TimeBehavior.POINTWISE

    def __init__(
        self,
        loc: float | Tensor,
        scale: float | Tensor,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        standard_normal: bool = False,
    ) -> None:
        super().__init__(in_keys, out_keys)
        self._set_affine(loc, scale, standard_normal)
