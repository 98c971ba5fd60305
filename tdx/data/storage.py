"""What every storage of a replay buffer has: a ring of rows, and who wrote where."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tdx.errors import ArgumentError


class Storage(ABC):
    """A ring of rows: when it is full, new rows take the place of the oldest.

    A row is one step, or with ``ndim`` above 1 the steps of a batch at one time. The steps are
    numbered row by row; ``gather`` takes these numbers.

    Args:
        max_size: the most steps it holds.
        ndim: the number of dims that count steps: 1 for ``[T]``, 2 for ``[T, B]``.

    Raises:
        ArgumentError: an argument is no integer of at least 1.
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
        """The row that is written next."""
        self.write_count = 0
        """How many rows were ever written."""
        self.version = 0
        """Grows with every change."""
        self.rows = 0
        """How many rows are filled."""

    @property
    def max_rows(self) -> int:
        """The most rows it holds."""
        return self.max_size // self.width

    @property
    def width(self) -> int:
        """The number of steps in a row."""
        return 1

    @property
    def oldest(self) -> int:
        """The row that was written first of those that are left."""
        return self.cursor if self.rows == self.max_rows else 0

    @property
    def device(self) -> torch.device:
        """Where the data is."""
        return torch.device("cpu")

    def __len__(self) -> int:
        return self.rows * self.width

    def __iter__(self) -> Iterator[Any]:
        for step in range(self.rows):
            yield self[step]

    def extend(self, data: Any) -> Tensor:
        """Write rows behind the newest.

        Args:
            data: the rows, along the first dim.

        Returns:
            int64: where each was written.

        Raises:
            ArgumentError: the data does not fit to what is stored, or there is none of it.
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
        """Check data before any of it is written; returns its number of rows."""

    @abstractmethod
    def _write_rows(self, at: int, data: Any, first: int, count: int) -> None:
        """Copy ``count`` rows of the data, from its row ``first`` on, to row ``at`` on."""

    @abstractmethod
    def gather(self, steps: Tensor, name: str | None = None) -> Any:
        """The steps of these numbers, as a copy.

        Args:
            steps: int64 ``[N]``.
            name: of the dim ``N`` in a TensorDict.
        """

    def places(self, steps: Tensor) -> tuple[Tensor, ...]:
        """Where the steps of these numbers are: an index for each dim that counts steps."""
        return (steps,)

    @abstractmethod
    def __getitem__(self, index: Any) -> Any:
        """What is stored, of shape ``[rows, *B]``, at an index; shares its memory if it can."""

    @abstractmethod
    def __setitem__(self, index: Any, data: Any) -> None:
        """Replace what is stored at an index."""

    def empty(self, empty_write_count: bool = True) -> None:
        """Forget everything.

        Args:
            empty_write_count: whether ``write_count`` begins anew.
        """
        self.cursor = self.rows = 0
        self.version += 1
        if empty_write_count:
            self.write_count = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}(len={len(self)}, max_size={self.max_size})"
