"""Clip entries into a range."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tdx.core.transforms import TimeBehavior
from tdx.core.transforms.parameters import ScalarTransform
from tdx.core.transforms.spec_maps import clamped, require_some_keys
from tdx.core.transforms.validation import check_number, check_range
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey
from tdx.specs import TensorSpec
from tdx.specs.bounded import clip


class ClipTransform(ScalarTransform):
    """Clip entries of the env's output or input into ``[low, high]``.

    The bounds are buffers, so they are part of ``state_dict``. The action spec is unchanged: the
    policy's actions are clipped before the env takes them.

    Args:
        in_keys: Entries of the env's output to read. Default: no keys.
        out_keys: Keys to write; the in-keys by default.
        in_keys_inv: Entries of the env's input to write. Default: no keys.
        out_keys_inv: Keys that the policy writes; ``in_keys_inv`` by default.
        low: Lower bound. ``None``: unbounded below.
        high: Upper bound. ``None``: unbounded above.

    Raises:
        ArgumentError: There are no keys or no bounds, ``low`` is not below ``high``, or a bound
            is not a number.
        ChainError: No value of an entry's dtype is within the bounds (when its specs are
            computed).

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import ClipTransform
        >>> clip = ClipTransform(in_keys=["observation"], low=-1, high=0.5)
        >>> clip(TensorDict(observation=torch.tensor([-3.0, 0.0, 3.0])))["observation"]
        tensor([-1.0000,  0.0000,  0.5000])
    """

    _is_verified = True

    time_behavior = TimeBehavior.POINTWISE
    scalar_names = ("low", "high")
    low: Tensor | None
    high: Tensor | None

    def __init__(
        self,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        in_keys_inv: Sequence[NestedKey] | None = None,
        out_keys_inv: Sequence[NestedKey] | None = None,
        *,
        low: float | None = None,
        high: float | None = None,
    ) -> None:
        in_keys = require_some_keys("ClipTransform", in_keys, in_keys_inv)
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        first, last = (
            check_number(value, name, self.scalar_hint)
            for name, value in zip(self.scalar_names, (low, high), strict=True)
        )
        if first is None and last is None:
            raise ArgumentError("ClipTransform needs low or high", hint="for example low=-1.0")
        check_range(first, last, self.scalar_names)
        if first == last:
            raise ArgumentError(
                f"low and high are both {first}, so every value would become the same",
                hint="choose a range that is not empty",
            )
        self._set_scalars(
            low=None if first is None else float(first), high=None if last is None else float(last)
        )

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        return clip(tensor, *self._scalars.values())

    def _inv_apply_transform(self, tensor: Tensor) -> Tensor:
        return clip(tensor, *self._scalars.values())

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        return clamped(spec, *self._scalars.values())
