"""Storages of a replay buffer: rings of rows, of tensors or of any objects."""

from __future__ import annotations

import math
import os
import shutil
import sys
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from pathlib import Path as FilePath
from typing import Any, Protocol, TypeGuard

import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase, is_tensorclass
from torch import Tensor

from tdx.core.transforms.spec_maps import missing_key_error
from tdx.core.transforms.validation import check_integer
from tdx.data.layout import (
    Continuity,
    Form,
    Index,
    Layout,
    LeavesByPath,
    Path,
    StateDict,
    as_entries,
    build_tensordict,
    leaves_of,
    nest_leaves,
    split_steps,
    stack_trees,
    to_written_order,
)
from tdx.data.saved import Saved, load, save
from tdx.foundation.errors import ArgumentError, StorageError
from tdx.foundation.keys import NestedKey, normalize_key
from tdx.foundation.torch_internals import tree_map, unravel_positions
from tdx.specs.arguments import Value

_SAVED_KINDS = "use a storage of tensors or a ListStorage, or implement as_tensors and load_saved"


class WriteListener(Protocol):
    """Is notified when steps are written, as a sampler with priorities."""

    def mark_update(self, index: Tensor, *, storage: Storage | None = None) -> None:
        """Handle new steps, by their numbers, int64 ``[N]``."""

    def mark_empty(self) -> None:
        """Handle the removal of all steps."""


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
            check_integer(value, name, 1, "max_size counts steps, ndim the dims that count steps")
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

    def extend(self, data: object) -> Tensor:
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
    def append(self, item: object) -> Tensor:
        """Write one row after the newest, and return its index, int64 ``[1]``.

        Raises:
            ArgumentError: The item does not fit the stored data.
        """

    def set(self, index: Index, data: object, *, set_cursor: bool = True) -> None:
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
    def _set(self, index: Index, data: object) -> Tensor:
        """Write rows at an index, and return the rows, int64 ``[N]``."""

    def get(self, index: Index) -> Any:
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
        if not any(attached is listener for attached in self._listeners):
            self._listeners.append(listener)

    def detach(self, listener: WriteListener) -> None:
        """Stop to notify a sampler."""
        self._listeners = [attached for attached in self._listeners if attached is not listener]

    def _notify(self, rows: Tensor) -> None:
        for listener in self._listeners:
            listener.mark_update(self.row_steps(rows), storage=self)

    def row_steps(self, rows: Tensor) -> Tensor:
        """Return the numbers of the steps in some rows, int64 ``[rows * width]``."""
        if self.width == 1:
            return rows
        return (rows.unsqueeze(1) * self.width + torch.arange(self.width)).flatten()

    def step_numbers(self, index: Index) -> Tensor:
        """Return step numbers, the inverse of :meth:`positions`.

        Args:
            index: Step, int64 ``[N]``, ``[N, ndim]``, or a tuple of one tensor per dim.
        """
        if isinstance(index, tuple):
            index = torch.stack([torch.as_tensor(part) for part in index], -1)
        steps: Tensor = torch.as_tensor(index, dtype=torch.int64)
        return steps

    @abstractmethod
    def _prepare(self, data: object, newest: int | None) -> int:
        """Check data before it is written, and return its number of rows.

        ``newest`` is the row that the data follows, if any.
        """

    @abstractmethod
    def _write_rows(self, at: int, data: object, first: int, count: int) -> None:
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
    def __getitem__(self, index: Index) -> Any:
        """Return stored data of shape ``[rows, *B]`` at an index, if possible without copying."""

    @abstractmethod
    def __setitem__(self, index: Index, data: object) -> None:
        """Replace stored data at an index."""

    @abstractmethod
    def state_dict(self) -> StateDict:
        """Return a copy of the data, for :meth:`load_state_dict`."""

    @abstractmethod
    def load_state_dict(self, state_dict: StateDict) -> None:
        """Replace the data by a copy of what :meth:`state_dict` returned.

        Raises:
            ArgumentError: The storage is too small, or was created for other data.
            StorageError: The state has another form.
        """

    def as_tensors(self) -> TensorStorage:
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

    def snapshot(self, sampler: StateDict) -> Saved:
        """Return the content to save, with the state of a sampler; memory is shared."""
        tensors = self.as_tensors()
        rows = tensors.rows
        shapes = {} if tensors.layout is None else tensors.layout.shapes
        return Saved(
            layout=tensors.layout,
            leaves={path: tensors.leaves[path][:rows] for path in shapes},
            begins=tensors.begins[:rows],
            rows=rows,
            batch=tuple(tensors.batch),
            cursor=self.cursor,
            max_rows=self.max_rows,
            write_count=self.write_count,
            sampler=sampler,
        )

    def restore(self, saved: Saved) -> None:
        """Replace the content by a saved one; an error leaves it unchanged.

        Raises:
            ArgumentError: The storage is too small, or was created for other data.
        """
        self.load_saved(saved)
        self.write_count = saved.write_count
        if self.max_rows == saved.max_rows:
            self.cursor = saved.cursor
        else:
            self.cursor = 0 if saved.rows == self.max_rows else saved.rows

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Save the data in a folder, without pickle; see :meth:`ReplayBuffer.dumps`."""
        save(FilePath(path), self.snapshot({}))

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Replace the data by what :meth:`dumps` saved; see :meth:`ReplayBuffer.loads`."""
        self.restore(load(FilePath(path)))
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
        for listener in self._listeners:
            listener.mark_empty()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(len={len(self)}, max_size={self.max_size})"


