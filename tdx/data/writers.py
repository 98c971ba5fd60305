"""Writers: choose the rows to which data is written."""

from __future__ import annotations

import heapq
import os
from abc import ABC, abstractmethod
from typing import Any

import torch
from tensordict import TensorDictBase, is_tensor_collection
from torch import Tensor

from tdx.data.conditional_updates import UNWRITTEN, Generations
from tdx.data.layout import Index, StateDict
from tdx.data.saved import load_state, save_state
from tdx.data.storage import Storage
from tdx.foundation.errors import ArgumentError, ChainError, StorageError
from tdx.foundation.keys import NestedKey, format_key, normalize_key

WRITER_FILE = "writer.json"
REDUCTIONS = ("max", "min", "mean", "median", "sum")


class Writer(ABC):
    """Writes data to a storage.

    A subclass implements :meth:`add` and :meth:`extend` with the storage, ``self._storage``.

    Args:
        compilable: No effect.
    """

    _generations: Generations | None = None

    def __init__(self, compilable: bool = False) -> None:
        self._storage: Any = None

    def register_storage(self, storage: Storage) -> None:
        """Set the storage to write to."""
        if self._generations is not None and self._storage not in (None, storage):
            self._storage.detach(self._generations)
            self._generations = Generations()
        self._storage = storage
        self.attach_to(storage)

    def attach_to(self, storage: Storage) -> None:
        """Count the writes to a storage, if the writer tracks generations."""
        if self._generations is not None:
            storage.attach(self._generations)

    @property
    def generations(self) -> Generations | None:
        """Counts of the writes to each step, if the writer tracks them."""
        return self._generations

    @property
    def tracks_generations(self) -> bool:
        """True if the writer counts the writes to each step."""
        return self._generations is not None

    def generations_of(self, index: Index) -> Tensor:
        """Return how often steps were replaced, for :meth:`ReplayBuffer.update_if_present`.

        Args:
            index: Positions of the steps, as returned by :meth:`extend`.

        Returns:
            Counts from 0, int64; -1 for steps that were never written, and if the writer does not
            track generations.
        """
        steps = (
            torch.as_tensor(index) if self._storage is None else self._storage.step_numbers(index)
        )
        if self._generations is None:
            return torch.full_like(steps, UNWRITTEN, device="cpu")
        return self._generations.of(steps)

    @abstractmethod
    def add(self, data: object) -> int | Tensor | None:
        """Write one step.

        Returns:
            Position of the step: an index, or ``[B, ndim]``; ``None`` if it was not written.
        """

    @abstractmethod
    def extend(self, data: object) -> Tensor:
        """Write steps.

        Returns:
            Position of each step, int64 ``[T]`` or ``[T * B, ndim]``; -1 if it was not written.
        """

    @property
    def _cursor(self) -> int:
        return 0 if self._storage is None else int(self._storage.cursor)

    def state_dict(self) -> StateDict:
        """Return the row that is written next, and the number of rows ever written."""
        count = 0 if self._storage is None else self._storage.write_count
        state: StateDict = {"_cursor": self._cursor, "_write_count": count}
        return state if self._generations is None else state | self._generations.state()

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Continue from what :meth:`state_dict` returned.

        Raises:
            StorageError: The state is not that of a writer.
        """
        cursor, count = state_dict.get("_cursor"), state_dict.get("_write_count")
        count = cursor if count is None else count
        valid = all(type(number) is int and number >= 0 for number in (cursor, count))
        if not valid or (self._storage is not None and cursor >= self._storage.max_rows):
            raise StorageError(
                f"the state of the writer is not valid: its cursor is {cursor!r}",
                hint="pass what state_dict() of a buffer of the same size returned",
            )
        if self._storage is not None:
            self._storage.cursor, self._storage.write_count = cursor, count
        if self._generations is not None:
            self._generations.restore(state_dict, len(self._storage or ()))

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Save the state in a folder."""
        save_state(path, WRITER_FILE, self.state_dict())

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Load what :meth:`dumps` saved.

        Raises:
            StorageError: The folder has no valid state.
        """
        self.load_state_dict(load_state(path, WRITER_FILE))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class RoundRobinWriter(Writer):
    """Writes row after row; when the storage is full, overwrites the oldest.

    Args:
        compilable: No effect.
        track_generations: Count the writes to each step, so that
            :meth:`ReplayBuffer.update_if_present` knows whether a step was replaced. Batches then
            have an ``index_generation``.

    Example:
        >>> import torch
        >>> from tdx import LazyTensorStorage, ReplayBuffer, RoundRobinWriter
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(4), writer=RoundRobinWriter())
        >>> buffer.extend(torch.arange(6))
        tensor([0, 1, 2, 3, 0, 1])
    """

    def __init__(self, compilable: bool = False, *, track_generations: bool = False) -> None:
        super().__init__(compilable)
        if track_generations:
            self._generations = Generations()

    def add(self, data: object) -> int | Tensor | None:
        storage = self._storage
        positions: Tensor = storage.row_positions(storage.append(data))
        return positions if storage.ndim > 1 else int(positions[0])

    def extend(self, data: object) -> Tensor:
        positions: Tensor = self._storage.row_positions(self._storage.extend(data))
        return positions


class TensorDictRoundRobinWriter(RoundRobinWriter):
    """A :class:`RoundRobinWriter` that refuses data other than TensorDicts and tensorclasses.

    Args:
        compilable: No effect.
        track_generations: Count the writes to each step; see :class:`RoundRobinWriter`.
    """

    def add(self, data: object) -> int | Tensor | None:
        _require_entries(self, data)
        return super().add(data)

    def extend(self, data: object) -> Tensor:
        _require_entries(self, data)
        return super().extend(data)


class ImmutableDatasetWriter(Writer):
    """Refuses to write, for data sets.

    Args:
        compilable: No effect.
    """

    def add(self, data: object) -> int | Tensor | None:
        raise self._refuse()

    def extend(self, data: object) -> Tensor:
        raise self._refuse()

    def _refuse(self) -> ChainError:
        return ChainError(
            "the buffer has an ImmutableDatasetWriter, which does not write",
            hint="copy the data into a buffer with another writer",
        )


class TensorDictMaxValueWriter(Writer):
    """Keeps the steps with the largest values of an entry.

    Args:
        rank_key: Entry to rank by; ``("next", "reward")`` by default.
        reduction: How several elements of the entry become one value: ``max``, ``min``,
            ``mean``, ``median`` or ``sum``.
        compilable: No effect.

    Raises:
        ArgumentError: The reduction is unknown.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import LazyTensorStorage, ReplayBuffer, TensorDictMaxValueWriter
        >>> writer = TensorDictMaxValueWriter(rank_key="value")
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(2), writer=writer)
        >>> buffer.extend(TensorDict(value=torch.tensor([1.0, 3.0, 2.0]), batch_size=[3]))
        tensor([-1,  1,  0])
        >>> buffer[:]["value"]
        tensor([2., 3.])
    """

    def __init__(
        self, rank_key: NestedKey | None = None, reduction: str = "sum", compilable: bool = False
    ) -> None:
        super().__init__(compilable)
        if reduction not in REDUCTIONS:
            raise ArgumentError(
                f"unknown reduction {reduction!r}", hint=f"use one of {', '.join(REDUCTIONS)}"
            )
        self.rank_key = normalize_key(("next", "reward") if rank_key is None else rank_key)
        self.reduction = reduction
        self._current_top_values: list[tuple[float, int]] = []
        self._version: int | None = None

    def register_storage(self, storage: Storage) -> None:
        super().register_storage(storage)
        self._version = None

    def add(self, data: TensorDictBase) -> int | Tensor | None:
        _require_entries(self, data)
        row = int(self.extend(data.unsqueeze(0))[0])
        return None if row < 0 else row

    def extend(self, data: TensorDictBase) -> Tensor:
        _require_entries(self, data)
        self._rank_stored_rows()
        index = torch.full((len(data),), -1)
        chosen: dict[int, int] = {}
        storage, top = self._storage, self._current_top_values
        for step, value in enumerate(self._rank(data).tolist()):
            if len(top) < storage.max_rows:
                row = int(storage.cursor)
                storage.cursor = (row + 1) % storage.max_rows
                heapq.heappush(top, (value, row))
            elif value > top[0][0]:
                row = top[0][1]
                heapq.heapreplace(top, (value, row))
            else:
                continue
            chosen[row] = step
        if chosen:
            rows, steps = torch.tensor(list(chosen)), torch.tensor(list(chosen.values()))
            self._storage.set(rows, data[steps.to(data.device or "cpu")])
            self._storage.write_count += len(rows)
            index[steps] = rows
        self._version = self._storage.version
        return index

    def _rank(self, data: TensorDictBase) -> Tensor:
        """Return the value of each step, ``[T]``."""
        value = data.get(self.rank_key, None)
        if value is None or data.ndim != 1:
            raise ArgumentError(
                f"the data has no {format_key(self.rank_key)!r} to rank steps by"
                if value is None
                else f"the data has batch dims {tuple(data.batch_size)}",
                hint="pass rank_key, and data with one dim of steps",
            )
        return reduce_elements(value.reshape(len(data), -1), self.reduction)

    def _rank_stored_rows(self) -> None:
        """Rank the stored rows again, if others wrote to the storage."""
        if self._version == self._storage.version:
            return
        rows = self._storage.rows
        values = self._rank(self._storage[:]).tolist() if rows else []
        self._current_top_values = [(value, row) for row, value in enumerate(values)]
        heapq.heapify(self._current_top_values)
        self._storage.cursor = rows % self._storage.max_rows

    def state_dict(self) -> StateDict:
        return super().state_dict() | {"_current_top_values": list(self._current_top_values)}

    def load_state_dict(self, state_dict: StateDict) -> None:
        super().load_state_dict(state_dict)
        top = state_dict.get("_current_top_values", [])
        try:
            self._current_top_values = [(float(value), int(row)) for value, row in top]
        except (TypeError, ValueError) as error:
            raise StorageError(
                "the state of the writer is not valid", hint="save the writer again"
            ) from error

    def __repr__(self) -> str:
        return f"TensorDictMaxValueWriter({format_key(self.rank_key)!r}, {self.reduction!r})"


def reduce_elements(values: Tensor, reduction: str) -> Tensor:
    """Return one value per row of ``[N, n]``: its max, min, mean, median or sum."""
    if reduction in ("mean", "sum"):
        reduced: Tensor = getattr(values.double(), reduction)(1)
        return reduced
    result = getattr(values, reduction)(1)
    selected: Tensor = result.values
    return selected


def _require_entries(writer: Writer, data: object) -> None:
    if not (isinstance(data, TensorDictBase) or is_tensor_collection(data)):
        raise ChainError(
            f"{type(writer).__name__} expects data to be a tensor collection, got "
            f"{type(data).__name__}",
            hint="write TensorDicts, or use RoundRobinWriter",
        )
