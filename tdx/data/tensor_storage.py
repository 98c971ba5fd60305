"""Storages of tensors in memory."""

from __future__ import annotations

import math
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.data.forms import Form, as_entries
from tdx.data.layout import (
    Continuity,
    Layout,
    Leaves,
    Path,
    build_tensordict,
    leaves_of,
    nest_leaves,
)
from tdx.data.saved import Saved
from tdx.data.snapshots import TensorRows, fill, parse_state
from tdx.data.storage import Storage, as_rows, check_rows, is_single
from tdx.data.written_order import to_written_order
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey


class TensorStorage(Storage):
    """Stores steps in given tensors, which are filled rows.

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
    _leaves: Leaves
    _packs: list[Tensor]
    _tree: dict[str, Any]
    _incoming: Leaves

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
    def leaves(self) -> Leaves:
        """Tensors by path, ``[max_rows, *B, ...]``."""
        return self._leaves

    def positions(self, steps: Tensor) -> tuple[Tensor, ...]:
        if not self._batch:
            return (steps,)
        return torch.unravel_index(steps, (self.max_rows, *self._batch))

    def row_positions(self, rows: Tensor) -> Tensor:
        if self.ndim == 1:
            return rows
        return torch.stack(self.positions(self.row_steps(rows)), -1)

    def step_numbers(self, index: Any) -> Tensor:
        steps = super().step_numbers(index)
        if self.ndim == 1 or not steps.ndim or steps.shape[-1] != self.ndim:
            return steps
        sizes = torch.tensor([*self._batch, 1]).flip(0).cumprod(0).flip(0)
        return (steps * sizes.to(steps.device)).sum(-1)

    def leaf(self, key: NestedKey) -> Tensor | None:
        """Return the tensor of a key, ``[max_rows, *B, ...]``, or ``None``."""
        return self._leaves.get(key if isinstance(key, tuple) else (key,))

    # Writing

    def _prepare(self, data: Any, newest: int | None) -> int:
        data, form = as_entries(data, self.ndim)
        self._require_form(form)
        leaves = leaves_of(data, self.ndim)
        batch = data.shape[: self.ndim]
        if not math.prod(batch):
            raise ArgumentError(
                f"the data has no steps: its shape is {tuple(batch)}",
                hint="pass at least one step to extend()",
            )
        layout = Layout.of(data, leaves, self.ndim)
        if self.layout is None:
            self.allocate(layout, batch[1:])
        self._check(layout, batch[1:])
        self._incoming = leaves
        count = batch[0]
        self._continuity.compare(leaves, self._leaves, newest, (count, self.width))
        return count

    def _require_form(self, form: Form | None) -> None:
        if form is None or form == self._form:
            return
        if self._form is not None or self.rows:
            raise ArgumentError(
                "the data is nested in another way than that of the storage",
                hint="write data of one type and structure",
            )
        self._form = form

    def append(self, item: Any) -> Tensor:
        if not isinstance(item, (Tensor, TensorDictBase, dict, list, tuple)):
            item = item if hasattr(item, "unsqueeze") else torch.as_tensor(item)
        return self.extend(self._as_row(item))

    def _as_row(self, item: Any) -> Any:
        entries, form = as_entries(item, self.ndim - 1)
        row = entries.unsqueeze(0)
        return row if form is None else form(row)

    def _set(self, index: Any, data: Any) -> Tensor:
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

    def _write_rows(self, at: int, data: Any, first: int, count: int) -> None:
        for path, leaf in self._leaves.items():
            leaf[at : at + count].copy_(self._incoming[path][first : first + count])
        self._continuity.write(at, first, count)

    def fill(
        self,
        layout: Layout,
        batch: tuple[int, ...],
        leaves: Leaves,
        begins: Tensor,
        order: Tensor,
    ) -> None:
        """Load saved rows.

        Args:
            layout: Layout of a step.
            batch: Dims ``[*B]`` of a row.
            leaves: Rows of each leaf, ``[rows, *B, ...]``.
            begins: Mask of the steps that do not continue the previous one, bool
                ``[rows, width]``.
            order: Index of the saved row for each row, int64 ``[rows]``.

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

    def extend(self, data: Any) -> Tensor:
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

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, range):
            index = torch.tensor(index)
        found = self._view()[index]
        if self._form is None or not isinstance(found, TensorDictBase):
            return found
        return self._form(found)

    def assign(self, index: Any, data: Any, dim: int) -> None:
        """Replace stored data at an index into data whose time dim is ``dim``."""
        target = to_written_order(self._view(), dim)
        target[index] = as_entries(data, 0)[0]
        marks = self.begins[: self.rows].view(*self.shape)
        to_written_order(marks, dim)[index] = False
        self.version += 1

    def __setitem__(self, index: Any, data: Any) -> None:
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

    def as_tensors(self) -> TensorRows:
        return self

    def load_saved(self, saved: Saved) -> None:
        fill(self, saved)

    def state_dict(self) -> dict[str, Any]:
        if self.layout is None:
            return {"_storage": None, "_len": 0}
        view = self._view()
        return {
            "_storage": view.clone() if isinstance(view, Tensor) else view.clone().to_dict(),
            "_len": self.rows,
            "groups": [(path, tuple(dims)) for path, dims in self.layout.groups.items()],
            "begins": self.begins[: self.rows].clone(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        data, rows = parse_state(state_dict, self.ndim)
        if not rows:
            self.empty(empty_write_count=False)
            return
        self._load(data[:rows], state_dict.get("begins"))

    def _load(self, data: Any, begins: Tensor | None) -> None:
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

    def __getstate__(self) -> dict[str, Any]:
        """Return the filled rows, each leaf once."""
        saved = None if self.layout is None else (self._view().clone(), self.begins[: self.rows])
        state: dict[str, Any] = {
            "_leaves": {},
            "_packs": [],
            "_tree": {},
            "_incoming": {},
            "_listeners": [],
        }
        return self.__dict__ | state | {"layout": None, "_continuity": saved}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        saved, self._continuity = state["_continuity"], Continuity()
        if saved is not None:
            self._load(*saved)
            self.cursor, self.version = state["cursor"], state["version"]
