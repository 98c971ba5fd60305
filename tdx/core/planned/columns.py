"""Between TensorDicts and flat columns of tensors by key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.keys import NestedKey, normalize_key, split_key
from tdx.tensordicts import new_tensordict, read


def leaves_of(tensordict: TensorDictBase) -> dict[NestedKey, Any]:
    """Every leaf of a TensorDict by its key."""
    found: dict[NestedKey, Any] = {}
    for name in tensordict.keys():
        value = tensordict._get_str(name, None)
        if isinstance(value, Tensor):
            found[name] = value
        elif isinstance(value, TensorDictBase) and not getattr(value, "_is_non_tensor", False):
            for key, leaf in leaves_of(value).items():
                found[(name, *split_key(key))] = leaf
        else:
            found[name] = value
    return found


def stacked_leaves(rows: Iterable[TensorDictBase]) -> dict[NestedKey, Tensor]:
    """The leaves of many TensorDicts ``[*B]`` as columns ``[T, *B, ...]``."""
    rows = list(rows)
    return {key: torch.stack([read(row, key) for row in rows]) for key in leaves_of(rows[0])}


def as_tensordict(
    columns: Mapping[NestedKey, Tensor],
    batch_size: torch.Size,
    device: torch.device | None,
    groups: Mapping[tuple[str, ...], tuple[int, ...]] | None = None,
) -> TensorDictBase:
    """A TensorDict of columns by key.

    Args:
        columns: ``[*batch_size, ...]`` each.
        batch_size: of the TensorDict.
        device: of the columns.
        groups: the dims that nested groups have beyond the batch, by their key's parts.
    """
    return _level(
        {split_key(key): value for key, value in columns.items()},
        (),
        batch_size,
        device,
        groups or {},
    )


def _level(
    columns: Mapping[tuple[str, ...], Tensor],
    path: tuple[str, ...],
    batch_size: torch.Size,
    device: torch.device | None,
    groups: Mapping[tuple[str, ...], tuple[int, ...]],
) -> TensorDictBase:
    fields: dict[str, Any] = {}
    inner: dict[str, dict[tuple[str, ...], Tensor]] = {}
    for parts, value in columns.items():
        if len(parts) == 1:
            fields[parts[0]] = value
        else:
            inner.setdefault(parts[0], {})[parts[1:]] = value
    for name, columns_of_group in inner.items():
        fields[name] = _level(columns_of_group, (*path, name), batch_size, device, groups)
    size = torch.Size((*batch_size, *groups.get(path, ())))
    return new_tensordict(fields, size, device)


def group_dims(tensordict: TensorDictBase) -> dict[tuple[str, ...], tuple[int, ...]]:
    """The dims that each nested group has beyond the TensorDict's own, by its key's parts."""
    lead = tensordict.ndim
    found = {}
    for key in tensordict.keys(True, False):
        value = tensordict.get(key)
        if isinstance(value, TensorDictBase) and not getattr(value, "_is_non_tensor", False):
            found[split_key(normalize_key(key))] = tuple(value.batch_size[lead:])
    return found


def same_columns(first: Mapping[NestedKey, Tensor], values: Mapping[NestedKey, Tensor]) -> bool:
    """Whether each value ``[T, *B, ...]`` continues a root's entry of the same shape and dtype."""
    return all(
        key in first
        and isinstance(first[key], Tensor)
        and first[key].shape == value.shape[1:]
        and first[key].dtype == value.dtype
        for key, value in values.items()
    )
