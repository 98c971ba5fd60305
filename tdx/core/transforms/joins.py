"""Base class of transforms that join several entries into one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import dispatch
from torch import Tensor

from tdx.core.transforms.kernels import (
    Chunk,
    ChunkKernel,
    DictStep,
    EntryMapping,
    TensorDictEntries,
    TimeBehavior,
    are_flat,
)
from tdx.core.transforms.spec_maps import (
    missing_key_error,
    require_free_key,
    require_leaf,
    with_entries,
    without_keys,
)
from tdx.core.transforms.transform import Transform
from tdx.foundation.keys import NestedKey
from tdx.specs import Bounded, Composite, TensorSpec, Unbounded


class JoinTransform(Transform):
    """Joins observations into one observation.

    A subclass defines it by the kernel :meth:`_join`. In stored data the entries at the root are
    joined; keys that begin with ``next`` join the next ones.

    Args:
        in_keys: Entries to join, in order.
        out_key: Key to write.
        del_keys: Drop the joined entries.
    """

    time_behavior = TimeBehavior.POINTWISE
    _joins = True

    def __init__(
        self, in_keys: Sequence[NestedKey] | None, out_key: NestedKey, del_keys: bool
    ) -> None:
        super().__init__(in_keys, [out_key])
        self.del_keys = del_keys
        self._batch_dims = 0

    @abstractmethod
    def _join(self, values: list[Tensor], batch_dims: int) -> Tensor:
        """Join entries.

        Args:
            values: Entries ``[*L, ...]`` in the order of the in-keys.
            batch_dims: Number of leading dims, ``L``.
        """

    @property
    def _dropped_keys(self) -> list[NestedKey]:
        (out_key,) = self.out_keys
        return [key for key in self.in_keys if key != out_key] if self.del_keys else []

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        self._batch_dims = len(output_spec.shape)

    # Data

    def _join_entries(self, entries: EntryMapping, batch_dims: int) -> None:
        values = []
        for key in self.in_keys:
            value = entries.get(key)
            if value is None and self._missing_tolerance:
                return
            if value is None:
                raise self._missing_key(key, entries)
            values.append(value)
        joined = self._join(values, batch_dims)
        for key in self._dropped_keys:
            del entries[key]
        entries[self.out_keys[0]] = joined

    def _join_tensordict(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._join_entries(TensorDictEntries(tensordict), tensordict.ndim)
        return tensordict

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._join_tensordict(next_tensordict)

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return self._join_tensordict(tensordict_reset)

    @dispatch(source="in_keys", dest="out_keys")
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Join the entries of stored data ``[*B]``, in place."""
        return self._join_tensordict(tensordict)

    def make_dict_step(self) -> DictStep | None:
        if self._missing_tolerance or not are_flat((*self.in_keys, *self.out_keys)):
            return None
        return lambda root, fields: self._join_entries(fields, self._batch_dims)

    def make_chunk_kernel(self) -> ChunkKernel | None:
        if self._missing_tolerance or self.time_behavior is not TimeBehavior.POINTWISE:
            return None
        dropped = tuple(self._dropped_keys)
        return ChunkKernel(self._run_chunk, tuple(self.in_keys), tuple(self.out_keys), dropped)

    def _run_chunk(self, chunk: Chunk) -> None:
        for columns in (chunk.steps, chunk.resets):
            if columns is chunk.steps or chunk.times:
                self._join_entries(columns, self._batch_dims + 1)

    # Specs

    def _check_in_keys(self, output_spec: Composite) -> None:
        """Leave it to :meth:`transform_observation_spec`."""

    def _joined_spec(self, specs: list[TensorSpec], batch_dims: int) -> TensorSpec:
        """Return the spec of :meth:`_join`: bounded if all entries are."""
        if all(isinstance(spec, Bounded) for spec in specs):
            low, high = (
                self._join([getattr(spec, end) for spec in specs], batch_dims)
                for end in ("low", "high")
            )
            return Bounded(low, high, low.shape, low.device, low.dtype)
        zeros = (torch.zeros(spec.shape, dtype=spec.dtype, device=spec.device) for spec in specs)
        example = self._join(list(zeros), batch_dims)
        return Unbounded(example.shape, example.device, example.dtype)

    def transform_observation_spec(self, observation_spec: Any) -> Any:
        """Return the observation spec with the joined entry, or the spec of a lone entry.

        Raises:
            KeyNotFoundError: An in-key is not an observation.
        """
        if not isinstance(observation_spec, Composite):
            return self._joined_spec([observation_spec], 0)
        (out_key,) = self.out_keys
        specs = []
        for key in self.in_keys:
            spec = observation_spec.get(key, None)
            if spec is None and self._missing_tolerance:
                return observation_spec
            if spec is None:
                place = "the observation spec at this stage"
                raise missing_key_error(key, list(observation_spec.keys(True, True)), place)
            require_leaf(spec, key, type(self).__name__)
            specs.append(spec)
        if out_key not in self.in_keys:
            require_free_key(observation_spec, out_key)
        joined = self._joined_spec(specs, len(observation_spec.shape))
        return with_entries(without_keys(observation_spec, self._dropped_keys), {out_key: joined})

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """Return the state spec without the dropped entries."""
        return without_keys(state_spec, self._dropped_keys)
