"""Sum the elements of vector rewards."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tdx.core.transforms import RewardTransform, TimeBehavior
from tdx.core.transforms.validation import check_finite
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey
from tdx.specs import Bounded, TensorSpec, Unbounded


class LineariseRewards(RewardTransform):
    """Replace rewards with several objectives, ``[*B, n]``, by a weighted sum, ``[*B, 1]``.

    The weights are a buffer, so they are part of ``state_dict``. Without weights, integer rewards
    are summed in int64.

    Args:
        in_keys: Rewards to read.
        out_keys: Keys to write; the in-keys by default.
        weights: Weight of each objective, the same for all rewards. ``None``: 1 for each.

    Raises:
        ArgumentError: ``weights`` has more than one dim or is not finite, or (when its specs are
            computed, or in a call) there are more or fewer weights than objectives.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import LineariseRewards
        >>> total = LineariseRewards(["reward"], weights=[1.0, 0.5])
        >>> total(TensorDict(reward=torch.tensor([2.0, 4.0])))["reward"]
        tensor([4.])
    """

    _is_verified = True

    time_behavior = TimeBehavior.POINTWISE
    weights: Tensor | None

    def __init__(
        self,
        in_keys: Sequence[NestedKey],
        out_keys: Sequence[NestedKey] | None = None,
        *,
        weights: Sequence[float] | Tensor | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys)
        given = None if weights is None else check_finite(weights, "weights")
        if given is not None and given.ndim > 1:
            raise ArgumentError(
                f"weights has {given.ndim} dims, shape {tuple(given.shape)}",
                hint="pass one number for each objective: weights=[1.0, 0.5]",
            )
        self.register_buffer("weights", given)

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        weights = self._buffers["weights"]
        self._check_count(tensor.shape)
        weighted = tensor if weights is None else weights * tensor
        return weighted.sum(-1, keepdim=True)

    def _check_count(self, shape: torch.Size) -> None:
        weights = self._buffers["weights"]
        if not shape:
            raise ArgumentError(
                "LineariseRewards sums the last dim, but the reward is a scalar without dims",
                hint="name a reward [*B, n] in in_keys",
            )
        if weights is not None and weights.numel() != shape[-1]:
            raise ArgumentError(
                f"{weights.numel()} weights for {shape[-1]} objectives",
                hint="pass one weight for each",
            )

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        self._check_count(spec.shape)
        example = self._apply_transform(spec.zero())
        if not isinstance(spec, Bounded):
            return Unbounded(example.shape, example.device, example.dtype)
        weights = self._buffers["weights"]
        ends = spec.low, spec.high
        if weights is not None:
            products = [torch.where(weights == 0, 0, weights * end) for end in ends]
            ends = torch.minimum(*products), torch.maximum(*products)
        low, high = (end.sum(-1, keepdim=True) for end in ends)
        return Bounded(low, high, shape=low.shape, device=low.device, dtype=low.dtype)

    def __repr__(self) -> str:
        weights = self._buffers["weights"]
        listed = "" if weights is None else f"weights={weights.flatten().tolist()}, "
        return f"LineariseRewards({listed}keys={self.in_keys})"
