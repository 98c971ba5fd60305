"""Concatenate several observations into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import dispatch
from torch import Tensor

from tdx.core.transforms import TimeBehavior, Transform
from tdx.core.transforms.kernels import (
    Chunk,
    ChunkKernel,
    DictStep,
    EntryMapping,
    TensorDictEntries,
    are_flat,
)
from tdx.core.transforms.spec_maps import (
    missing_key_error,
    normalize_keys,
    require_free_key,
    require_leaf,
    with_entries,
    without_keys,
)
from tdx.core.transforms.validation import check_dim
from tdx.foundation.errors import ArgumentError, ChainError, Where
from tdx.foundation.keys import NestedKey, format_key, split_key
from tdx.specs import Bounded, Composite, TensorSpec, Unbounded


class CatTensors(Transform):
    """Concatenate several observations into one.

    Stored data is concatenated at the root; name keys that begin with ``next`` for the next
    observations.

    Args:
        in_keys: Observations to concatenate. ``None``: all vectors among the env's observations.
        out_key: Key to write.
        dim: Dim along which to concatenate. A dim from 0 on counts batch dims too.
        del_keys: Drop the concatenated entries.
        unsqueeze_if_oor: Add a first dim (a last one if ``dim`` is not negative) to entries that
            lack the dim.
        sort: Sort the in-keys by name.

    Raises:
        ArgumentError: Without ``in_keys``, ``dim`` is not -1; or (when its specs are computed) an
            entry lacks the dim, or the sizes of the other dims differ.
        KeyNotFoundError: An entry is missing.
        ChainError: Without ``in_keys``, the env observes no vector, or the data is not from an
            env.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import CatTensors
        >>> join = CatTensors(["position", "velocity"], "state")
        >>> join(TensorDict(position=torch.zeros(2), velocity=torch.ones(1)))["state"]
        tensor([0., 0., 1.])
    """

    _is_verified = True

    time_behavior = TimeBehavior.POINTWISE
    _joins = True

    def __init__(
        self,
        in_keys: Sequence[NestedKey] | None = None,
        out_key: NestedKey = "observation_vector",
        dim: int = -1,
        *,
        del_keys: bool = True,
        unsqueeze_if_oor: bool = False,
        sort: bool = True,
    ) -> None:
        check_dim(dim, "dim", allow_positive=True)
        if in_keys is None and dim != -1:
            raise ArgumentError(
                f"without in_keys, dim must be -1, got {dim}",
                hint="name the observations: in_keys=[...]",
            )
        keys = normalize_keys(in_keys, "in_keys")
        super().__init__(_sorted(keys) if sort else keys, [out_key])
        self.del_keys = del_keys
        self._batch_dims = 0
        self._finds_keys = in_keys is None
        self.dim, self.unsqueeze_if_oor, self.sort = dim, unsqueeze_if_oor, sort
        if dim >= 0:
            # The dim has another place in a block of steps.
            self.time_behavior = TimeBehavior.CONTROL

    def _on_keys_assigned(self) -> None:
        self._finds_keys = False

    def _join(self, values: list[Tensor], batch_dims: int) -> Tensor:
        if self.unsqueeze_if_oor:
            values = [self._with_dim(value, batch_dims) for value in values]
        return torch.cat(values, self.dim)

    def _with_dim(self, value: Tensor, batch_dims: int) -> Tensor:
        """Return an entry ``[*L, ...]`` with the dim, which it may lack."""
        if self.dim >= 0:
            return value if self.dim < value.ndim else value.unsqueeze(-1)
        return value if batch_dims - self.dim <= value.ndim else value.unsqueeze(batch_dims)

    @property
    def _dropped_keys(self) -> list[NestedKey]:
        (out_key,) = self.out_keys
        return [key for key in self.in_keys if key != out_key] if self.del_keys else []

    # Data

    def _join_entries(self, entries: EntryMapping, batch_dims: int) -> None:
        if not self.in_keys:
            raise ChainError(
                "CatTensors has no in_keys, and no env to take them from",
                hint="name the entries to concatenate: in_keys=[...]",
                where=Where(transform="CatTensors"),
            )
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
        """Concatenate the entries of stored data ``[*B]``, in place."""
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

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        self._batch_dims = len(output_spec.shape)
        observations = output_spec["full_observation_spec"]
        if self._finds_keys:
            vectors = [
                key
                for key, spec in observations.items(True, True)
                if len(spec.shape) == self._batch_dims + 1
            ]
            in_keys = normalize_keys(vectors, "in_keys")
            self._set_keys(_sorted(in_keys), self.out_keys)
        if not self.in_keys:
            raise ChainError(
                "the env observes no vector to concatenate",
                hint="name the entries to concatenate: in_keys=[...]",
            )
        specs = {key: observations.get(key, None) for key in self.in_keys}
        self._check_shapes({key: spec.shape for key, spec in specs.items() if spec is not None})

    def _check_shapes(self, shapes: dict[NestedKey, torch.Size]) -> None:
        # On the device "meta", `torch.cat` imports the compiler, which takes more than a second.
        byte = torch.empty((), dtype=torch.bool)
        examples = {key: byte.expand(shape) for key, shape in shapes.items()}
        for key, example in examples.items():
            dims = self._with_dim(example, self._batch_dims).ndim if self.unsqueeze_if_oor else 0
            dims = max(dims, example.ndim)
            lacks = self.dim >= dims if self.dim >= 0 else self._batch_dims - self.dim > dims
            if lacks:
                raise ArgumentError(
                    f"{format_key(key)!r} of shape {tuple(shapes[key])} has no dim {self.dim} "
                    f"after {self._batch_dims} batch dims",
                    hint="choose another dim, or unsqueeze_if_oor=True",
                    where=Where(key=key),
                )
        try:
            self._join(list(examples.values()), self._batch_dims)
        except RuntimeError:
            listed = ", ".join(f"{format_key(key)} {tuple(each)}" for key, each in shapes.items())
            raise ArgumentError(
                f"observations of different shapes cannot be concatenated along dim {self.dim}: "
                f"{listed}",
                hint="their sizes may differ in that dim alone",
            ) from None

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

    def __repr__(self) -> str:
        return f"CatTensors(in_keys={self.in_keys}, out_key={self.out_keys[0]!r})"


def _sorted(keys: Sequence[NestedKey]) -> list[NestedKey]:
    return sorted(keys, key=split_key)
