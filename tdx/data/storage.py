"""Storages of a replay buffer: the ring of rows, and a list of objects."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase
from torch import Tensor

from tdx.errors import ArgumentError


class Storage(ABC):
    """A ring of rows: when it is full, new rows replace the oldest.

    A row is one step, or with ``ndim`` above 1 the steps of a batch at one time. Steps are
    numbered row by row; ``gather`` takes these numbers.

    Args:
        max_size: Capacity in steps.
        ndim: Number of dims that count steps: 1 for ``[T]``, 2 for ``[T, B]``.

    Raises:
        ArgumentError: An argument is not an integer of at least 1.
    """

    def __init__(self, max_size: int, ndim: int = 1) -> None:
        for name, value in (("max_size", max_size), ("ndim", ndim)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ArgumentError(
                    f"{name} must be an integer of at least 1, got {value!r}",
                    hint="max_size counts steps, ndim the dims that count steps",
                )
        self.max_size = max_size
        self.ndim = ndim
        self.cursor = 0
        """Row that is written next."""
        self.write_count = 0
        """Number of rows ever written."""
        self.version = 0
        """Incremented by every change."""
        self.rows = 0
        """Number of filled rows."""

    @property
    def max_rows(self) -> int:
        """Capacity in rows."""
        return self.max_size // self.width

    @property
    def width(self) -> int:
        """Number of steps in a row."""
        return 1

    @property
    def oldest(self) -> int:
        """Oldest row."""
        return self.cursor if self.rows == self.max_rows else 0

    @property
    def device(self) -> torch.device:
        """Device of the data."""
        return torch.device("cpu")

    def __len__(self) -> int:
        return self.rows * self.width

    def __iter__(self) -> Iterator[Any]:
        for step in range(self.rows):
            yield self[step]

    def extend(self, data: Any) -> Tensor:
        """Write rows after the newest.

        Args:
            data: Rows along the first dim.

        Returns:
            Index of each row, int64.

        Raises:
            ArgumentError: The data is empty, or does not fit the stored data.
        """
        count = self._prepare(data)
        index = (self.cursor + torch.arange(count)) % self.max_rows
        skipped = max(0, count - self.max_rows)
        done = skipped
        while done < count:
            at = (self.cursor + done) % self.max_rows
            size = min(count - done, self.max_rows - at)
            self._write_rows(at, data, done, size)
            done += size
        self.rows = min(self.rows + count, self.max_rows)
        self.cursor = (self.cursor + count) % self.max_rows
        self.write_count += count
        self.version += 1
        return index

    @abstractmethod
    def _prepare(self, data: Any) -> int:
        """Check data before it is written, and return its number of rows."""

    @abstractmethod
    def _write_rows(self, at: int, data: Any, first: int, count: int) -> None:
        """Copy ``count`` rows of the data, from row ``first``, to the storage at row ``at``."""

    @abstractmethod
    def gather(self, steps: Tensor, name: str | None = None) -> Any:
        """Return a copy of steps.

        Args:
            steps: Step numbers, int64 ``[N]``.
            name: Name of the dim ``N`` in a TensorDict.
        """

    def positions(self, steps: Tensor) -> tuple[Tensor, ...]:
        """Return the index of steps in each dim that counts steps."""
        return (steps,)

    def row_positions(self, rows: Tensor) -> Tensor:
        """Return the position of each step of some rows: int64 ``[T]``, or ``[T * B, ndim]``."""
        return rows

    @abstractmethod
    def __getitem__(self, index: Any) -> Any:
        """Return stored data of shape ``[rows, *B]`` at an index, if possible without copying."""

    @abstractmethod
    def __setitem__(self, index: Any, data: Any) -> None:
        """Replace stored data at an index."""

    def empty(self, empty_write_count: bool = True) -> None:
        """Remove all steps.

        Args:
            empty_write_count: Reset ``write_count`` to 0.
        """
        self.cursor = self.rows = 0
        self.version += 1
        if empty_write_count:
            self.write_count = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}(len={len(self)}, max_size={self.max_size})"


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
                f"extend takes several items, got {type(data).__name__}",
                hint="use add() for one item",
            ) from None
        if not count:
            raise ArgumentError("the data is empty", hint="pass at least one item to extend()")
        return count

    def _write_rows(self, at: int, data: Any, first: int, count: int) -> None:
        items = [self._to_device(data[i]) for i in range(first, first + count)]
        self._items += [None] * (at + count - len(self._items))
        self._items[at : at + count] = items

    def _to_device(self, item: Any) -> Any:
        if self._device is not None and isinstance(item, (Tensor, TensorDictBase)):
            return item.to(self._device)
        return item

    def gather(self, steps: Tensor, name: str | None = None) -> Any:
        """Return items by number; :func:`collate` turns them into a batch."""
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
            self._items[index] = self._to_device(data)
        else:
            steps = range(len(self._items))[index] if isinstance(index, slice) else list(index)
            for step, item in zip(steps, data, strict=True):
                self._items[int(step)] = self._to_device(item)
        self.version += 1

    def empty(self, empty_write_count: bool = True) -> None:
        super().empty(empty_write_count)
        self._items = []


def collate(items: list[Any], name: str | None = None) -> Any:
    """Return a batch of items: TensorDicts, tensors and numbers stacked, others as a list.

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
    if all(isinstance(item, Tensor) for item in items):
        return torch.stack(items)
    if all(isinstance(item, (bool, int, float)) for item in items):
        return torch.tensor(items)
    return items


def find_time_dim(dim: int | None, ndim: int) -> int:
    """Return the dim of data that counts time steps.

    Args:
        dim: The given dim. ``None``: the last of the dims that count steps.
        ndim: Number of dims that count steps.

    Raises:
        ArgumentError: The dim is out of range.
    """
    found = ndim - 1 if dim is None else dim
    if not 0 <= found < ndim:
        raise ArgumentError(
            f"dim_extend={dim} is out of range for a storage with {ndim} dims of steps",
            hint="the storage's ndim is the number of dims of the data that count steps",
        )
    return found


def to_time_first(data: Any, dim: int) -> Any:
    """Move the time dim of tensors and TensorDicts to the front; other data is not changed."""
    if dim == 0 or not isinstance(data, (Tensor, TensorDictBase)) or data.ndim <= dim:
        return data
    return data.permute(dim, *(each for each in range(data.ndim) if each != dim))


def to_written_order(stored: Any, dim: int) -> Any:
    """Move the first dim of stored data back to where it was when it was written."""
    if dim == 0:
        return stored
    return stored.permute(*range(1, dim + 1), 0, *range(dim + 1, stored.ndim))
