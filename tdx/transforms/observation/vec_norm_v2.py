"""Normalize by running statistics, of each env or of a whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.transforms import Compose
from tdx.core.transforms.kernels import ChunkKernel, DictStep, TimeBehavior
from tdx.core.transforms.scan import reset_rows
from tdx.core.transforms.spec_maps import missing_key_error, with_entries
from tdx.core.transforms.statistics import (
    Lock,
    RunningNorm,
    add_values,
    empty_moments,
    float_dtype,
    leaf_spec,
)
from tdx.foundation.errors import ArgumentError, StoredDataError, Where
from tdx.foundation.keys import NestedKey, join_keys, normalize_key
from tdx.foundation.tensordicts import read, write
from tdx.specs import Composite, TensorSpec, Unbounded
from tdx.transforms.observation.observation_norm import ObservationNorm, fixed_norm

_CARRIED = ("_vecnorm_loc", "_vecnorm_var", "_vecnorm_count")
"""Groups of the statistics in the data, if the transform keeps none."""


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
        stateful: Keep the statistics in the transform. If False, each step reads them from its
            input and writes them to its output: ``_vecnorm_loc``, ``_vecnorm_var`` (the mean of
            the squares) and ``_vecnorm_count``, each with the in-keys. A reset without input
            starts new ones.
        decay: Factor by which each update multiplies the weight of earlier values; 1 weighs all
            values the same.
        eps: Smallest scale.
        shared_data: Statistics to start with: ``loc``, ``var`` (the mean of the squares) and
            ``count``, each with the in-keys.
        reduce_batch_dims: Keep one set of statistics for the whole batch.

    Raises:
        ArgumentError: ``decay`` is not in (0, 1], ``eps`` is not above 0, ``shared_data`` or
            ``reduce_batch_dims`` is given without ``stateful``, or the numbers of keys differ.
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
        if not stateful and (shared_data is not None or reduce_batch_dims):
            raise ArgumentError(
                "shared_data and reduce_batch_dims are for statistics in the transform",
                hint="use stateful=True",
            )
        self.stateful = stateful
        if not stateful:
            self.time_behavior = TimeBehavior.CONTROL
        self.reduce_batch_dims = reduce_batch_dims
        self._batch_dims = 0
        self._specs_of: dict[NestedKey, Any] = {}
        if shared_data is None:
            return
        for key, name in self._names.items():
            loc, squares, steps = (
                shared_data.get((statistic, key), None) for statistic in ("loc", "var", "count")
            )
            if loc is None or squares is None or steps is None:
                known = [normalize_key(key) for key in shared_data.keys(True, True)]
                raise missing_key_error(normalize_key(("loc", key)), known, "shared_data")
            self._buffers[name] = self._as_moments(loc, squares, torch.as_tensor(steps))

    def _as_moments(self, loc: Tensor, squares: Tensor, steps: Tensor) -> Tensor:
        """Return averages, which have no weight before the first step, as moments."""
        steps = steps.double()
        moments = empty_moments(loc.shape, loc.device)
        lacking = 1 - self.decay
        total = (1 - self.decay**steps) / lacking if lacking else steps
        unit = 1 / lacking if lacking else steps
        moments[0], moments[1], moments[2] = loc * unit, squares * unit, total
        return moments

    # Statistics

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        self._batch_dims = len(output_spec.shape)
        if not self.stateful:
            present = [key for key in self._in_keys if self._is_expected(key, output_spec)]
            self._specs_of = {key: leaf_spec(output_spec, key) for key in present}
            return
        if self.reduce_batch_dims or not self._batch_dims:
            super()._bind(input_spec, output_spec)
            return
        for key, name in self._names.items():
            if not self._is_expected(key, output_spec):
                continue
            spec = leaf_spec(output_spec, key)
            self._dtypes[key] = float_dtype(spec.dtype)
            self._require(key, name, spec.shape, spec.device)

    def _is_expected(self, key: NestedKey, output_spec: Composite) -> bool:
        return not self._missing_tolerance or any(key in part for part in output_spec.values())

    def _update_and_map(self, key: NestedKey, value: Tensor, rows: Tensor | None = None) -> Tensor:
        statistics = self._buffers[self._names[key]]
        assert statistics is not None
        if value.ndim == statistics.ndim - 1:
            return super()._update_and_map(key, value, rows)
        with self.lock or nullcontext():
            if self.training and not self._frozen:
                # The mean of the batch, with the weight of its values one by one.
                added = torch.zeros_like(statistics)
                add_values(added, value, 1.0, rows)
                count = added[2]
                kept = self.decay**count
                weight = count if self.decay == 1 else (1 - kept) / (1 - self.decay)
                statistics.mul_(kept).add_(added / count.clamp_min(1) * weight)
            current = statistics.clone()
        return self._map_values(value, current)

    def make_chunk_kernel(self) -> ChunkKernel | None:
        # In a batch, rows that are not reset keep their statistics, or count together.
        return None if self._batch_dims or not self.stateful else super().make_chunk_kernel()

    def make_dict_step(self) -> DictStep | None:
        return super().make_dict_step() if self.stateful else None

    def _loc_and_scale(self, moments: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        total, squares, count = moments.unbind(0)
        none = count <= 0
        count = count.masked_fill(none, 1.0)
        loc = total / count
        # The average of an exponential window is corrected, its square is not.
        square = loc * loc if self.decay == 1 else total * total * (1 - self.decay) / count
        scale = (squares / count - square).clamp_min(0).sqrt().clamp_min(self.eps)
        return loc.to(dtype), scale.masked_fill(none, 1.0).to(dtype)

    # Statistics in the data

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        if self.stateful:
            return super()._step(tensordict, next_tensordict)
        for in_key in self.in_keys:
            if read(next_tensordict, in_key) is None and not self._missing_tolerance:
                raise self._missing_key(in_key, next_tensordict)
        return self._carry(tensordict, next_tensordict, None)

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        if self.stateful:
            return super()._reset(tensordict, tensordict_reset)
        return self._carry(tensordict, tensordict_reset, tensordict)

    def _carry(
        self,
        source: TensorDictBase | None,
        target: TensorDictBase,
        reset_input: TensorDictBase | None,
    ) -> TensorDictBase:
        """Update the statistics of one TensorDict by the values of another, and write both."""
        for in_key, out_key in self._pairs:
            value = read(target, in_key)
            example = value
            if value is None:
                spec = self._specs_of.get(in_key)
                if spec is None:
                    continue
                example = torch.zeros(spec.shape, dtype=spec.dtype, device=spec.device)
            carried = self._read_carried(source, in_key)
            if carried is None:
                zeros = torch.zeros(example.shape, dtype=torch.int64, device=example.device)
                carried = zeros.double(), zeros.double(), zeros
            if value is not None:
                rows = reset_rows(reset_input, in_key, value)
                carried, moments = self._updated(carried, value, rows)
                write(target, out_key, self._map_values(value, moments))
            dtype = float_dtype(example.dtype)
            for name, statistic in zip(_CARRIED, carried, strict=True):
                count = name == _CARRIED[-1]
                write(target, join_keys(name, in_key), statistic if count else statistic.to(dtype))
        return target

    def _read_carried(
        self, source: TensorDictBase | None, key: NestedKey
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        carried = [
            None if source is None else read(source, join_keys(name, key)) for name in _CARRIED
        ]
        loc, squares, steps = carried
        if loc is None or squares is None or steps is None:
            return None
        return loc, squares, steps

    def _updated(
        self, carried: tuple[Tensor, Tensor, Tensor], value: Tensor, rows: Tensor | None
    ) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        """Add values ``[*B, ...]`` to their statistics; return these also as moments."""
        steps, moments = carried[2], self._as_moments(*carried)
        if self.training and not self._frozen:
            add_values(moments, value, self.decay, rows)
            steps = steps + (1 if rows is None else rows.expand_as(steps).long())
        lacking = 1 - self.decay
        unit = lacking if lacking else 1 / steps.clamp_min(1)
        return (moments[0] * unit, moments[1] * unit, steps), moments

    def _stored_moments(self, tensordict: TensorDictBase, key: NestedKey) -> Tensor:
        if self.stateful:
            return self._held(key)
        carried = self._read_carried(tensordict, key)
        if carried is None:
            raise StoredDataError(
                "the data has no statistics, and the transform keeps none",
                hint=f"keep the entries {', '.join(_CARRIED)} in the data",
                where=Where(key=key),
            )
        return self._as_moments(*carried)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Map stored data ``[*B]``, in place.

        In train mode the statistics of the transform are updated first; those in the data are not.

        Raises:
            StoredDataError: Neither the transform nor the data has statistics.
        """
        if self.stateful:
            return super().forward(tensordict)
        for in_key, out_key in self._pairs:
            value = self._entry(tensordict, in_key)
            moments = self._stored_moments(tensordict, in_key)
            write(tensordict, out_key, self._map_values(value, moments))
        return tensordict

    def _carried_specs(self) -> dict[NestedKey, TensorSpec]:
        return {
            join_keys(name, key): Unbounded(
                shape=spec.shape,
                dtype=torch.int64 if name == _CARRIED[-1] else float_dtype(spec.dtype),
                device=spec.device,
            )
            for name in _CARRIED
            for key, spec in self._specs_of.items()
        }

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Return the observation spec, with the statistics if they are kept in the data."""
        return with_entries(
            super().transform_observation_spec(observation_spec), self._carried_specs()
        )

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """Return the state spec, with the statistics if a step reads them."""
        return with_entries(super().transform_state_spec(state_spec), self._carried_specs())

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
            StoredDataError: Neither the transform nor the data has statistics.
        """
        result: TensorDictBase = tensordict.copy()
        for in_key, out_key in self._pairs:
            value = read(tensordict, out_key)
            if value is not None:
                loc, scale = self._loc_and_scale(
                    self._stored_moments(tensordict, in_key), value.dtype
                )
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
