"""Entries of Gymnasium's ``info`` as entries of the TensorDict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from tensordict import NonTensorStack, TensorDictBase

from tdx.envs.gym.interface import Info
from tdx.envs.gym.numeric_spaces import tensor_dtype
from tdx.envs.gym.spaces import encode_object
from tdx.foundation.array_files import Array
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey, normalize_key, split_key
from tdx.foundation.tensordicts import write
from tdx.specs import Composite, NonTensor, TensorSpec, Unbounded
from tdx.specs.arguments import Value


class InfoReader(Protocol):
    """Copies entries of ``info`` to the TensorDict that a reset or step returns.

    A reader may have an ``info_spec``, a ``Composite`` of the entries that it writes, ``[*B]``. It
    becomes part of the env's observation spec.
    """

    def __call__(self, info: Info, tensordict: TensorDictBase, /) -> TensorDictBase | None: ...


class default_info_dict_reader:  # noqa: N801  the documented name
    """Copies entries of ``info`` by name.

    Entries are numbers, arrays, nested dicts of these, or any other object, which becomes a
    non-tensor entry. An entry that is missing in an ``info`` is written as zeros; many envs have
    entries in steps only, not in resets.

    Args:
        keys: Entries to copy; all by default.
        spec: Specs of the entries, in the order of ``keys`` or by key, ``[*B, ...]``. By default
            they are inferred from a reset and a few random steps when the reader is added to an
            env.
        ignore_private: True to leave out entries whose names begin with an underscore.

    Example:
        >>> from tdx import GymEnv
        >>> env = GymEnv("FrozenLake-v1")
        >>> reader = default_info_dict_reader(["prob"])
        >>> env.set_info_dict_reader(reader).reset()["prob"]
        tensor(1., dtype=torch.float64)
    """

    def __init__(
        self,
        keys: Sequence[NestedKey] | None = None,
        spec: Sequence[TensorSpec] | Mapping[NestedKey, TensorSpec] | Composite | None = None,
        ignore_private: bool = True,
    ) -> None:
        self.keys = None if keys is None else [normalize_key(key) for key in keys]
        self.ignore_private = ignore_private
        self.info_spec = _as_composite(self.keys, spec)
        self._leaves: list[tuple[NestedKey, TensorSpec]] = []
        if self.info_spec is not None:
            self._set_leaves(self.info_spec)

    def learn(self, infos: Sequence[Info], batch_size: torch.Size) -> None:
        """Infer the specs from examples of ``info``, unless they were given.

        Args:
            infos: Infos of resets and steps.
            batch_size: Batch size of the env.

        Raises:
            ArgumentError: A key is in none of the infos.
        """
        if self.info_spec is not None:
            return
        values: dict[NestedKey, list[object]] = {}
        for info in infos:
            for key, value in _entries(info, self.ignore_private):
                values.setdefault(key, []).append(value)
        inferred = {key: _infer_spec(examples, batch_size) for key, examples in values.items()}
        if self.keys is not None:
            for requested in self.keys:
                parts = split_key(requested)
                if not any(split_key(key)[: len(parts)] == parts for key in inferred):
                    known = ", ".join(sorted({split_key(key)[0] for key in inferred})) or "none"
                    raise ArgumentError(
                        f"a reset and a few steps have no info entry {requested!r}",
                        hint=f"entries found: {known}; pass its spec if it appears later",
                    )
            inferred = {key: spec for key, spec in inferred.items() if self._is_selected(key)}
        self.info_spec = Composite(shape=batch_size)
        for key, spec in inferred.items():
            self.info_spec[key] = spec
        self._set_leaves(self.info_spec)

    def _is_selected(self, key: NestedKey) -> bool:
        assert self.keys is not None
        parts = split_key(key)
        return any(
            parts[: len(split_key(requested))] == split_key(requested) for requested in self.keys
        )

    def _set_leaves(self, spec: Composite) -> None:
        self._leaves = [(normalize_key(key), leaf) for key, leaf in spec.items(True, True)]

    def __call__(self, info: Info, tensordict: TensorDictBase) -> TensorDictBase:
        for key, spec in self._leaves:
            value: object = info
            for part in split_key(key):
                value = value.get(part) if isinstance(value, Mapping) else None
            write(tensordict, key, _encode(value, spec))
        return tensordict


def _as_composite(
    keys: list[NestedKey] | None,
    spec: Sequence[TensorSpec] | Mapping[NestedKey, TensorSpec] | Composite | None,
) -> Composite | None:
    if spec is None or isinstance(spec, Composite):
        return spec
    if isinstance(spec, Mapping):
        pairs = list(spec.items())
    elif keys is None or len(keys) != len(spec):
        raise ArgumentError(
            f"{len(spec)} specs for {'all' if keys is None else len(keys)} keys",
            hint="pass one spec for each key, or a dict of specs by key",
        )
    else:
        pairs = list(zip(keys, spec, strict=True))
    given = Composite()
    for key, leaf in pairs:
        given[key] = leaf
    return given


def _entries(info: Mapping[str, Any], ignore_private: bool) -> list[tuple[NestedKey, object]]:
    leaves: list[tuple[NestedKey, object]] = []
    for name, value in info.items():
        if ignore_private and str(name).startswith("_"):
            continue
        if isinstance(value, Mapping):
            inner = _entries(value, ignore_private)
            leaves += [((str(name), *split_key(key)), leaf) for key, leaf in inner]
        else:
            leaves.append((str(name), value))
    return leaves


def _infer_spec(examples: list[Any], batch_size: torch.Size) -> TensorSpec:
    """Infer the spec of an entry: numeric if all values are numbers of the same shape."""
    arrays = [array for array in map(_to_numbers, examples) if array is not None]
    if len(arrays) < len(examples) or len({array.shape for array in arrays}) > 1:
        last = examples[-1]
        return NonTensor(shape=batch_size, example_data=last[0] if batch_size else last)
    # An env may return 1 from a reset and 0.5 from a step.
    dtype = np.result_type(*(array.dtype for array in arrays))
    return Unbounded(shape=arrays[0].shape, dtype=tensor_dtype(dtype)[1])


def _to_numbers(value: object) -> Array | None:
    """Convert a value to an array of numbers; ``None`` if it is not numeric."""
    if not isinstance(value, (bool, int, float, list, np.generic, np.ndarray, torch.Tensor)):
        return None
    try:
        array = np.asarray(value)
    except ValueError:
        return None
    return array if array.dtype.kind in "biuf" else None


def _encode(value: Any, spec: TensorSpec) -> Value:
    if isinstance(spec, NonTensor):
        if not spec.shape:
            return encode_object(value)
        rows = [None] * spec.shape[0] if value is None else list(value)
        return NonTensorStack(*[encode_object(row) for row in rows])
    if value is None:
        return spec.zero().cpu()
    dtype = torch.empty(0, dtype=spec.dtype).numpy().dtype
    if isinstance(value, np.ndarray) and value.dtype == object:
        blank = np.zeros(tuple(spec.shape[1:]), dtype)
        value = np.stack([blank if row is None else np.asarray(row, dtype) for row in value])
    return torch.from_numpy(np.array(value, dtype, order="C").reshape(tuple(spec.shape)))


def merge_final_info(info: Info) -> Info:
    """Replace the info of rows that reset in the same step by their info at ``final_info``."""
    final = info.get("final_info")
    if not isinstance(final, Mapping):
        return info
    merged = {name: value for name, value in info.items() if not name.endswith("final_info")}
    for name, last in final.items():
        rows = final.get(f"_{name}")
        if rows is None:
            continue
        if isinstance(last, Mapping):
            inner = {**merged.get(name, {}), "final_info": last}
            merged[name] = merge_final_info(inner)
        elif isinstance(merged.get(name), np.ndarray):
            kept = merged[name].copy()
            kept[rows] = last[rows]
            merged[name] = kept
        else:
            merged[name] = last
    return merged
