"""Clip rewards into a range."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from tdx.core.transforms import RewardTransform, TimeBehaviour
from tdx.errors import ArgumentError, ChainError
from tdx.keys import NestedKey
from tdx.specs import Binary, Bounded, TensorSpec

_NAMES = ("clamp_min", "clamp_max")


class RewardClipping(RewardTransform):
    """Clip every reward into ``[clamp_min, clamp_max]``.

    The bounds are buffers, so ``state_dict`` has them. Casting the transform leaves them as they
    are, since rewards keep their dtype.

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

    time_behaviour = TimeBehaviour.POINTWISE
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
        low, high = _bound(clamp_min, "clamp_min"), _bound(clamp_max, "clamp_max")
        if low is not None and high is not None and low > high:
            raise ArgumentError(
                f"clamp_min ({clamp_min}) is above clamp_max ({clamp_max})",
                hint="swap the two",
            )
        # Read in each step, where Python numbers clip in any dtype and tensors must be looked up.
        self._bounds = (low, high)
        for name, value in zip(_NAMES, self._bounds, strict=True):
            self.register_buffer(name, _as_tensor(value))

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _NAMES or name not in self.__dict__.get("_buffers", {}):
            super().__setattr__(name, value)
            return
        bounds = list(self._bounds)
        bounds[_NAMES.index(name)] = number = _bound(value, name)
        self._bounds = (bounds[0], bounds[1])
        held = self._buffers[name]
        super().__setattr__(name, _as_tensor(number, None if held is None else held.device))
        self._changed()

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        low, high = self._bounds
        if low is None and high is None:
            return tensor.clone()
        return tensor.clamp(low, high)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        if self._bounds == (None, None):
            return spec
        probe = torch.zeros((), dtype=spec.dtype)
        try:
            dtype = self._apply_transform(probe).dtype
        except RuntimeError as error:
            raise ChainError(
                f"no reward of {spec.dtype} is within the bounds {self._bounds}",
                hint="choose bounds that the reward can reach, or cast it with DTypeCastTransform",
            ) from error
        low, high = (self._clipped(end, spec, dtype) for end in _ends(spec))
        return Bounded(low, high, shape=spec.shape, dtype=dtype, device=spec.device)

    def _clipped(self, end: Tensor, spec: TensorSpec, dtype: torch.dtype) -> Tensor:
        """One end of the rewards' range, clipped, in the dtype of the clipped rewards."""
        wide = end.to(dtype) if dtype.is_floating_point else end.to(torch.int64)
        clipped = wide.clamp(*self._bounds)
        if not dtype.is_floating_point:
            limits = torch.iinfo(dtype)
            clipped = clipped.clamp(limits.min, limits.max)
        return clipped.to(dtype).expand(spec.shape)

    # State

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        for name, value in zip(_NAMES, self._bounds, strict=True):
            held = self._buffers[name]
            if held is not None:
                self._buffers[name] = _as_tensor(value, held.device)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Take over the bounds, also where there were none; a state with none keeps them."""
        found = {name: state_dict.get(prefix + name) for name in _NAMES}
        if all(value is None for value in found.values()):
            state_dict |= {
                prefix + name: held for name in _NAMES if (held := self._buffers[name]) is not None
            }
        for name, value in found.items():
            if value is not None:
                setattr(self, name, value)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __repr__(self) -> str:
        low, high = self._bounds
        return f"RewardClipping(clamp_min={low}, clamp_max={high}, keys={self.in_keys})"


def _bound(value: Any, name: str) -> float | None:
    if value is None:
        return None
    hint = "for example -1.0, or None for no bound"
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number and not (isinstance(value, Tensor) and value.numel() == 1):
        raise ArgumentError(f"{name} must be a number, got {value!r}", hint=hint)
    number: float = value.item() if isinstance(value, Tensor) else value
    if math.isnan(number):
        raise ArgumentError(f"{name} must be a number, got NaN", hint=hint)
    return number


def _as_tensor(value: float | None, device: torch.device | None = None) -> Tensor | None:
    """Return a bound as a tensor, in float64 where the default dtype would round it."""
    if value is None:
        return None
    found = torch.as_tensor(value)
    if found.item() != value:
        found = torch.as_tensor(value, dtype=torch.float64)
    return found if device is None else found.to(device)


def _ends(spec: TensorSpec) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest value of a reward spec."""
    dtype, device = spec.dtype or torch.get_default_dtype(), spec.device
    if isinstance(spec, Bounded):
        return spec.low, spec.high
    low, high = -math.inf, math.inf
    if isinstance(spec, Binary) or dtype is torch.bool:
        low, high = 0, 1
    elif not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        low, high = limits.min, limits.max
    kind = dtype if dtype.is_floating_point else torch.int64
    ends = (torch.full(spec.shape, end, dtype=kind, device=device) for end in (low, high))
    return next(ends), next(ends)
