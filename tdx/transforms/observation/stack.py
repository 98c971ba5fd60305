"""Stack entries, or groups of entries, along a new dim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase, is_tensor_collection
from torch import Tensor

from tdx.core.transforms import TimeBehavior, Transform
from tdx.core.transforms.kernels import ChunkKernel
from tdx.core.transforms.spec_maps import (
    require_composite,
    require_free_key,
    with_entries,
    without_keys,
)
from tdx.core.transforms.validation import check_dim
from tdx.foundation.errors import ArgumentError, Where
from tdx.foundation.keys import NestedKey, format_key, normalize_key
from tdx.foundation.tensordicts import delete, read
from tdx.specs import Bounded, Composite, TensorSpec, Unbounded


class Stack(Transform):
    """Stack entries along a new dim, such as the observations of agents under keys of their own.

    An in-key may be a group: then each of its entries is stacked, and observations, rewards, done
    flags and actions of several agents come under one group with a dim for the agents. Groups
    that become empty are dropped. Stored data is stacked at the root.

    Args:
        in_keys: Entries or groups to stack, of the same shape.
        out_key: Key to write.
        in_key_inv: Key that the policy writes, which is split along the dim for the env.
        out_keys_inv: Inputs of the env that the parts become.
        dim: Position of the new dim in the result. Negative, so that batch dims do not count; of a
            group it counts from the end of its batch dims.
        allow_positive_dim: Accept a dim from 0: in an env counted from the first dim after its
            batch dims, else from the first dim.
        del_keys: Drop the stacked entries.

    Raises:
        ArgumentError: ``dim`` is not a negative integer, ``out_key`` is one of ``in_keys``, or
            only one of ``in_key_inv`` and ``out_keys_inv`` is given; or (when its specs are
            computed) the entries have different shapes.
        KeyNotFoundError: An entry is missing.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import Stack
        >>> stack = Stack(["left", "right"], "hands", dim=-2)
        >>> stack(TensorDict(left=torch.zeros(3), right=torch.ones(3)))["hands"]
        tensor([[0., 0., 0.],
                [1., 1., 1.]])
    """

    _is_verified = True

    time_behavior = TimeBehavior.POINTWISE
    _joins = True

    def __init__(
        self,
        in_keys: Sequence[NestedKey],
        out_key: NestedKey,
        in_key_inv: NestedKey | None = None,
        out_keys_inv: Sequence[NestedKey] | None = None,
        dim: int = -1,
        allow_positive_dim: bool = False,
        *,
        del_keys: bool = True,
    ) -> None:
        super().__init__(in_keys, [out_key])
        if self.out_keys[0] in self.in_keys:
            raise ArgumentError(
                f"out_key {format_key(self.out_keys[0])!r} is one of in_keys",
                hint="choose another key to write",
            )
        if (in_key_inv is None) != (out_keys_inv is None):
            raise ArgumentError(
                "in_key_inv and out_keys_inv must both be given, or neither",
                hint="name the stacked input, and the inputs of the env that its parts become",
            )
        self.dim = check_dim(dim, "dim", allow_positive_dim)
        self.allow_positive_dim, self.del_keys = allow_positive_dim, del_keys
        self._stacked_input = None if in_key_inv is None else normalize_key(in_key_inv)
        self._parts = [normalize_key(key) for key in out_keys_inv or ()]
        self._batch_dims = 0
        if self.invertible or self.dim >= 0:
            # The parts of an input may be groups, which a plan does not know.
            self.time_behavior = TimeBehavior.CONTROL

    @property
    def invertible(self) -> bool:
        """True if it splits an input of the env."""
        return self._stacked_input is not None

    def _position(self, dims: int, leading: int) -> int:
        """Return the place of the new dim in a stack of entries with this number of dims."""
        return dims + 1 + self.dim if self.dim < 0 else leading + self.dim

    # Data

    def _stack(self, tensordict: TensorDictBase, leading: int, *, required: bool) -> TensorDictBase:
        values = [read(tensordict, key) for key in self.in_keys]
        absent = [key for key, value in zip(self.in_keys, values, strict=True) if value is None]
        if absent:
            if self._missing_tolerance or (not required and len(absent) == len(values)):
                return tensordict
            raise self._missing_key(absent[0], tensordict)
        stacked = torch.stack(values, self._position(values[0].ndim, leading))
        if self.del_keys:
            for key in self.in_keys:
                delete(tensordict, key)
        return tensordict.set(self.out_keys[0], stacked)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._stack(next_tensordict, self._batch_dims, required=True)

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        # A reset returns no rewards.
        return self._stack(tensordict_reset, self._batch_dims, required=False)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        key = self._stacked_input
        stacked = None if key is None else read(tensordict, key)
        if key is None or stacked is None:
            return tensordict
        if is_tensor_collection(stacked) and stacked.ndim == tensordict.ndim:
            # A group that was created by its first entry has no dim for the parts yet.
            stacked = stacked.copy().auto_batch_size_(tensordict.ndim + 1)
        place = self._position(stacked.ndim - 1, self._batch_dims)
        parts = stacked.unbind(place)
        if len(parts) != len(self._parts):
            raise ArgumentError(
                f"{format_key(key)!r} has {len(parts)} parts along dim {self.dim}, "
                f"out_keys_inv has {len(self._parts)} keys",
                hint="name one key for each part",
                where=Where(key=key),
            )
        tensordict = tensordict.copy()
        delete(tensordict, key)
        for part_key, part in zip(self._parts, parts, strict=True):
            tensordict.set(part_key, part)
        return tensordict

    def _reset_env_preprocess(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._inv_call(tensordict)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stack the entries of stored data ``[*B]``, in place."""
        return self._stack(tensordict, 0, required=True)

    def make_chunk_kernel(self) -> ChunkKernel | None:
        # Groups are no columns of a chunk.
        return None

    # Specs

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        self._batch_dims = len(output_spec.shape)

    def _check_in_keys(self, output_spec: Composite) -> None:
        for key in self.in_keys:
            parts = output_spec.values()
            if not self._missing_tolerance and all(p.get(key, None) is None for p in parts):
                raise self._missing_key(key, {k: None for p in parts for k in p.keys(True, True)})

    def _map_spec(self, spec: Any) -> Any:
        require_composite(spec)
        specs = self._specs_of(spec, self.in_keys)
        if not specs:
            return spec
        (out_key,) = self.out_keys
        require_free_key(spec, out_key)
        kept = without_keys(spec, self.in_keys) if self.del_keys else spec
        return _without_empty_groups(with_entries(kept, {out_key: self._stacked_spec(specs)}))

    def _map_inverse_spec(self, spec: Any) -> Any:
        require_composite(spec)
        specs = self._specs_of(spec, self._parts)
        if self._stacked_input is None or not specs:
            return spec
        stacked = {self._stacked_input: self._stacked_spec(specs)}
        return _without_empty_groups(with_entries(without_keys(spec, self._parts), stacked))

    def _specs_of(self, spec: Composite, keys: list[NestedKey]) -> list[Any]:
        """Return the specs of the entries in one part of the env's specs; empty if it has none."""
        found = {key: spec.get(key, None) for key in keys}
        absent = [key for key, each in found.items() if each is None]
        if absent and len(absent) < len(keys) and not self._missing_tolerance:
            present = next(key for key in keys if key not in absent)
            raise ArgumentError(
                f"{format_key(present)!r} cannot be stacked with {format_key(absent[0])!r}, which "
                "is not in the same part of the specs",
                hint="stack observations with observations, rewards with rewards, and so on",
                where=Where(key=absent[0]),
            )
        return [] if absent else list(found.values())

    def _stacked_spec(self, specs: list[Any]) -> Any:
        shapes = [tuple(spec.shape) for spec in specs]
        position = self._position(len(shapes[0]), self._batch_dims)
        if len(set(shapes)) > 1 or not self._batch_dims <= position <= len(shapes[0]):
            listed = ", ".join(map(str, shapes))
            raise ArgumentError(
                f"entries of shape {listed} cannot be stacked at dim {self.dim} after "
                f"{self._batch_dims} batch dims",
                hint="their shapes must be equal, and the new dim come after the batch dims",
                where=Where(key=self.in_keys[0]),
            )
        return _stack_specs(specs, position)

    def __repr__(self) -> str:
        return f"Stack(in_keys={self.in_keys}, out_key={self.out_keys[0]!r}, dim={self.dim})"