def is_single(index: Index) -> TypeGuard[int | Tensor]:
    """Return True if an index selects one row."""
    return isinstance(index, int) or (isinstance(index, Tensor) and not index.ndim)


def as_rows(index: Index, rows: int) -> Tensor:
    """Return the rows of an index, int64 ``[N]``; negative rows count from the end of ``rows``."""
    if isinstance(index, slice):
        index = range(rows)[index]
    numbers = torch.tensor(index) if isinstance(index, range) else torch.as_tensor(index)
    if numbers.dtype is torch.bool:
        numbers = numbers.nonzero()
    numbers = numbers.reshape(-1).long().cpu()
    return torch.where(numbers < 0, numbers + rows, numbers)


def check_rows(rows: Tensor, count: int, max_rows: int) -> None:
    """Check that data of ``count`` rows can be written to some rows."""
    if len(rows) != count:
        raise ArgumentError(
            f"the index has {len(rows)} rows, the data has {count}",
            hint="pass one row of data for each row of the index",
        )
    if count and not 0 <= int(rows.min()) <= int(rows.max()) < max_rows:
        raise IndexError(f"row {int(rows.max())} is out of range for {max_rows} rows")


def moves_oldest_first(saved: Saved, max_size: int) -> bool:
    """Return True if saved rows change their order in a storage of ``max_size`` steps."""
    max_rows = max_size // max(torch.Size(saved.batch).numel(), 1)
    return saved.rows == saved.max_rows and max_rows != saved.max_rows


def check_room(saved: Saved, max_size: int) -> None:
    """Raise an ``ArgumentError`` if a storage has no room for saved rows."""
    steps = saved.rows * torch.Size(saved.batch).numel()
    if steps > max_size:
        raise ArgumentError(
            f"the saved buffer has {steps} steps, this storage has room for {max_size}",
            hint=f"use a storage with max_size={steps} or more",
        )


