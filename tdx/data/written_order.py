"""The dims of data that count steps: time first in storages, in any place in written data."""

from __future__ import annotations

from typing import Any

from tdx.data.forms import map_tree
from tdx.data.storage import Storage
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey


class WrittenOrder:
    """Access to stored data in the dim order in which it was written.

    Args:
        storage: Storage of the data.
        dim: Dim of written data that counts time steps.
    """

    def __init__(self, storage: Storage, dim: int) -> None:
        self._storage = storage
        self.dim = dim

    def read(self, index: Any) -> Any:
        """Return stored data at an index into written data, or at a key."""
        storage: Any = self._storage
        if not self.dim:
            return storage[:][index] if isinstance(index, str) else storage[index]
        data = to_written_order(storage[:], self.dim)
        if hasattr(data, "permute") or isinstance(index, str):
            return data[index]
        return map_tree(lambda leaf: leaf[index], data)

    def write(self, index: Any, data: Any) -> None:
        """Replace stored data at an index."""
        storage: Any = self._storage
        if storage.ndim > 1:
            storage.assign(index, data, self.dim)
        else:
            storage[index] = data

    def write_entry(self, key: NestedKey, value: Any, index: Any) -> None:
        """Replace an entry of stored TensorDicts at an index in place."""
        to_written_order(self._storage[:], self.dim).get(key)[index] = value
        self._storage.version += 1


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
    if dim == 0:
        return data
    if isinstance(data, (dict, tuple)):
        return map_tree(lambda leaf: to_time_first(leaf, dim), data)
    if not hasattr(data, "permute") or data.ndim <= dim:
        return data
    return data.permute(dim, *(each for each in range(data.ndim) if each != dim))


def to_written_order(stored: Any, dim: int) -> Any:
    """Move the first dim of stored data back to where it was when it was written."""
    if dim == 0:
        return stored
    if not hasattr(stored, "permute"):
        return map_tree(lambda leaf: to_written_order(leaf, dim), stored)
    return stored.permute(*range(1, dim + 1), 0, *range(dim + 1, stored.ndim))
