"""Keep whatever objects in a list."""

from __future__ import annotations

import sys
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase
from torch import Tensor

from tdx.data.storage import Storage
from tdx.errors import ArgumentError


class ListStorage(Storage):
    """Keeps the items themselves, of whatever kind and shape, without a copy.

    Args:
        max_size: the most items it holds; no end by default.
        device: where tensors and TensorDicts are put; left where they are by default.

    Example:
        >>> from tdx import ListStorage, ReplayBuffer
        >>> buffer = ReplayBuffer(storage=ListStorage(3))
        >>> buffer.extend(["a", "b", "c", "d"])
        tensor([0, 1, 2, 0])
        >>> buffer[:]
        ['d', 'b', 'c']
    """

    def __init__(
        self, max_size: int | None = None, *, device: torch.device | str | None = None
    ) -> None:
        super().__init__(sys.maxsize if max_size is None else max_size)
        self._device = None if device is None else torch.device(device)
        self._items: list[Any] = []

    def _prepare(self, data: Any) -> int:
        try:
            count = len(data)
        except TypeError:
            raise ArgumentError(
                f"extend takes several items, got {type(data).__name__}", hint="add() takes one"
            ) from None
        if not count:
            raise ArgumentError("the data has no items", hint="pass at least one item to extend()")
        return count

    def _write_rows(self, at: int, data: Any, first: int, count: int) -> None:
        items = [self._placed(data[i]) for i in range(first, first + count)]
        self._items += [None] * (at + count - len(self._items))
        self._items[at : at + count] = items

    def _placed(self, item: Any) -> Any:
        if self._device is not None and isinstance(item, (Tensor, TensorDictBase)):
            return item.to(self._device)
        return item

    def gather(self, steps: Tensor, name: str | None = None) -> Any:
        """The items of these numbers; :func:`collate` puts them together."""
        return [self._items[step] for step in steps.tolist()]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, Tensor):
            index = index.nonzero().flatten() if index.dtype == torch.bool else index
            index = index.tolist()
        if isinstance(index, (list, tuple, range)):
            return [self._items[step] for step in index]
        return self._items[index]

    def __setitem__(self, index: Any, data: Any) -> None:
        if isinstance(index, int):
            self._items[index] = self._placed(data)
        else:
            steps = range(len(self._items))[index] if isinstance(index, slice) else list(index)
            for step, item in zip(steps, data, strict=True):
                self._items[int(step)] = self._placed(item)
        self.version += 1

    def empty(self, empty_write_count: bool = True) -> None:
        super().empty(empty_write_count)
        self._items = []


def collate(items: list[Any]) -> Any:
    """One batch of items: TensorDicts, tensors and numbers stacked, others as a list.

    Example:
        >>> collate([1, 2])
        tensor([1, 2])
    """
    if all(isinstance(item, TensorDictBase) for item in items):
        try:
            return torch.stack(items)
        except (RuntimeError, KeyError):
            return LazyStackedTensorDict(*items)
    if all(isinstance(item, Tensor) for item in items):
        return torch.stack(items)
    if all(isinstance(item, (bool, int, float)) for item in items):
        return torch.tensor(items)
    return items