class TensorStorage(Storage):
    """Stores steps in tensors that the caller provides; their rows count as filled.

    Args:
        storage: Tensor, TensorDict, tensorclass, or nested dicts, lists and tuples of tensors,
            ``[rows, ...]``. Writing to the storage changes it. One without entries only sets
            the capacity.
        max_size: Number of steps in it, if given.
        device: Device to move it to. ``None`` or ``"auto"``: its device.
        ndim: Number of dims that count steps: 2 for ``[T, B]``.
        compilable: No effect.

    Raises:
        ArgumentError: The data has another type or size.

    Example:
        >>> import torch
        >>> from tdx import ReplayBuffer, TensorStorage
        >>> buffer = ReplayBuffer(storage=TensorStorage(torch.arange(4)))
        >>> buffer.extend(torch.tensor([7]))
        tensor([0])
        >>> buffer[:]
        tensor([7, 1, 2, 3])
    """

    layout: Layout | None
    _form: Form | None
    _batch: torch.Size
    _leaves: LeavesByPath
    _packs: list[Tensor]
    _tree: dict[str, Any]
    _incoming: LeavesByPath

    def __init__(
        self,
        storage: Any,
        max_size: int | None = None,
        *,
        device: torch.device | str | None = "cpu",
        ndim: int = 1,
        compilable: bool = False,
    ) -> None:
        if storage is None:
            raise ArgumentError(
                "Expected storage to be non-null: the data is missing",
                hint="pass data, or use LazyTensorStorage(max_size)",
            )
        entries, form = as_entries(storage, ndim)
        steps = entries.shape[:ndim].numel()
        if max_size is not None and max_size != steps:
            raise ArgumentError(
                f"The max-size and the storage shape mismatch: {max_size} and {steps} steps",
                hint="leave out max_size",
            )
        super().__init__(steps, ndim)
        self._prepare_empty(entries.device if device in (None, "auto") else device)
        entries = entries.to(self._device)
        leaves = leaves_of(entries, ndim)
        if not leaves:
            return  # allocated with the first data
        self.layout = Layout.of(entries, leaves, ndim)
        self._form = form
        self.rows, self._batch = entries.shape[0], entries.shape[1:ndim]
        self._leaves = dict(leaves)
        self._packs = [leaf.view(1, steps, *leaf.shape[ndim:]) for leaf in leaves.values()]
        self._tree = nest_leaves({path: i for i, path in enumerate(leaves)}, self.layout.groups)
        self._continuity = Continuity(self.layout.shapes, self.rows, self.width)

    def _prepare_empty(self, device: torch.device | str | None) -> None:
        self._device = torch.device("cpu" if device is None else device)
        self.layout = None
        self._form = None
        self._batch = torch.Size()
        self._leaves, self._packs, self._tree, self._incoming = {}, [], {}, {}
        self._continuity = Continuity()

    @property
    def initialized(self) -> bool:
        """True if the tensors are allocated."""
        return self.layout is not None

    @property
    def width(self) -> int:
        """Number of steps in a row; 1 before the first data."""
        return math.prod(self._batch)

    @property
    def device(self) -> torch.device:
        """Device of the data."""
        return self._device

    @property
    def shape(self) -> torch.Size:
        """Dims of the stored data that count steps, ``[rows, *B]``."""
        return torch.Size((self.rows, *self._batch))

    @property
    def begins(self) -> Tensor:
        """Mask of the steps that do not continue the previous one, bool ``[max_rows, width]``."""
        return self._continuity.begins

    @property
    def batch(self) -> torch.Size:
        """Dims of a row that count steps, ``[*B]``."""
        return self._batch

    @property
    def leaves(self) -> LeavesByPath:
        """Tensors by path, ``[max_rows, *B, ...]``."""
        return self._leaves

    def positions(self, steps: Tensor) -> tuple[Tensor, ...]:
        if not self._batch:
            return (steps,)
        return unravel_positions(steps, (self.max_rows, *self._batch))

    def row_positions(self, rows: Tensor) -> Tensor:
        if self.ndim == 1:
            return rows
        return torch.stack(self.positions(self.row_steps(rows)), -1)

    def step_numbers(self, index: Index) -> Tensor:
        steps = super().step_numbers(index)
        if self.ndim == 1 or not steps.ndim or steps.shape[-1] != self.ndim:
            return steps
        sizes = torch.tensor([*self._batch, 1]).flip(0).cumprod(0).flip(0)
        return (steps * sizes.to(steps.device)).sum(-1)

    def leaf(self, key: NestedKey) -> Tensor | None:
        """Return the tensor of a key, ``[max_rows, *B, ...]``, or ``None``."""
        return self._leaves.get(key if isinstance(key, tuple) else (key,))

    # Writing

    def _prepare(self, data: object, newest: int | None) -> int:
        entries, form = as_entries(data, self.ndim)
        if form is not None and form != self._form:
            if self._form is not None or self.rows:
                raise ArgumentError(
                    "the data is nested in another way than that of the storage",
                    hint="write data of one type and structure",
                )
            self._form = form
        leaves = leaves_of(entries, self.ndim)
        batch = entries.shape[: self.ndim]
        if not math.prod(batch):
            raise ArgumentError(
                f"the data has no steps: its shape is {tuple(batch)}",
                hint="pass at least one step to extend()",
            )
        layout = Layout.of(entries, leaves, self.ndim)
        if self.layout is None:
            self.allocate(layout, batch[1:])
        self._check(layout, batch[1:])
        self._incoming = leaves
        count = batch[0]
        self._continuity.compare(leaves, self._leaves, newest, (count, self.width))
        return count

    def append(self, item: object) -> Tensor:
        if not isinstance(item, (Tensor, TensorDictBase, dict, list, tuple)):
            item = item if hasattr(item, "unsqueeze") else torch.as_tensor(item)
        return self.extend(self._as_row(item))

    def _as_row(self, item: object) -> Any:
        entries, form = as_entries(item, self.ndim - 1)
        row = entries.unsqueeze(0)
        return row if form is None else form(row)

    def _set(self, index: Index, data: object) -> Tensor:
        if is_single(index):
            index, data = [int(index)], self._as_row(data)
        elif isinstance(data, list):
            data = torch.stack(data)
        try:
            count = self._prepare(data, None)
            rows = as_rows(index, max(self.rows, count))
            check_rows(rows, count, self.max_rows)
            first = int(rows[0])
            if torch.equal(rows, torch.arange(first, first + count)):
                self._write_rows(first, data, 0, count)
            else:
                for path, leaf in self._leaves.items():
                    leaf[rows] = self._incoming[path].to(leaf.device)
                self._continuity.clear(rows)
        finally:
            self._incoming = {}
        return rows

    def allocate(self, layout: Layout, batch: torch.Size) -> None:
        """Allocate memory for steps of a layout.

        Raises:
            ArgumentError: A single row does not fit.
            StorageError: The disk is full.
        """
        rows = self.max_size // max(math.prod(batch), 1)
        if not rows:
            raise ArgumentError(
                f"max_size={self.max_size} is less than the {math.prod(batch)} steps of one row",
                hint="max_size counts the steps of all envs",
            )
        self._pack(layout, torch.Size((rows, *batch)))
        self.layout, self._batch = layout, batch
        self._continuity = Continuity(layout.shapes, rows, self.width)

    def _pack(self, layout: Layout, rows: torch.Size) -> None:
        """Allocate leaves of the same shape and dtype together, so that one call gathers them."""
        alike: dict[tuple[torch.Size, torch.dtype], list[Path]] = {}
        for path, shape in layout.shapes.items():
            alike.setdefault((shape, layout.dtypes[path]), []).append(path)
        packs: list[Tensor] = []
        numbers: dict[Path, int] = {}
        self._leaves = {}
        for (shape, dtype), paths in alike.items():
            pack = self._allocate_pack(torch.Size((len(paths), *rows, *shape)), dtype)
            packs.append(pack.view(len(paths), rows.numel(), *shape))
            for path, leaf in zip(paths, pack.unbind(0), strict=True):
                numbers[path] = len(numbers)
                self._leaves[path] = leaf
        self._packs = packs
        self._tree = nest_leaves(numbers, layout.groups)

    def _allocate_pack(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self._device)

    def _check(self, layout: Layout, batch: torch.Size) -> None:
        known = self.layout
        assert known is not None
        if batch != self._batch:
            raise ArgumentError(
                f"the data has batch dims {tuple(batch)}, the storage has {tuple(self._batch)}",
                hint="write data of the same envs, or use a new storage",
            )
        known.require(layout)

    def _write_rows(self, at: int, data: object, first: int, count: int) -> None:
        for path, leaf in self._leaves.items():
            leaf[at : at + count].copy_(self._incoming[path][first : first + count])
        self._continuity.write(at, first, count)

    def fill(
        self,
        layout: Layout,
        batch: tuple[int, ...],
        leaves: LeavesByPath,
        begins: Tensor,
        order: Tensor,
    ) -> None:
        """Load saved rows ``[rows, *B, ...]`` of each leaf and their marks, in the given order.

        Raises:
            ArgumentError: The storage was created for other data.
        """
        if self.layout is None:
            self.allocate(layout, torch.Size(batch))
        self._check(layout, torch.Size(batch))
        rows = len(order)
        for path, leaf in self._leaves.items():
            leaf[:rows].copy_(leaves[path][order])
        self._continuity.begins[:rows] = begins[order]
        self.rows, self.cursor = rows, rows % self.max_rows
        self.version += 1

    def extend(self, data: object) -> Tensor:
        try:
            return super().extend(data)
        finally:
            self._incoming = {}

    # Reading

    def gather(self, steps: Tensor, name: str | None = None) -> Any:
        """Return a copy of steps, ``[N, ...]``.

        Args:
            steps: Step numbers, int64 ``[N]``, on the device of the storage.
            name: Name of the dim ``N`` in a TensorDict.
        """
        assert self.layout is not None
        values: list[Tensor] = []
        for pack in self._packs:
            values += pack.index_select(1, steps).unbind(0)
        if not self.layout.groups:
            return values[0]
        names = [name, *self.layout.names] if name or self.layout.names else None
        size, groups = torch.Size((len(steps),)), self.layout.groups
        batch = build_tensordict(self._tree, groups, size, self._device, names, values)
        return batch if self._form is None else self._form(batch)

    def _view(self, rows: int | None = None) -> Any:
        """Return stored data, ``[rows, *B, ...]``, without copying; all filled rows by default."""
        if self.layout is None:
            raise IndexError("the storage is empty")
        rows = self.rows if rows is None else rows
        tree = {path: leaf[:rows] for path, leaf in self._leaves.items()}
        if not self.layout.groups:
            return tree[()]
        nested, size = nest_leaves(tree, self.layout.groups), torch.Size((rows, *self._batch))
        return build_tensordict(nested, self.layout.groups, size, self._device)

    @property
    def _storage(self) -> Any:
        """All rows, filled or not: code for TorchRL reads stored data by this name."""
        if self.layout is None:
            return None
        data = self._view(self.max_rows)
        return data if self._form is None else self._form(data)

    def __getitem__(self, index: Index) -> Any:
        if isinstance(index, range):
            index = torch.tensor(index)
        entries = self._view()[index]
        if self._form is None or not isinstance(entries, TensorDictBase):
            return entries
        return self._form(entries)

    def assign(self, index: Index, data: object, dim: int) -> None:
        """Replace stored data at an index into data whose time dim is ``dim``."""
        target = to_written_order(self._view(), dim)
        target[index] = as_entries(data, 0)[0]
        marks = self.begins[: self.rows].view(*self.shape)
        to_written_order(marks, dim)[index] = False
        self.version += 1

    def __setitem__(self, index: Index, data: Any) -> None:
        stored = self._view()
        if self._form is not None:
            data = as_entries(data, 0)[0]
        if isinstance(index, range):
            index = torch.tensor(index)
        if isinstance(stored, TensorDictBase):
            target = stored[index]
            ndim = target.ndim - len(self.layout.groups[()]) if self.layout else 0
            layout = Layout.of(data, leaves_of(data, ndim), ndim)
            self._check(layout, self._batch)
            for path, value in leaves_of(data.expand(target.shape), ndim).items():
                stored.get(path)[index] = value
        else:
            stored[index] = data
        self._continuity.clear(index)
        self.version += 1

    def empty(self, empty_write_count: bool = True) -> None:
        super().empty(empty_write_count)
        self._continuity.empty()

    # State

    def as_tensors(self) -> TensorStorage:
        return self

    def load_saved(self, saved: Saved) -> None:
        """See :class:`Storage`; rows are loaded oldest first into a storage of another size."""
        if len(saved.batch) != self.ndim - 1 and saved.layout is not None:
            raise ArgumentError(
                f"the saved buffer has {len(saved.batch) + 1} dims of steps, this storage has "
                f"{self.ndim}",
                hint=f"use a storage with ndim={len(saved.batch) + 1}",
            )
        check_room(saved, self.max_size)
        if saved.layout is None:
            self.empty()
            return
        order = torch.arange(saved.rows)
        if moves_oldest_first(saved, self.max_size):
            order = (order + saved.cursor) % saved.rows
        self.fill(saved.layout, saved.batch, saved.leaves, saved.begins, order)

    def state_dict(self) -> StateDict:
        if self.layout is None:
            return {"_storage": None, "_len": 0}
        view = self._view()
        return {
            "_storage": view.clone() if isinstance(view, Tensor) else view.clone().to_dict(),
            "_len": self.rows,
            "groups": [(path, tuple(dims)) for path, dims in self.layout.groups.items()],
            "begins": self.begins[: self.rows].clone(),
        }

    def load_state_dict(self, state_dict: StateDict) -> None:
        try:
            data, rows = state_dict["_storage"], state_dict["_len"]
            if rows and not isinstance(data, Tensor):
                data = TensorDict(data, [])
                for path, dims in state_dict["groups"]:
                    group = data.get(path) if path else data
                    leaf = next(iter(group.values(True, True)), None)
                    group.batch_size = [] if leaf is None else leaf.shape[: self.ndim + len(dims)]
        except (KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise StorageError(
                f"the state of a storage of tensors is expected: {error}",
                hint="pass what state_dict() of such a storage returned",
            ) from error
        if not rows:
            self.empty(empty_write_count=False)
            return
        self._load(data[:rows], state_dict.get("begins"))

    def _load(self, data: Value, begins: Tensor | None) -> None:
        """Replace all rows by a copy of data ``[rows, *B, ...]``."""
        leaves = leaves_of(data, self.ndim)
        rows, batch = data.shape[0], data.shape[1 : self.ndim]
        if rows > self.max_size // max(math.prod(batch), 1):
            raise ArgumentError(
                f"the state has {rows} rows, this storage has room for fewer",
                hint=f"use a storage with max_size={rows * math.prod(batch)} or more",
            )
        if begins is None:
            begins = torch.zeros(rows, math.prod(batch), dtype=torch.bool)
        layout = Layout.of(data, leaves, self.ndim)
        self.fill(layout, tuple(batch), leaves, begins, torch.arange(rows))

    def __getstate__(self) -> StateDict:
        """Return the filled rows, each leaf once."""
        saved = None if self.layout is None else (self._view().clone(), self.begins[: self.rows])
        state: StateDict = {
            "_leaves": {},
            "_packs": [],
            "_tree": {},
            "_incoming": {},
            "_listeners": [],
        }
        return self.__dict__ | state | {"layout": None, "_continuity": saved}

    def __setstate__(self, state: StateDict) -> None:
        self.__dict__.update(state)
        saved, self._continuity = state["_continuity"], Continuity()
        if saved is not None:
            self._load(*saved)
            self.cursor, self.version = state["cursor"], state["version"]


def require_leaf(storage: Storage, key: NestedKey, advice: str) -> Tensor:
    """Return the tensor of a key, ``[max_rows, *B, ...]``; KeyNotFoundError with ``advice``."""
    leaf = storage.leaf(key) if isinstance(storage, TensorStorage) else None
    if leaf is not None:
        return leaf
    layout = storage.layout if isinstance(storage, TensorStorage) else None
    known = [] if layout is None else [normalize_key(path) for path in layout.shapes]
    raise missing_key_error(key, known, "the buffer", advice)


class LazyTensorStorage(TensorStorage):
    """Stores steps in tensors in memory, which are allocated with the first data.

    Args:
        max_size: Capacity in steps, over all dims.
        device: Device of the tensors. ``"auto"``: that of the first data.
        ndim: Number of dims that count steps: 2 for rollouts ``[B, T]`` of a batch of envs.
        compilable: No effect.

    Raises:
        ArgumentError: An argument is not an integer of at least 1.

    Example:
        >>> import torch
        >>> from tdx import LazyTensorStorage, ReplayBuffer
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(4))
        >>> buffer.extend(torch.arange(6))
        tensor([0, 1, 2, 3, 0, 1])
        >>> buffer[:]
        tensor([4, 5, 2, 3])
    """

    def __init__(
        self,
        max_size: int,
        *,
        device: torch.device | str = "cpu",
        ndim: int = 1,
        compilable: bool = False,
    ) -> None:
        Storage.__init__(self, max_size, ndim)
        self._follows_data = device == "auto"
        self._prepare_empty(None if device == "auto" else device)

    def _prepare(self, data: object, newest: int | None) -> int:
        if self._follows_data and not self.initialized:
            entries, _ = as_entries(data, self.ndim)
            leaves = leaves_of(entries, self.ndim).values()
            devices = (leaf.device for leaf in leaves)
            self._device = entries.device or next(devices, self._device)
        return super()._prepare(data, newest)


class LazyMemmapStorage(LazyTensorStorage):
    """Stores steps in memory-mapped files, which are created with the first data.

    Disk space is allocated at once, so that a full disk is detected immediately and not in the
    middle of a run.

    Args:
        max_size: Capacity in steps, over all dims.
        scratch_dir: Folder of the files. ``None``: a temporary folder.
        device: Device of the tensors; must be ``cpu`` or ``"auto"``, which has the same effect.
        ndim: Number of dims that count steps: 2 for rollouts ``[B, T]`` of a batch of envs.
        existsok: Overwrite existing files in ``scratch_dir``.
        compilable: No effect.
        auto_cleanup: Remove the files with the storage. ``None``: only from a temporary folder.

    Raises:
        ArgumentError: An argument is not an integer of at least 1, or ``device`` is not ``cpu``.
        StorageError: The disk is full, or the files already exist (with the first data).

    Example:
        >>> import torch
        >>> from tdx import LazyMemmapStorage, ReplayBuffer
        >>> buffer = ReplayBuffer(storage=LazyMemmapStorage(1000), batch_size=2)
        >>> _ = buffer.extend(torch.zeros(10, 84, 84))
        >>> buffer.sample().shape
        torch.Size([2, 84, 84])
    """

    def __init__(
        self,
        max_size: int,
        *,
        scratch_dir: str | os.PathLike[str] | None = None,
        device: torch.device | str = "cpu",
        ndim: int = 1,
        existsok: bool = False,
        compilable: bool = False,
        auto_cleanup: bool | None = None,
    ) -> None:
        if device != "auto" and torch.device(device).type != "cpu":
            raise ArgumentError(
                f"device must be cpu for memory-mapped files, got {str(device)!r}",
                hint="to move samples, append a DeviceCastTransform to the buffer",
            )
        super().__init__(max_size, device="cpu", ndim=ndim)
        self.scratch_dir = None if scratch_dir is None else FilePath(scratch_dir)
        self.existsok = existsok
        self.auto_cleanup = scratch_dir is None if auto_cleanup is None else auto_cleanup
        self._files: list[FilePath] = []

    def allocate(self, layout: Layout, batch: torch.Size) -> None:
        """Create the files for steps of a layout.

        Raises:
            ArgumentError: A single row does not fit.
            StorageError: The disk is full, or the files already exist.
        """
        try:
            if self.scratch_dir is None:
                self.scratch_dir = FilePath(tempfile.mkdtemp(prefix="tdx-buffer-"))
                if self.auto_cleanup:
                    weakref.finalize(self, shutil.rmtree, self.scratch_dir, ignore_errors=True)
            else:
                self.scratch_dir.mkdir(parents=True, exist_ok=True)
            super().allocate(layout, batch)
        except OSError as error:
            _remove(self._files)
            if isinstance(error, StorageError):
                raise
            raise StorageError(
                f"cannot store the buffer in {self.scratch_dir}: {error.strerror or error}",
                hint="choose a scratch_dir on a larger disk, or lower max_size",
            ) from error
        if self.auto_cleanup:
            weakref.finalize(self, _remove, list(self._files))

    def cleanup(self) -> bool:
        """Remove the files and their folder, and return True if there were any.

        Other files in the folder, and the folder with them, are kept. Nothing can be read or
        written afterwards.
        """
        existing = [file for file in self._files if file.exists()]
        _remove(existing)
        if existing and self.scratch_dir is not None:
            with suppress(OSError):  # other files are in it
                self.scratch_dir.rmdir()
        return bool(existing)

    def __getstate__(self) -> StateDict:
        """Return the data. A copy stores it in a temporary folder."""
        owned: StateDict = {
            "scratch_dir": None,
            "existsok": False,
            "auto_cleanup": True,
            "_files": [],
        }
        return super().__getstate__() | owned

    def _allocate_pack(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        assert self.scratch_dir is not None
        if not shape.numel():
            return torch.empty(shape, dtype=dtype)
        file = self.scratch_dir / f"{len(self._files):03}.bin"
        flags = os.O_RDWR | os.O_CREAT | (os.O_TRUNC if self.existsok else os.O_EXCL)
        try:
            descriptor = os.open(file, flags, 0o600)
        except FileExistsError:
            raise StorageError(
                f"{file} already exists",
                hint="it may belong to another buffer: use another scratch_dir, or existsok=True",
            ) from None
        self._files.append(file)
        try:
            os.posix_fallocate(descriptor, 0, shape.numel() * dtype.itemsize)
        finally:
            os.close(descriptor)
        flat = torch.from_file(str(file), shared=True, size=shape.numel(), dtype=dtype)
        return flat.view(shape)


def _remove(files: list[FilePath]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


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

    def append(self, item: object) -> Tensor:
        return super().extend([item])

    def _write_rows(self, at: int, data: Any, first: int, count: int) -> None:
        items = [self._to_device(data[i]) for i in range(first, first + count)]
        self._items += [None] * (at + count - len(self._items))
        self._items[at : at + count] = items

    def _set(self, index: Index, data: Any) -> Tensor:
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

    def _to_device(self, item: object) -> Any:
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

    def __setitem__(self, index: Index, data: Any) -> None:
        self._set(index, data)
        self.version += 1

    def as_tensors(self) -> TensorStorage:
        copy = LazyTensorStorage(max(len(self), 1))
        items = self._items
        if not items:
            return copy
        try:
            same = isinstance(items[0], (Tensor, TensorDictBase))
            if not same or any(type(item) is not type(items[0]) for item in items):
                names = sorted({type(item).__name__ for item in items})
                raise TypeError(f"it has items of type {', '.join(names)}")
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
        copy.load_saved(saved)
        self.empty()
        if saved.rows:
            self.extend(list(copy[:].unbind(0)))

    def empty(self, empty_write_count: bool = True) -> None:
        super().empty(empty_write_count)
        self._items = []

    def state_dict(self) -> StateDict:
        return {"_storage": [tree_map(_copy, item) for item in self._items]}

    def load_state_dict(self, state_dict: StateDict) -> None:
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
        self._items = [tree_map(_copy, item) for item in items]
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


def _copy(leaf: object) -> object:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else deepcopy(leaf)


def collate(items: list[Any], name: str | None = None) -> Any:
    """Stack items along a new first dim: tensors, TensorDicts, numbers and trees of them.

    Items of other types are returned as a list. The new dim of TensorDicts gets the name.
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
