"""Clip rewards into a range."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tdx.core.transforms import RewardTransform, TimeBehavior
from tdx.core.transforms.parameters import ScalarTransform
from tdx.core.transforms.spec_maps import clamped
from tdx.core.transforms.validation import check_range
from tdx.foundation.keys import NestedKey
from tdx.specs import TensorSpec
from tdx.specs.bounded import clip


class RewardClipping(ScalarTransform, RewardTransform):
    """Clip every reward into ``[clamp_min, clamp_max]``.

    The bounds are buffers, so they are part of ``state_dict``. Casting the transform does not
    change them, since rewards keep their dtype.

    Args:
        clamp_min: Lower bound. ``None``: unbounded below.
        clamp_max: Upper bound. ``None``: unbounded above.
        in_keys: Rewards to read; ``reward`` by default.
        out_keys: Keys to write; the in-keys by default.

    Raises:
        ArgumentError: ``clamp_min`` is above ``clamp_max``, or a bound is not a number.
        ChainError: No reward of the env's dtype is within a bound (when its specs are computed).

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import RewardClipping
        >>> RewardClipping(-1.0, 1.0)(TensorDict(reward=torch.tensor([3.0])))["reward"]
        tensor([1.])
    """

    _is_verified = True

    time_behavior = TimeBehavior.POINTWISE
    scalar_names = ("clamp_min", "clamp_max")
    clamp_min: Tensor | None
    clamp_max: Tensor | None

    def __init__(
        self,
        clamp_min: float | None = None,
        clamp_max: float | None = None,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys)
        self._set_scalars(clamp_min=clamp_min, clamp_max=clamp_max)
        low, high = self._scalars.values()
        check_range(low, high, self.scalar_names)

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        low, high = self._scalars.values()
        return tensor.clone() if low is None and high is None else clip(tensor, low, high)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        return clamped(spec, *self._scalars.values())