def _stack_specs(specs: list[Any], position: int) -> Any:
    """Return the spec of stacked entries: bounded if all are, of any values if they differ."""
    first = specs[0]
    if isinstance(first, Composite):
        keys = set(first.keys())
        if any(not isinstance(spec, Composite) or set(spec.keys()) != keys for spec in specs):
            raise ArgumentError(
                "groups with different keys cannot be stacked", hint="stack their entries by key"
            )
        shape = [*first.shape[:position], len(specs), *first.shape[position:]]
        entries = {key: _stack_specs([spec[key] for spec in specs], position) for key in first}
        return Composite(entries, shape=shape, device=first.device)
    if all(spec == first for spec in specs):
        return torch.stack(specs, position)
    if all(isinstance(spec, Bounded) for spec in specs):
        low, high = (torch.stack([getattr(s, end) for s in specs], position) for end in _ENDS)
        return Bounded(low, high, low.shape, low.device, low.dtype)
    example = torch.stack([_zeros(spec) for spec in specs], position)
    return Unbounded(example.shape, example.device, example.dtype)


_ENDS = ("low", "high")


def _zeros(spec: TensorSpec) -> Tensor:
    return torch.zeros(spec.shape, dtype=spec.dtype, device=spec.device)


def _without_empty_groups(spec: Composite) -> Composite:
    groups = [key for key in spec.keys(True) if isinstance(spec[key], Composite)]
    empty = [normalize_key(key) for key in groups if not list(spec[key].keys(True, True))]
    return without_keys(spec, empty)
