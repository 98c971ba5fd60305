"""Content of storages to save, and storages from saved content."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from tensordict import TensorDict
from torch import Tensor

from tdx.data.layout import Layout, Leaves
from tdx.data.saved import Saved
from tdx.foundation.errors import ArgumentError, StorageError


class TensorRows(Protocol):
    """A storage of tensors; see :class:`~tdx.data.tensor_storage.TensorStorage`."""

    layout: Layout | None
    rows: int
    max_size: int
    ndim: int

    @property
    def batch(self) -> torch.Size: ...

    @property
    def begins(self) -> Tensor: ...

    @property
    def leaves(self) -> Leaves: ...

    def empty(self) -> None: ...

    def fill(
        self, layout: Layout, batch: tuple[int, ...], leaves: Leaves, begins: Tensor, order: Tensor
    ) -> None: ...


class Ring(Protocol):
    """Positions of a storage; see :class:`~tdx.data.storage.Storage`."""

    cursor: int
    max_size: int
    write_count: int

    @property
    def max_rows(self) -> int: ...

    def load_saved(self, saved: Saved) -> None:
        """Load saved rows; an error leaves the storage unchanged."""


def snapshot(storage: Ring, tensors: TensorRows, sampler: dict[str, Any]) -> Saved:
    """Return the content of a storage to save.

    Args:
        storage: Storage.
        tensors: Its rows as tensors, whose memory is shared.
        sampler: State of the sampler.
    """
    rows = tensors.rows
    shapes = {} if tensors.layout is None else tensors.layout.shapes
    return Saved(
        layout=tensors.layout,
        leaves={path: tensors.leaves[path][:rows] for path in shapes},
        begins=tensors.begins[:rows],
        rows=rows,
        batch=tuple(tensors.batch),
        cursor=storage.cursor,
        max_rows=storage.max_rows,
        write_count=storage.write_count,
        sampler=sampler,
    )


def restore_storage(storage: Ring, saved: Saved) -> None:
    """Load saved content into a storage; an error leaves it unchanged.

    Raises:
        ArgumentError: The storage is too small, or was created for other data.
    """
    storage.load_saved(saved)
    storage.write_count = saved.write_count
    if storage.max_rows == saved.max_rows:
        storage.cursor = saved.cursor
    else:
        storage.cursor = 0 if saved.rows == storage.max_rows else saved.rows


def restore(storage: Ring, sampler: Any, saved: Saved) -> None:
    """Load saved content into a storage and a sampler; an error leaves both unchanged.

    Raises:
        ArgumentError: The storage is too small, or was created for other data.
        StorageError: The state of the sampler is not valid.
    """
    before = sampler.state()
    sampler.reset()
    try:
        sampler.restore(_reorder(saved, storage.max_size))
        restore_storage(storage, saved)
    except Exception:
        sampler.restore(before)
        raise


def _reorder(saved: Saved, max_size: int) -> dict[str, Any]:
    """Return the state of the sampler in the order in which :func:`fill` loads rows."""
    width = torch.Size(saved.batch).numel()
    if "priorities" not in saved.sampler or not _moves_oldest_first(saved, max_size):
        return saved.sampler
    steps = saved.rows * width
    priorities = saved.sampler["priorities"][:steps].roll(-saved.cursor * width)
    return saved.sampler | {"priorities": priorities, "max_index": None}


def _moves_oldest_first(saved: Saved, max_size: int) -> bool:
    max_rows = max_size // max(torch.Size(saved.batch).numel(), 1)
    return saved.rows == saved.max_rows and max_rows != saved.max_rows


def check_room(saved: Saved, max_size: int) -> None:
    """Check that a storage has room for saved rows.

    Raises:
        ArgumentError: It is too small.
    """
    steps = saved.rows * torch.Size(saved.batch).numel()
    if steps > max_size:
        raise ArgumentError(
            f"the saved buffer has {steps} steps, this storage has room for {max_size}",
            hint=f"use a storage with max_size={steps} or more",
        )


def fill(storage: TensorRows, saved: Saved) -> None:
    """Load saved rows into a storage of tensors.

    Raises:
        ArgumentError: The storage is too small, or was created for other data.
    """
    if len(saved.batch) != storage.ndim - 1 and saved.layout is not None:
        raise ArgumentError(
            f"the saved buffer has {len(saved.batch) + 1} dims of steps, this storage has "
            f"{storage.ndim}",
            hint=f"use a storage with ndim={len(saved.batch) + 1}",
        )
    check_room(saved, storage.max_size)
    if saved.layout is None:
        storage.empty()
        return
    order = torch.arange(saved.rows)
    if _moves_oldest_first(saved, storage.max_size):
        order = (order + saved.cursor) % saved.rows
    storage.fill(saved.layout, saved.batch, saved.leaves, saved.begins, order)


def parse_state(state_dict: dict[str, Any], ndim: int) -> tuple[Any, int]:
    """Return the data of a storage of tensors, ``[rows, *B, ...]``, and its number of rows.

    Args:
        state_dict: What ``state_dict()`` of such a storage returned.
        ndim: Number of dims that count steps.

    Raises:
        StorageError: The state has another form.
    """
    try:
        data, rows = state_dict["_storage"], state_dict["_len"]
        if rows and not isinstance(data, Tensor):
            data = TensorDict(data, [])
            for path, dims in state_dict["groups"]:
                group = data.get(path) if path else data
                leaf = next(iter(group.values(True, True)), None)
                group.batch_size = [] if leaf is None else leaf.shape[: ndim + len(dims)]
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise StorageError(
            f"the state of a storage of tensors is expected: {error}",
            hint="pass what state_dict() of such a storage returned",
        ) from error
    return data, rows
