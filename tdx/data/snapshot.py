"""A storage as what can be saved, and back."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.data.layout import Leaves
from tdx.data.list_storage import ListStorage
from tdx.data.saved import Saved
from tdx.data.storage import Storage
from tdx.data.tensor_storage import LazyTensorStorage
from tdx.errors import ArgumentError


def snapshot(storage: Storage, sampler: dict[str, Any]) -> Saved:
    """What is saved of a storage.

    Args:
        storage: the storage; its memory is shared.
        sampler: the state of the sampler.

    Raises:
        ArgumentError: a list holds other things than tensors and TensorDicts of one shape.
    """
    held = _as_tensors(storage)
    rows = held.rows
    return Saved(
        layout=held.layout,
        leaves={} if held.layout is None else _in_order(held),
        begins=held.begins[:rows],
        rows=rows,
        batch=tuple(held.batch),
        cursor=storage.cursor,
        max_rows=storage.max_rows,
        write_count=storage.write_count,
        sampler=sampler,
    )


def _as_tensors(storage: Storage) -> LazyTensorStorage:
    if isinstance(storage, LazyTensorStorage):
        return storage
    assert isinstance(storage, ListStorage)
    copy = LazyTensorStorage(max(len(storage), 1))
    if len(storage):
        items = storage[:]
        same = isinstance(items[0], (Tensor, TensorDictBase))
        try:
            if not same or any(type(item) is not type(items[0]) for item in items):
                raise TypeError(f"there are items of type {_types(items)}")
            copy.extend(torch.stack(items))
        except (TypeError, RuntimeError, KeyError, ArgumentError) as error:
            raise ArgumentError(
                f"the list cannot be saved: {error}",
                hint="only tensors and TensorDicts of one shape are saved, without pickle",
            ) from None
    return copy


def _in_order(held: LazyTensorStorage) -> Leaves:
    assert held.layout is not None
    return {path: held.leaves[path][: held.rows] for path in held.layout.shapes}


def _types(items: list[Any]) -> str:
    return ", ".join(sorted({type(item).__name__ for item in items}))


def restored(storage: Storage, saved: Saved) -> None:
    """Put what was saved into a storage.

    Raises:
        ArgumentError: it is too small for it, or made for other data.
    """
    if isinstance(storage, ListStorage):
        copy = LazyTensorStorage(max(saved.rows, 1))
        _fill(copy, saved)
        storage.empty()
        if saved.rows:
            storage.extend(list(copy[:].unbind(0)))
    else:
        assert isinstance(storage, LazyTensorStorage)
        _fill(storage, saved)
    storage.write_count = saved.write_count
    full = saved.rows == storage.max_rows
    same = storage.max_rows == saved.max_rows
    if same:
        storage.cursor = saved.cursor
    else:
        storage.cursor = 0 if full else saved.rows


def _fill(storage: LazyTensorStorage, saved: Saved) -> None:
    steps = saved.rows * torch.Size(saved.batch).numel()
    if len(saved.batch) != storage.ndim - 1 and saved.layout is not None:
        raise ArgumentError(
            f"the saved buffer counts steps along {len(saved.batch) + 1} dims, "
            f"this one along {storage.ndim}",
            hint=f"use a storage with ndim={len(saved.batch) + 1}",
        )
    if steps > storage.max_size:
        raise ArgumentError(
            f"{steps} steps are saved, this storage holds {storage.max_size}",
            hint=f"use one of max_size={steps} or more",
        )
    if saved.layout is None:
        storage.empty()
        return
    order = torch.arange(saved.rows)
    max_rows = storage.max_size // max(torch.Size(saved.batch).numel(), 1)
    if saved.rows == saved.max_rows and max_rows != saved.max_rows:
        order = (order + saved.cursor) % saved.rows
    storage.fill(saved.layout, saved.batch, saved.leaves, saved.begins, order)
