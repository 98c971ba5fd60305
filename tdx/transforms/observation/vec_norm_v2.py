"""Normalize by running statistics, of each env or of a whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.transforms import Compose
from tdx.core.transforms.kernels import ChunkKernel
from tdx.core.transforms.running_norm import RunningNorm
from tdx.core.transforms.spec_maps import missing_key_error
from tdx.core.transforms.statistics import (
    Lock,
    add_values,
    empty_moments,
    float_dtype,
    leaf_spec,
)
from tdx.errors import ArgumentError
from tdx.keys import NestedKey, normalize_key
from tdx.specs import Composite
from tdx.tensordicts import read
from tdx.transforms.observation.observation_norm import ObservationNorm
from tdx.transforms.observation.vec_norm import fixed_norm


class VecNormV2(RunningNorm):
    """Normalize values to ``(value - loc) / scale``, with statistics of each env of a batch.

    The values are those of TorchRL's transform of this name: with ``decay`` below 1 its variance
    starts too large, by ``loc ** 2`` times the weight that earlier values lack. ``VecNorm`` has
    no such bias. Statistics continue across episodes, and are not updated in eval mode or once
    frozen. They are buffers, so they are part of ``state_dict``, and envs made by the same
    ``EnvCreator`` share them across processes.

    Args:
        in_keys: Entries to read.
        out_keys: Keys to write; the in-keys by default.
        lock: Lock to hold while statistics are updated or read. ``EnvCreator`` provides one.
        stateful: Keep the statistics in the transform; they are never kept in the data.
        decay: Factor by which each update multiplies the weight of earlier values; 1 weighs all
            values the same.
        eps: Smallest scale.
        shared_data: Statistics to start with: ``loc``, ``var`` (the mean of the squares) and
            ``count``, each with the in-keys.
        reduce_batch_dims: Keep one set of statistics for the whole batch.

    Raises:
        ArgumentError: ``decay`` is not in (0, 1], ``eps`` is not above 0, ``stateful`` is false,
            or the numbers of keys differ.
        KeyNotFoundError: The env has no such entry (when its specs are computed), or
            ``shared_data`` lacks one.
        ChainError: The statistics have another shape than the entry.

    Example:
        >>> from tdx import GymEnv, TransformedEnv, VecNormV2
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), VecNormV2(["observation"], decay=1.0))
        >>> rollout = env.rollout(100)
        >>> env.transform.count["observation"]
        tensor(101., dtype=torch.float64)
    """

    _is_verified = True

    def __init__(
        self,
        in_keys: Sequence[NestedKey],
        out_keys: Sequence[NestedKey] | None = None,
        *,
        lock: Lock | None = None,
        stateful: bool = True,
        decay: float = 0.9999,
        eps: float = 1e-4,
        shared_data: TensorDictBase | None = None,
        reduce_batch_dims: bool = False,
    ) -> None:
        super().__init__(in_keys, out_keys, lock, decay, eps)
        if not stateful:
            raise ArgumentError(
                "statistics that are part of the data are not supported",
                hint="use stateful=True, and EnvCreator to share statistics between envs",
            )
        self.stateful = stateful
        self.reduce_batch_dims = reduce_batch_dims
        self._batch_dims = 0
        for key, name in self._names.items() if shared_data is not None else ():
            self._buffers[name] = self._moments_of(shared_data, key)

    def _moments_of(self, shared: Any, key: NestedKey) -> Tensor:
        """Return given statistics as moments, ``[3, ...]``."""
        loc, squares = shared.get(("loc", key), None), shared.get(("var", key), None)
        steps = shared.get(("count", key), None)
        if loc is None or squares is None or steps is None:
            known = [normalize_key(each) for each in shared.keys(True, True)]
            raise missing_key_error(normalize_key(("loc", key)), known, "shared_data")
        steps = torch.as_tensor(steps).double()
        moments = empty_moments(loc.shape, loc.device)
        lacking = 1 - self.decay
        total = (1 - self.decay**steps) / lacking if lacking else steps
        unit = 1 / lacking if lacking else steps
        moments[0], moments[1], moments[2] = loc * unit, squares * unit, total
        return moments

    # Statistics

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        self._batch_dims = len(output_spec.shape)
        if self.reduce_batch_dims or not self._batch_dims:
            super()._bind(input_spec, output_spec)
            return
        for key, name in self._names.items():
            if self._missing_tolerance and all(key not in part for part in output_spec.values()):
                continue
            spec = leaf_spec(output_spec, key)
            self._dtypes[key] = float_dtype(spec.dtype)
            self._require(key, name, spec.shape, spec.device)

    def _update_and_map(self, key: NestedKey, value: Tensor, rows: Tensor | None = None) -> Tensor:
        statistics = self._buffers[self._names[key]]
        assert statistics is not None
        if value.ndim == statistics.ndim - 1:
            return super()._update_and_map(key, value, rows)
        with self.lock or nullcontext():
            if self.training and not self._frozen:
                self._add_mean(statistics, value, rows)
            current = statistics.clone()
        return self._map_values(value, current)

    def _add_mean(self, statistics: Tensor, value: Tensor, rows: Tensor | None) -> None:
        """Add the mean of a batch ``[*B, ...]``, with the weight of its values one by one."""
        added = torch.zeros_like(statistics)
        add_values(added, value, 1.0, rows)
        count = added[2]
        kept = self.decay**count
        weight = count if self.decay == 1 else (1 - kept) / (1 - self.decay)
        statistics.mul_(kept).add_(added / count.clamp_min(1) * weight)

    def _chunk_kernel(self) -> ChunkKernel | None:
        # In a batch, rows that are not reset keep their statistics, or count together.
        return None if self._batch_dims else super()._chunk_kernel()

    def _loc_and_scale(self, moments: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        total, squares, count = moments.unbind(0)
        none = count <= 0
        count = count.masked_fill(none, 1.0)
        loc = total / count
        # The average of an exponential window is corrected, its square is not.
        square = loc * loc if self.decay == 1 else total * total * (1 - self.decay) / count
        scale = (squares / count - square).clamp_min(0).sqrt().clamp_min(self.eps)
        return loc.to(dtype), scale.masked_fill(none, 1.0).to(dtype)

    @property
    def scale(self) -> TensorDictBase:
        """Divisor of each in-key, float64."""
        return self._by_key(lambda held: self._loc_and_scale(held, held.dtype)[1])

    def denorm(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return a shallow copy with the normalization inverted by the current statistics.

        Args:
            tensordict: Data ``[*B]`` with the out-keys at the root; the in-keys are written.

        Raises:
            ChainError: There are no statistics yet.
        """
        result: TensorDictBase = tensordict.copy()
        for in_key, out_key in self._pairs:
            value = read(tensordict, out_key)
            if value is not None:
                loc, scale = self._loc_and_scale(self._held(in_key), value.dtype)
                result.set(in_key, value * scale + loc)
        return result

    def to_observation_norm(self) -> ObservationNorm | Compose:
        """Return a transform that normalizes by the current statistics.

        Returns:
            ``ObservationNorm``; for several in-keys a ``Compose`` with one for each.

        Raises:
            ChainError: There are no statistics yet.
        """
        return fixed_norm(self)
