"""Clip rewards into a range."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tdx.errors import ArgumentError
from tdx.keys import NestedKey
from tdx.specs import Bounded, TensorSpec
from tdx.transforms.base import RewardTransform, TimeBehaviour


class RewardClipping(RewardTransform):
    """Clip every reward into ``[clamp_min, clamp_max]``.

    Args:
        clamp_min: the smallest reward let through; none for no lower end.
        clamp_max: the largest reward let through; none for no upper end.
        in_keys: the rewards read.
        out_keys: the keys written; the in-keys by default.

    Raises:
        ArgumentError: ``clamp_min`` is above ``clamp_max``, or an end is not a number.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import RewardClipping
        >>> RewardClipping(-1.0, 1.0)(TensorDict(reward=torch.tensor([3.0])))["reward"]
        tensor([1.])
    """

    time_behaviour = TimeBehaviour.POINTWISE

    def __init__(
        self,
        clamp_min: float | None = None,
        clamp_max: float | None = None,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys)
        self.clamp_min = _end(clamp_min, "clamp_min")
        self.clamp_max = _end(clamp_max, "clamp_max")
        if (
            self.clamp_min is not None
            and self.clamp_max is not None
            and self.clamp_min > self.clamp_max
        ):
            raise ArgumentError(f"clamp_min ({clamp_min}) is above clamp_max ({clamp_max})")

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        if self.clamp_min is None and self.clamp_max is None:
            return tensor.clone()
        return tensor.clamp(self.clamp_min, self.clamp_max)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        if self.clamp_min is None and self.clamp_max is None:
            return spec
        dtype = self._apply_transform(torch.zeros((), dtype=spec.dtype)).dtype
        low, high = torch.full(spec.shape, -math.inf), torch.full(spec.shape, math.inf)
        if isinstance(spec, Bounded):
            low, high = spec.low, spec.high
        return Bounded(
            self._apply_transform(low).to(dtype),
            self._apply_transform(high).to(dtype),
            shape=spec.shape,
            dtype=dtype,
            device=spec.device,
        )

    def __repr__(self) -> str:
        return (
            f"RewardClipping(clamp_min={self.clamp_min}, clamp_max={self.clamp_max}, "
            f"keys={self.in_keys})"
        )


def _end(value: float | None, name: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float, Tensor)):
        raise ArgumentError(f"{name} must be a number, got {value!r}")
    end = value.item() if isinstance(value, Tensor) else value
    if math.isnan(end):
        raise ArgumentError(f"{name} must be a number, got NaN")
    return end
