"""Maximum over the last steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tdx.core.transforms import TimeBehavior
from tdx.core.transforms.episodes import Window
from tdx.core.transforms.validation import check_integer
from tdx.core.transforms.windows import WindowTransform
from tdx.foundation.keys import NestedKey
from tdx.specs import Binary, Bounded, MultiOneHot, OneHot, TensorSpec


class TimeMaxPool(WindowTransform):
    """Take the elementwise maximum over the last ``T`` steps of the episode.

    Before the start of an episode entries count as zero. In stored data ``[*B, T]`` the maximum
    is taken in the same way, at the root and in ``next``, and never across the end of an episode.

    Args:
        in_keys: Entries to read; ``observation`` by default.
        out_keys: Keys to write; the in-keys by default.
        T: Number of steps.
        reset_key: Reset mask to follow; that of the entry's group by default.

    Raises:
        ArgumentError: ``T`` is not an integer of at least 1, or the numbers of keys differ.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import TimeMaxPool
        >>> stored = TensorDict(
        ...     {"observation": torch.tensor([[3.0], [1.0], [2.0]]),
        ...      "next": {"done": torch.tensor([[False], [False], [False]])}},
        ...     batch_size=[3],
        ... )
        >>> TimeMaxPool(T=2)(stored)["observation"].flatten()
        tensor([3., 3., 2.])
    """

    _is_verified = True

    time_behavior = TimeBehavior.SCAN
    default_in_keys = ("observation",)

    def __init__(
        self,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        T: int = 1,
        reset_key: NestedKey | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, reset_key=reset_key)
        self.T = check_integer(T, "T", 1, "for example T=2")

    @property
    def _size(self) -> int:
        return self.T

    @property
    def _constant(self) -> float | None:
        return 0.0

    def _combine(self, window: Window, out: Tensor | None = None) -> Tensor:
        if len(window) == 1:
            return window[0].clone() if out is None else out.copy_(window[0])
        result = torch.maximum(window[0], window[1], out=out)
        for entry in window[2:]:
            result = torch.maximum(result, entry, out=out)
        return result

    def _combined_shape(self, shape: torch.Size) -> torch.Size:
        return shape

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        if self.T == 1:
            return spec
        if isinstance(spec, (OneHot, MultiOneHot)):
            dtype = torch.bool if spec.dtype is None else spec.dtype
            return Binary(shape=spec.shape, dtype=dtype, device=spec.device)
        if not isinstance(spec, Bounded):
            return spec
        # The first maximum of an episode is that of an entry and zero.
        high = spec.high.clamp_min(0)
        return Bounded(spec.low, high, shape=spec.shape, dtype=spec.dtype, device=spec.device)

    def __repr__(self) -> str:
        return f"TimeMaxPool(T={self.T}, keys={self.in_keys})"
