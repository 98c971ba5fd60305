"""Storages of lists of objects, and batches of such objects."""

from __future__ import annotations

import sys
from copy import deepcopy
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase, is_tensorclass
from torch import Tensor

from tdx.data.forms import map_tree, split_steps, stack_trees
from tdx.data.lazy_storages import LazyTensorStorage
from tdx.data.saved import Saved
from tdx.data.snapshots import TensorRows, check_room, fill
from tdx.data.storage import Storage, as_rows, check_rows, is_single
from tdx.foundation.errors import ArgumentError, StorageError


class ListStorage(Storage):
    """Stores items of any type and shape without copying them.

    Args:
        max_size: Capacity in items. ``None``: unlimited.
        device: Device to move tensors and TensorDicts to. ``None``: do not move them.

    Example:
        >>> from tdx import ListStorage, ReplayBuffer
        >>> buffer = ReplayBuffer(storage=ListStorage(3))
        >>> buffer.extend(["a", "b", "c", "d"])
        tensor([0, 1, 2, 0])
        >>> buffer[:]
        ['d', 'b', 'c']
    """

    def __init__(
        self,
        max_size: int | None = None,
        *,
        compilable: bool = False,
        device: torch.device | str | int | None = None,
    ) -> None:
        super().__init__(sys.maxsize if max_size is None else max_size)
        self._device = None if device is None else torch.device(device)
        self._items: list[Any] = []

    def _prepare(self, data: Any, newest: int | None) -> int:
        try:
            count = len(data)
        except TypeError:
            raise ArgumentError(
                f"extend takes several items, got {type(data).__name__}",
                hint="use add() for one item",
            ) from None
        if not count:
            raise ArgumentError("the data is empty", hint="pass at least one item to extend()")
        return count

    def extend(self, data: Any) -> Tensor:
        return super().extend(split_steps(data) if isinstance(data, dict) else data)

    def append(self, item: Any) -> Tensor:
        return super().extend([item])

    def _write_rows(self, at: int, data: Any, first: int, count: int) -> None:
        items = [self._to_device(data[i]) for i in range(first, first + count)]
        self._items += [None] * (at + count - len(self._items))
        self._items[at : at + count] = items

    def _set(self, index: Any, data: Any) -> Tensor:
        if is_single(index):
            rows, data = torch.tensor([int(index)]), [data]
        else:
            rows = as_rows(index, max(len(self._items), len(data)))
            data = split_steps(data) if isinstance(data, dict) else data
        check_rows(rows, len(data), self.max_size)
        for row, item in zip(rows.tolist(), data, strict=True):
            if row > len(self._items):
                raise IndexError(f"cannot write item {row} of a list of {len(self._items)} items")
            self._items[row : row + 1] = [self._to_device(item)]
        return rows

    def _to_device(self, item: Any) -> Any:
        if self._device is not None and hasattr(item, "to"):
            return item.to(self._device)
        return item

    def gather(self, steps: Tensor, name: str | None = None) -> Any:
        """Return items by number; :func:`collate` turns them into a batch."""
        return [self._items[step] for step in steps.tolist()]

    def collate(self, gathered: Any, name: str | None) -> Any:
        return collate(gathered, name)

    @property
    def _storage(self) -> list[Any]:
        """Items: code for TorchRL reads stored data by this name."""
        return self._items

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, Tensor):
            index = index.nonzero().flatten() if index.dtype == torch.bool else index
            index = index.tolist()
        if isinstance(index, (list, tuple, range)):
            return [self._items[step] for step in index]
        return self._items[index]

    def __setitem__(self, index: Any, data: Any) -> None:
        self._set(index, data)
        self.version += 1

    def as_tensors(self) -> TensorRows:
        copy = LazyTensorStorage(max(len(self), 1))
        items = self._items
        if not items:
            return copy
        try:
            same = isinstance(items[0], (Tensor, TensorDictBase))
            if not same or any(type(item) is not type(items[0]) for item in items):
                raise TypeError(f"it has items of type {_types(items)}")
            copy.extend(torch.stack(items))
        except (TypeError, RuntimeError, KeyError, ArgumentError) as error:
            raise ArgumentError(
                f"the list cannot be saved: {error}",
                hint="only tensors and TensorDicts of one shape can be saved without pickle",
            ) from None
        return copy

    def load_saved(self, saved: Saved) -> None:
        check_room(saved, self.max_size)
        copy = LazyTensorStorage(max(saved.rows, 1))
        fill(copy, saved)
        self.empty()
        if saved.rows:
            self.extend(list(copy[:].unbind(0)))

    def empty(self, empty_write_count: bool = True) -> None:
        super().empty(empty_write_count)
        self._items = []

    def state_dict(self) -> dict[str, Any]:
        return {"_storage": [map_tree(_copy, item) for item in self._items]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        items = state_dict.get("_storage")
        if not isinstance(items, list):
            raise StorageError(
                f"the state of a list is expected, got {type(items).__name__}",
                hint="pass what state_dict() of a ListStorage returned",
            )
        if len(items) > self.max_size:
            raise ArgumentError(
                f"the state has {len(items)} items, this storage has room for {self.max_size}",
                hint=f"use a storage with max_size={len(items)} or more",
            )
        self._items = [map_tree(_copy, item) for item in items]
        self.rows, self.cursor = len(items), len(items) % self.max_rows
        self.version += 1


class LazyStackStorage(ListStorage):
    """A list of TensorDicts whose batches are lazy stacks, so that shapes may differ.

    Args:
        max_size: Capacity in items. ``None``: unlimited.
        compilable: No effect.
        stack_dim: Dim of a batch along which items are stacked.
        device: Device to move items to. ``None``: do not move them.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import LazyStackStorage, ReplayBuffer
        >>> buffer = ReplayBuffer(storage=LazyStackStorage(9), batch_size=4)
        >>> _ = buffer.extend([TensorDict(a=torch.zeros(n)) for n in (1, 2)])
        >>> buffer.sample().batch_size
        torch.Size([4])
    """

    def __init__(
        self,
        max_size: int | None = None,
        *,
        compilable: bool = False,
        stack_dim: int = 0,
        device: torch.device | str | int | None = None,
    ) -> None:
        super().__init__(max_size, compilable=compilable, device=device)
        self.stack_dim = stack_dim

    def collate(self, gathered: Any, name: str | None) -> Any:
        """Return a lazy stack of items."""
        return LazyStackedTensorDict.lazy_stack(gathered, self.stack_dim)


def _types(items: list[Any]) -> str:
    return ", ".join(sorted({type(item).__name__ for item in items}))


def _copy(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else deepcopy(leaf)


def collate(items: list[Any], name: str | None = None) -> Any:
    """Return a batch of items: tensors, TensorDicts, numbers and trees of them stacked.

    Items of other types are returned as a list.

    Args:
        items: Items to stack along a new first dim.
        name: Name of the new dim of TensorDicts.

    Example:
        >>> collate([1, 2])
        tensor([1, 2])
    """
    if all(isinstance(item, TensorDictBase) for item in items):
        try:
            batch: TensorDictBase = torch.stack(items)
        except (RuntimeError, KeyError):
            batch = LazyStackedTensorDict(*items)
        if name is not None:
            batch.names = [name, *batch.names[1:]]
        return batch
    if all(isinstance(item, Tensor) or is_tensorclass(item) for item in items):
        return torch.stack(items)
    if all(isinstance(item, (bool, int, float)) for item in items):
        return torch.tensor(items)
    return stack_trees(items)
