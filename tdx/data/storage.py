"""Storage of a replay buffer: a ring of rows."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any, Protocol

import torch
from torch import Tensor

from tdx.data.saved import Saved, load, save
from tdx.data.snapshots import TensorRows, restore_storage, snapshot
from tdx.foundation.errors import ArgumentError

_SAVED_KINDS = "use a storage of tensors or a ListStorage, or implement as_tensors and load_saved"


class WriteListener(Protocol):
    """Is notified when steps are written, as a sampler with priorities."""

    def mark_update(self, index: Tensor, *, storage: Storage | None = None) -> None:
        """Handle new steps.

        Args:
            index: Step numbers, int64 ``[N]``.
            storage: Storage of the steps.
        """


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
        self._listeners: list[WriteListener] = []

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
        newest = (self.cursor - 1) % self.max_rows if self.rows else None
        count = self._prepare(data, newest)
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
        self._notify(index)
        return index

    @abstractmethod
    def append(self, item: Any) -> Tensor:
        """Write one row after the newest, and return its index, int64 ``[1]``.

        Raises:
            ArgumentError: The item does not fit the stored data.
        """

    def set(self, index: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Write rows at an index; rows are added as needed.

        Args:
            index: Row, or rows: a range, slice, list, or int64 tensor.
            data: One row, or rows along the first dim.
            set_cursor: No effect: only a writer moves the cursor.

        Raises:
            ArgumentError: The data does not fit the stored data or the index.
            IndexError: The index is out of range.
        """
        rows = self._set(index, data)
        self.rows = max(self.rows, int(rows.max()) + 1)
        self.version += 1
        self._notify(rows)

    @abstractmethod
    def _set(self, index: Any, data: Any) -> Tensor:
        """Write rows at an index, and return the rows, int64 ``[N]``."""

    def get(self, index: Any) -> Any:
        """Return stored data at an index, as ``storage[index]``."""
        return self[index]

    def contains(self, index: int) -> bool:
        """Return True if a row is filled."""
        return -self.rows <= index < self.rows

    @property
    def listeners(self) -> tuple[WriteListener, ...]:
        """Attached samplers."""
        return tuple(self._listeners)

    def attach(self, listener: WriteListener) -> None:
        """Notify a sampler of each write. Stored steps count as written."""
        if not any(each is listener for each in self._listeners):
            self._listeners.append(listener)

    def detach(self, listener: WriteListener) -> None:
        """Stop to notify a sampler."""
        self._listeners = [each for each in self._listeners if each is not listener]

    def _notify(self, rows: Tensor) -> None:
        for listener in self._listeners:
            listener.mark_update(self.row_steps(rows), storage=self)

    def row_steps(self, rows: Tensor) -> Tensor:
        """Return the numbers of the steps in some rows, int64 ``[rows * width]``."""
        if self.width == 1:
            return rows
        return (rows.unsqueeze(1) * self.width + torch.arange(self.width)).flatten()

    def step_numbers(self, index: Any) -> Tensor:
        """Return step numbers, the inverse of :meth:`positions`.

        Args:
            index: Step, int64 ``[N]``, ``[N, ndim]``, or a tuple of one tensor per dim.
        """
        if isinstance(index, tuple):
            index = torch.stack([torch.as_tensor(each) for each in index], -1)
        steps: Tensor = torch.as_tensor(index, dtype=torch.int64)
        return steps

    @abstractmethod
    def _prepare(self, data: Any, newest: int | None) -> int:
        """Check data before it is written, and return its number of rows.

        Args:
            data: Rows along the first dim.
            newest: Row that the data follows, if any.
        """

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

    def collate(self, gathered: Any, name: str | None) -> Any:
        """Return a batch of what :meth:`gather` returned.

        Args:
            gathered: Steps.
            name: Name of the first dim of TensorDicts.
        """
        return gathered

    @abstractmethod
    def __getitem__(self, index: Any) -> Any:
        """Return stored data of shape ``[rows, *B]`` at an index, if possible without copying."""

    @abstractmethod
    def __setitem__(self, index: Any, data: Any) -> None:
        """Replace stored data at an index."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the data, for :meth:`load_state_dict`."""

    @abstractmethod
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Replace the data by a copy of what :meth:`state_dict` returned.

        Raises:
            ArgumentError: The storage is too small, or was created for other data.
            StorageError: The state has another form.
        """

    def as_tensors(self) -> TensorRows:
        """Return the stored rows as tensors, if possible without copying.

        Raises:
            ArgumentError: The storage cannot be saved, for example because the items of a list
                differ in shape.
        """
        raise ArgumentError(f"a {type(self).__name__} cannot be saved", hint=_SAVED_KINDS)

    def load_saved(self, saved: Saved) -> None:
        """Replace the rows by saved ones; the cursor is set afterwards.

        Raises:
            ArgumentError: The storage is too small, or was created for other data.
        """
        raise ArgumentError(f"a {type(self).__name__} cannot be loaded", hint=_SAVED_KINDS)

    def snapshot(self, sampler: dict[str, Any]) -> Saved:
        """Return the content to save, with the state of a sampler; memory is shared."""
        return snapshot(self, self.as_tensors(), sampler)

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Save the data in a folder, without pickle; see :meth:`ReplayBuffer.dumps`."""
        save(FilePath(path), self.snapshot({}))

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Replace the data by what :meth:`dumps` saved; see :meth:`ReplayBuffer.loads`."""
        restore_storage(self, load(FilePath(path)))
        self.version += 1

    save = dump = dumps
    load = loads

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


def is_single(index: Any) -> bool:
    """Return True if an index selects one row."""
    return isinstance(index, int) or (isinstance(index, Tensor) and not index.ndim)


def as_rows(index: Any, rows: int) -> Tensor:
    """Return the rows of an index, int64 ``[N]``.

    Args:
        index: Row, range, slice, list, mask, or int64 tensor.
        rows: Number of rows, to resolve slices and negative rows.
    """
    if isinstance(index, slice):
        index = range(rows)[index]
    found = torch.tensor(index) if isinstance(index, range) else torch.as_tensor(index)
    if found.dtype is torch.bool:
        found = found.nonzero()
    found = found.reshape(-1).long().cpu()
    return torch.where(found < 0, found + rows, found)


def check_rows(rows: Tensor, count: int, max_rows: int) -> None:
    """Check that data of ``count`` rows can be written to some rows.

    Raises:
        ArgumentError: The number of rows differs.
        IndexError: A row is out of range.
    """
    if len(rows) != count:
        raise ArgumentError(
            f"the index has {len(rows)} rows, the data has {count}",
            hint="pass one row of data for each row of the index",
        )
    if count and not 0 <= int(rows.min()) <= int(rows.max()) < max_rows:
        raise IndexError(f"row {int(rows.max())} is out of range for {max_rows} rows")
