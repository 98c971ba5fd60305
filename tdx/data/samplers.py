"""Samplers: choose the steps of a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from tdx.data.storage import Storage
from tdx.errors import ArgumentError, StorageError

_INVALID = "the state of the sampler is not valid"
_SAVE_AGAIN = "the saved buffer is damaged: save it again"


class Sampler(ABC):
    """Draws step numbers.

    A subclass implements :meth:`draw`, which returns step numbers and notes. The notes are
    passed to :meth:`mark` together with the batch.
    """

    generator: torch.Generator | None = None
    """Random number generator. ``None``: torch's default generator."""

    ran_out: bool = False
    """True if the last batch ended a pass; always false for samplers without passes."""

    @property
    def dim_name(self) -> str:
        """Name of the first dim of a batch; only ``time`` is treated as a sequence."""
        return "batch"

    @abstractmethod
    def draw(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Choose steps.

        Args:
            storage: Storage to draw from; not empty.
            batch_size: Number of steps.

        Returns:
            Step numbers, int64 ``[N]``, and notes for :meth:`mark`.
        """

    def mark(self, data: Any, notes: dict[str, Any]) -> dict[Any, Tensor]:
        """Write entries into a batch ``[N]``; by default none.

        Returns:
            Written entries by key.
        """
        return {}

    def _integers(self, high: int, count: int) -> Tensor:
        generator = self.generator
        if generator is None:
            return torch.randint(high, (count,))
        return torch.randint(high, (count,), generator=generator, device=generator.device)

    def reset(self) -> None:
        """Discard the current pass."""
        self.ran_out = False

    def state(self) -> dict[str, Any]:
        """Return what a saved buffer needs to continue drawing: plain data and tensors."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what :meth:`state` returned."""
        self.ran_out = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class RandomSampler(Sampler):
    """Draws steps uniformly with replacement.

    Batches are not in time order, so transforms of sequences refuse them.

    Example:
        >>> import torch
        >>> from tdx import LazyTensorStorage, RandomSampler, ReplayBuffer
        >>> buffer = ReplayBuffer(
        ...     storage=LazyTensorStorage(9),
        ...     sampler=RandomSampler(),
        ...     batch_size=4,
        ...     generator=torch.Generator().manual_seed(0),
        ... )
        >>> _ = buffer.extend(torch.arange(9))
        >>> buffer.sample()
        tensor([8, 0, 2, 6])
    """

    def draw(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        return self._integers(len(storage), batch_size).to(storage.device), {}


class SamplerWithoutReplacement(Sampler):
    """Draws every step once per pass.

    A pass covers the steps that were stored when it started. ``for batch in buffer`` is one
    pass.

    Args:
        drop_last: Skip a last batch that is smaller than the batch size.
        shuffle: Shuffle the steps in each pass.

    Example:
        >>> import torch
        >>> from tdx import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
        >>> sampler = SamplerWithoutReplacement(shuffle=False)
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(9), sampler=sampler, batch_size=4)
        >>> _ = buffer.extend(torch.arange(9))
        >>> list(buffer)
        [tensor([0, 1, 2, 3]), tensor([4, 5, 6, 7]), tensor([8])]
    """

    def __init__(self, drop_last: bool = False, shuffle: bool = True) -> None:
        self.drop_last = drop_last
        self.shuffle = shuffle
        self.reset()

    def reset(self) -> None:
        """Start a new pass with the next batch."""
        self._left: Tensor | None = None
        self._size = 0
        self.ran_out = False

    def draw(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        if self._left is None or self._size > len(storage):
            self._start_pass(storage)
        assert self._left is not None
        if self.drop_last and batch_size > self._size:
            raise ArgumentError(
                f"batch size {batch_size} is above the number of stored steps, {self._size}",
                hint="lower the batch size, or pass drop_last=False",
            )
        batch, self._left = self._left[:batch_size], self._left[batch_size:]
        least = batch_size if self.drop_last else 1
        self.ran_out = len(self._left) < least
        if self.ran_out:
            self._left = None
        return batch.to(storage.device), {}

    def _start_pass(self, storage: Storage) -> None:
        self._size = len(storage)
        if not self.shuffle:
            self._left = torch.arange(self._size)
            return
        device = "cpu" if self.generator is None else self.generator.device
        self._left = torch.randperm(self._size, generator=self.generator, device=device)

    def state(self) -> dict[str, Any]:
        """Return the steps that the pass has left, int64 ``[n]``."""
        state: dict[str, Any] = {"size": self._size}
        return state if self._left is None else state | {"left": self._left}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what :meth:`state` returned.

        Raises:
            StorageError: It names steps that do not exist.
        """
        size, left = state.get("size", 0), state.get("left")
        try:
            left = torch.tensor(left, dtype=torch.int64) if isinstance(left, list) else left
            size = int(torch.tensor(size, dtype=torch.int64))
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise StorageError(_INVALID, hint=_SAVE_AGAIN) from error
        if left is not None and not (isinstance(left, Tensor) and left.dtype is torch.int64):
            raise StorageError(_INVALID, hint=_SAVE_AGAIN)
        if left is not None and (left.ndim != 1 or ((left < 0) | (left >= size)).any()):
            raise StorageError(
                f"the state of the sampler names steps outside 0 to {size - 1}", hint=_SAVE_AGAIN
            )
        self._left, self._size, self.ran_out = left, size, False

    def __repr__(self) -> str:
        return f"SamplerWithoutReplacement(drop_last={self.drop_last}, shuffle={self.shuffle})"
