"""Storages of tensors: in memory, and in memory-mapped files."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import weakref
from pathlib import Path as FilePath
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.data.layout import Continuity, Layout, Leaves, Path, leaves_of, nest_leaves
from tdx.data.storage import Storage
from tdx.errors import ArgumentError, StorageError
from tdx.keys import NestedKey
from tdx.tensordicts import new_tensordict


class LazyTensorStorage(Storage):
    """Stores steps in tensors in memory, which are allocated with the first data.

    Args:
        max_size: Capacity in steps, over all dims.
        device: Device of the tensors.
        ndim: Number of dims that count steps: 2 for rollouts ``[B, T]`` of a batch of envs.

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
        steps = rows.unsqueeze(1) * self.width + torch.arange(self.width)
        return torch.stack(self.positions(steps.flatten()), -1)

    def leaf(self, key: NestedKey) -> Tensor | None:
        """Return the tensor of a key, ``[max_rows, *B, ...]``, or ``None``."""
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
        self._continuity.compare(leaves, self._leaves, newest, (count, self.width))
        return count

    def allocate(self, layout: Layout, batch: torch.Size) -> None:
        """Allocate memory for steps of a layout.

        Raises:
            ArgumentError: There is no room for a single row.
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
        return self._nest(self._tree, values, len(steps), (), names)

    def _nest(
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
            else self._nest(at, values, count, (*path, key), names)
            for key, at in tree.items()
        }
        group = self.layout.groups[path]
        if names is not None and len(names) != len(group) + 1:
            names = names + [None] * (len(group) + 1 - len(names))
        return new_tensordict(fields, torch.Size((count, *group)), self._device, names)

    def _view(self) -> Any:
        """Return all stored data, ``[rows, *B, ...]``, without copying."""
        if self.layout is None:
            raise IndexError("the storage is empty")
        tree = {path: leaf[: self.rows] for path, leaf in self._leaves.items()}
        if not self.layout.groups:
            return tree[()]
        return _tensordict(nest_leaves(tree, self.layout.groups), self.shape, self)

    def __getitem__(self, index: Any) -> Any:
        return self._view()[index]

    def __setitem__(self, index: Any, data: Any) -> None:
        stored = self._view()
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


class LazyMemmapStorage(LazyTensorStorage):
    """Stores steps in memory-mapped files, which are created with the first data.

    Disk space is allocated at once, so that a full disk is detected immediately and not in the
    middle of a run.

    Args:
        max_size: Capacity in steps, over all dims.
        scratch_dir: Folder of the files. ``None``: a temporary folder.
        device: Device of the tensors; must be ``cpu``.
        ndim: Number of dims that count steps: 2 for rollouts ``[B, T]`` of a batch of envs.
        existsok: Overwrite existing files in ``scratch_dir``.
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
        auto_cleanup: bool | None = None,
    ) -> None:
        if torch.device(device).type != "cpu":
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
            ArgumentError: There is no room for a single row.
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
