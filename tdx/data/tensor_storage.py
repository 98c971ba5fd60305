"""Keep steps in tensors that are allocated once."""

from __future__ import annotations

import math
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.data.continuity import Continuity
from tdx.data.layout import Layout, Leaves, Path, leaves_of, nested
from tdx.data.storage import Storage
from tdx.errors import ArgumentError
from tdx.keys import NestedKey
from tdx.tensordicts import new_tensordict


class LazyTensorStorage(Storage):
    """Keeps steps in memory, in tensors that are allocated when the first data comes.

    Args:
        max_size: the most steps it holds, over all dims.
        device: where the tensors are.
        ndim: the number of dims that count steps: 2 for rollouts ``[B, T]`` of a batch of envs.

    Raises:
        ArgumentError: an argument is no integer of at least 1.

    Example:
        >>> import torch
        >>> from tdx import LazyTensorStorage, ReplayBuffer
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(4))
        >>> buffer.extend(torch.arange(6))
        tensor([0, 1, 2, 3, 0, 1])
        >>> buffer[:]
        tensor([4, 5, 2, 3])
    """

    def __init__(self, max_size: int, *, device: torch.device | str = "cpu", ndim: int = 1) -> None:
        super().__init__(max_size, ndim)
        self._device = torch.device(device)
        self.layout: Layout | None = None
        self._batch: torch.Size = torch.Size()
        self._leaves: Leaves = {}
        self._packs: list[Tensor] = []
        self._continuity = Continuity()
        self._tree: dict[str, Any] = {}
        self._incoming: Leaves = {}

    @property
    def width(self) -> int:
        """The number of steps in a row, 1 before the first data."""
        return math.prod(self._batch)

    @property
    def device(self) -> torch.device:
        """Where the data is."""
        return self._device

    @property
    def shape(self) -> torch.Size:
        """The dims of what is stored that count steps: ``[rows, *B]``."""
        return torch.Size((self.rows, *self._batch))

    @property
    def begins(self) -> Tensor:
        """Which steps do not follow on the one before: bool ``[max_rows, width]``."""
        return self._continuity.begins

    @property
    def batch(self) -> torch.Size:
        """The dims of a row that count steps, ``[*B]``."""
        return self._batch

    @property
    def leaves(self) -> Leaves:
        """Every tensor by its path, with room for every row, ``[max_rows, *B, ...]``."""
        return self._leaves

    def places(self, steps: Tensor) -> tuple[Tensor, ...]:
        if not self._batch:
            return (steps,)
        return torch.unravel_index(steps, (self.max_rows, *self._batch))

    def leaf(self, key: NestedKey) -> Tensor | None:
        """The tensor of a key with room for every row, ``[max_rows, *B, ...]``."""
        return self._leaves.get(key if isinstance(key, tuple) else (key,))

    # Writing

    def _prepare(self, data: Any) -> int:
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
        newest = None if not self.rows else (self.cursor - 1) % self.max_rows
        self._continuity.look(leaves, self._leaves, newest, (count, self.width))
        return count

    def allocate(self, layout: Layout, batch: torch.Size) -> None:
        """Make room for steps of a layout.

        Raises:
            ArgumentError: not even one row would fit.
            StorageError: the disk is full.
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
        """Put leaves of one shape and dtype side by side, so that one call gathers them all."""
        alike: dict[tuple[torch.Size, torch.dtype], list[Path]] = {}
        for path, shape in layout.shapes.items():
            alike.setdefault((shape, layout.dtypes[path]), []).append(path)
        packs: list[Tensor] = []
        numbers: dict[Path, int] = {}
        self._leaves = {}
        for (shape, dtype), paths in alike.items():
            pack = self._allocated(torch.Size((len(paths), *rows, *shape)), dtype)
            packs.append(pack.view(len(paths), rows.numel(), *shape))
            for path, leaf in zip(paths, pack.unbind(0), strict=True):
                numbers[path] = len(numbers)
                self._leaves[path] = leaf
        self._packs = packs
        self._tree = nested(numbers, layout.groups)

    def _allocated(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self._device)

    def _check(self, layout: Layout, batch: torch.Size) -> None:
        known = self.layout
        assert known is not None
        if batch != self._batch:
            raise ArgumentError(
                f"the data has batch dims {tuple(batch)}, the storage {tuple(self._batch)}",
                hint="give the same envs each time, or empty() the buffer and use a new storage",
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
        """Take over rows that were saved.

        Args:
            layout: what a step looks like.
            batch: the dims ``[*B]`` of a row.
            leaves: the rows of every leaf, ``[rows, *B, ...]``.
            begins: which steps do not follow on the one before them, bool ``[rows, width]``.
            order: the saved row for each row here, int64 ``[rows]``.

        Raises:
            ArgumentError: the storage was made for other data.
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
        """The steps of these numbers, as a copy, ``[N, ...]``.

        Args:
            steps: int64 ``[N]``, on the storage's device.
            name: of the dim ``N`` in a TensorDict.
        """
        assert self.layout is not None
        values: list[Tensor] = []
        for pack in self._packs:
            values += pack.index_select(1, steps).unbind(0)
        if not self.layout.groups:
            return values[0]
        names = [name, *self.layout.names] if name or self.layout.names else None
        return self._gathered(self._tree, values, len(steps), (), names)

    def _gathered(
        self,
        tree: dict[str, Any],
        values: list[Tensor],
        count: int,
        path: Path,
        names: list[str | None] | None,
    ) -> Any:
        assert self.layout is not None
        fields = {
            key: values[at]
            if type(at) is int
            else self._gathered(at, values, count, (*path, key), names)
            for key, at in tree.items()
        }
        group = self.layout.groups[path]
        if names is not None and len(names) != len(group) + 1:
            names = names + [None] * (len(group) + 1 - len(names))
        return new_tensordict(fields, torch.Size((count, *group)), self._device, names)

    def _stored(self) -> Any:
        """Everything that is stored, ``[rows, *B, ...]``, sharing its memory."""
        if self.layout is None:
            raise IndexError("the storage is empty")
        tree = {path: leaf[: self.rows] for path, leaf in self._leaves.items()}
        if not self.layout.groups:
            return tree[()]
        return _tensordict(nested(tree, self.layout.groups), self.shape, self)

    def __getitem__(self, index: Any) -> Any:
        return self._stored()[index]

    def __setitem__(self, index: Any, data: Any) -> None:
        stored = self._stored()
        if isinstance(stored, TensorDictBase):
            target = stored[index]
            ndim = target.ndim - len(self.layout.groups[()]) if self.layout else 0
            layout = Layout.of(data, leaves_of(data, ndim), ndim)
            self._check(layout, self._batch)
            for path, value in leaves_of(data.expand(target.shape), ndim).items():
                stored.get(path)[index] = value
        else:
            stored[index] = data
        self._continuity.forget(index)
        self.version += 1

    def empty(self, empty_write_count: bool = True) -> None:
        super().empty(empty_write_count)
        self._continuity.empty()


def _tensordict(
    tree: dict[str, Any], batch: torch.Size, storage: LazyTensorStorage, path: Path = ()
) -> Any:
    assert storage.layout is not None
    fields = {
        key: _tensordict(value, batch, storage, (*path, key)) if type(value) is dict else value
        for key, value in tree.items()
    }
    size = torch.Size((*batch, *storage.layout.groups[path]))
    return new_tensordict(fields, size, storage.device)
