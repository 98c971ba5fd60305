"""Base class of transforms that normalize by running statistics."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from tdx.core.transforms.kernels import TimeBehavior
from tdx.core.transforms.statistics import Lock, RunningStatistics, float_dtype
from tdx.core.transforms.validation import check_positive
from tdx.foundation.errors import ChainError, Where
from tdx.foundation.keys import NestedKey
from tdx.specs import TensorSpec, Unbounded


class RunningNorm(RunningStatistics):
    """Maps values to ``(value - loc) / scale``, both from running statistics.

    A subclass defines :meth:`_loc_and_scale`.

    Args:
        in_keys: Entries to read.
        out_keys: Keys to write; the in-keys by default.
        lock: Lock to hold while statistics are updated or read.
        decay: Factor by which each update multiplies the weight of earlier values.
        eps: Smallest variance or scale.

    Raises:
        ArgumentError: ``decay`` is not in (0, 1], ``eps`` is not above 0, or the numbers of keys
            differ.
    """

    time_behavior = TimeBehavior.SCAN

    def __init__(
        self,
        in_keys: Sequence[NestedKey] | None,
        out_keys: Sequence[NestedKey] | None,
        lock: Lock | None,
        decay: float,
        eps: float,
    ) -> None:
        super().__init__(in_keys, out_keys)
        hint = "for example decay=0.9999 and eps=1e-4"
        self.decay = check_positive(decay, "decay", 1.0, hint)
        self.eps = check_positive(eps, "eps", math.inf, hint)
        self.lock = lock

    @abstractmethod
    def _loc_and_scale(self, moments: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return what values ``[*B, ...]`` are mapped by, given moments ``[3, ...]``."""

    def _transform_spec(self, spec: Any) -> TensorSpec:
        return Unbounded(shape=spec.shape, dtype=float_dtype(spec.dtype), device=spec.device)

    def _map_values(self, value: Tensor, moments: Tensor) -> Tensor:
        loc, scale = self._loc_and_scale(moments, float_dtype(value.dtype))
        return (value - loc) / scale

    def _held(self, key: NestedKey) -> Tensor:
        """Return the moments of an in-key, ``[3, ...]``.

        Raises:
            ChainError: There are no statistics yet.
        """
        held = self._buffers[self._names[key]]
        if held is None:
            raise ChainError(
                f"{type(self).__name__} has no statistics yet",
                hint="step its env first",
                where=Where(key=key),
            )
        return held

    @property
    def standard_normal(self) -> bool:
        """Always true, since values are mapped to ``(value - loc) / scale``."""
        return True

    def iter_affine(self) -> Iterator[tuple[NestedKey, NestedKey, Tensor, Tensor]]:
        """Yield in-key, out-key, location and scale of each entry, by the current statistics.

        Raises:
            ChainError: There are no statistics yet.
        """
        for in_key, out_key in self._pairs:
            dtype = self._dtypes.get(in_key, torch.get_default_dtype())
            yield (in_key, out_key, *self._loc_and_scale(self._held(in_key), dtype))

    def __repr__(self) -> str:
        state = ", frozen" if self._frozen else ""
        name = type(self).__name__
        return f"{name}(decay={self.decay:g}, eps={self.eps:g}, keys={self.in_keys}{state})"
