"""Rename entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensordict import TensorDictBase
from tensordict.nn import dispatch

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
    KeyPairs,
    normalize_keys,
    require_free_key,
    require_keys,
    unlocked_copy,
)
from tdx.foundation.errors import ArgumentError, ChainError, Where
from tdx.foundation.keys import NestedKey, format_key, parent_key
from tdx.specs import Composite


class RenameTransform(Transform):
    """Rename entries of the env's output and input.

    Args:
        in_keys: Entries of the env's output: observations, rewards or done flags.
        out_keys: New keys, one per in-key.
        in_keys_inv: Entries of the env's input, by the env's own keys. Default: no keys.
        out_keys_inv: Keys that the policy writes for them, one per inverse in-key.
        create_copy: Keep the entries under their old keys too.

    Raises:
        ArgumentError: The numbers of keys differ, or a new key is also an old key.
        KeyNotFoundError: The env has no such entry (when its specs are computed).
        ChainError: A new key already exists (when its specs are computed), or a done flag leaves
            its group.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import RenameTransform
        >>> rename = RenameTransform(["a"], [("sensors", "a")])
        >>> rename(TensorDict(a=torch.ones(1)))["sensors", "a"]
        tensor([1.])
    """

    _is_verified = True

    time_behavior = TimeBehavior.POINTWISE

    def __init__(
        self,
        in_keys: Sequence[NestedKey],
        out_keys: Sequence[NestedKey],
        in_keys_inv: Sequence[NestedKey] | None = None,
        out_keys_inv: Sequence[NestedKey] | None = None,
        create_copy: bool = False,
    ) -> None:
        _check_pair(in_keys, out_keys, "in_keys", "out_keys")
        _check_pair(in_keys_inv, out_keys_inv, "in_keys_inv", "out_keys_inv")
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        self.create_copy = create_copy

    # Data

    def _rename(self, entries: EntryMapping, pairs: KeyPairs, strict: bool) -> None:
        for old, new in pairs:
            value = entries.get(old)
            if value is not None:
                entries[new] = value
                if not self.create_copy:
                    del entries[old]
            elif strict and not self._missing_tolerance:
                raise self._missing_key(old, entries)

    def make_dict_step(self) -> DictStep | None:
        if self._missing_tolerance or not are_flat((*self.in_keys, *self.out_keys)):
            return None
        return lambda root, fields: self._rename(fields, self._pairs, strict=True)

    def make_chunk_kernel(self) -> ChunkKernel | None:
        if self._missing_tolerance:
            return None
        old, new = tuple(self.in_keys), tuple(self.out_keys)

        def run(chunk: Chunk) -> None:
            self._rename(chunk.steps, self._pairs, strict=True)
            self._rename(chunk.resets, self._pairs, strict=False)

        return ChunkKernel(run, old, new, () if self.create_copy else old)

    @property
    def _reversed_inverse_pairs(self) -> KeyPairs:
        return tuple((new, old) for old, new in self._inverse_pairs)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        self._rename(TensorDictEntries(next_tensordict), self._pairs, strict=True)
        return next_tensordict

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        self._rename(TensorDictEntries(tensordict_reset), self._pairs, strict=False)
        return tensordict_reset

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._rename(TensorDictEntries(tensordict), self._reversed_inverse_pairs, strict=True)
        return tensordict

    def _reset_env_preprocess(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._rename(TensorDictEntries(tensordict), self._reversed_inverse_pairs, strict=False)
        return tensordict

    @property
    def invertible(self) -> bool:
        """True if entries of the env's input are renamed."""
        return bool(self._inverse_pairs)

    @dispatch(source="in_keys", dest="out_keys")
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Rename entries of stored data, in place."""
        return self._call(tensordict)

    # Specs

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        if not self._missing_tolerance:
            require_keys(output_spec, self.in_keys, "the env at this stage")
            require_keys(input_spec, self.in_keys_inv, "the env's input at this stage")
        for key in self.out_keys:
            for part in output_spec.values():
                require_free_key(part, key)
        for key in self.out_keys_inv:
            for part in input_spec.values():
                require_free_key(part, key)
        for old, new in self._pairs:
            is_flag = old in output_spec["full_done_spec"].keys(True, True)
            if is_flag and parent_key(old) != parent_key(new):
                raise ChainError(
                    f"the done flag {format_key(old)!r} cannot be renamed to {format_key(new)!r}: "
                    "it must stay a sibling of its reset mask",
                    hint="keep the flag in its group",
                    where=Where(key=old),
                )

    def _rename_spec(self, spec: Any, pairs: KeyPairs) -> Any:
        if not isinstance(spec, Composite):  # a lone entry has no key to rename
            return spec
        result = unlocked_copy(spec)
        for old, new in pairs:
            if spec.get(old, None) is not None:
                result[new] = spec[old].clone()
                if not self.create_copy:
                    del result[old]
        return result

    def _map_spec(self, spec: Any) -> Any:
        return self._rename_spec(spec, self._pairs)

    def _map_inverse_spec(self, spec: Any) -> Any:
        return self._rename_spec(spec, self._inverse_pairs)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """Return the state spec that the policy sees, without entries renamed in every output."""
        result: Composite = self._map_inverse_spec(state_spec)
        if self.create_copy or not isinstance(state_spec, Composite):
            return result
        for old in self.in_keys:
            if state_spec.get(old, None) is not None and result.get(old, None) is not None:
                del result[old]
        return result

    def __repr__(self) -> str:
        names = ("in_keys", "out_keys", "in_keys_inv", "out_keys_inv")
        given = [f"{name}={getattr(self, name)}" for name in names if getattr(self, name)]
        copy = ["create_copy=True"] if self.create_copy else []
        return f"RenameTransform({', '.join([*given, *copy])})"


def _check_pair(
    old: Sequence[NestedKey] | None, new: Sequence[NestedKey] | None, old_name: str, new_name: str
) -> None:
    old_keys, new_keys = normalize_keys(old, old_name), normalize_keys(new, new_name)
    if len(old_keys) != len(new_keys):
        raise ArgumentError(
            f"{len(old_keys)} {old_name} and {len(new_keys)} {new_name}",
            hint="give one new key for each old one",
        )
    both = [format_key(key) for key in new_keys if key in old_keys]
    if both or len(set(new_keys)) < len(new_keys):
        what = f"{both[0]!r} is in {old_name} and in {new_name}" if both else f"{new_name} repeat"
        raise ArgumentError(what, hint="to swap keys, rename three times by way of a third key")
