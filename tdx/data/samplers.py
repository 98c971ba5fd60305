"""Samplers: choose the steps of a batch."""

from __future__ import annotations

import os
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from tdx.data.layout import Index, Info, StateDict
from tdx.data.saved import load_state, save_state
from tdx.data.storage import Storage
from tdx.foundation.errors import ArgumentError, ChainError, StorageError
from tdx.foundation.keys import NestedKey

SAMPLER_FILE = "sampler.json"

_INVALID = "the state of the sampler is not valid"
_SAVE_AGAIN = "the saved buffer is damaged: save it again"


def on_device_of(storage: Storage, numbers: Tensor) -> Tensor:
    """Return drawn numbers on the device of the data, without waiting for an accelerator.

    The memory may be reused at once: a copy from the host, unlike one to it, has read all of it
    when it returns.
    """
    return numbers.to(storage.device, non_blocking=storage.device.type != "cpu")


class Sampler:
    """Draws step numbers.

    A subclass implements :meth:`sample`, or :meth:`draw`, which returns step numbers and notes.
    The notes are passed to :meth:`mark` together with the batch.
    """

    generator: torch.Generator | None = None
    """Random number generator. ``None``: torch's default generator."""

    batch_size: int | None = None
    """Default batch size of a buffer with this sampler."""

    draws_ahead: bool = True
    """False if batches must not be prepared in advance."""

    changes_when_drawing: bool = True
    """False if the state is the same after a draw, as that of priorities is."""

    ran_out: bool = False
    """True if the last batch ended a pass; always false for samplers without passes."""

    @property
    def dim_name(self) -> str:
        """Name of the first dim of a batch; only ``time`` is treated as a sequence."""
        return "batch"

    def sample(self, storage: Storage, batch_size: int) -> tuple[Any, Info]:
        """Choose steps, and return their positions.

        Args:
            storage: Storage to draw from.
            batch_size: Number of steps.

        Returns:
            Index, int64 ``[N]``, or one such tensor per dim of the storage; and entries for the
            batch.

        Raises:
            ChainError: The storage is empty.
        """
        require_steps(storage)
        steps, notes = self.draw(storage, batch_size)
        index = storage.positions(steps)
        return index[0] if len(index) == 1 else index, self.describe(storage, steps, notes)

    def describe(self, storage: Storage, steps: Tensor, notes: StateDict) -> Info:
        """Return the entries that :meth:`mark` writes, by key."""
        return self.mark(None, notes)

    def draw(self, storage: Storage, batch_size: int) -> tuple[Tensor, StateDict]:
        """Choose steps.

        Args:
            storage: Storage to draw from; not empty.
            batch_size: Number of steps.

        Returns:
            Step numbers, int64 ``[N]``, and notes for :meth:`mark`.
        """
        if type(self).sample is Sampler.sample:
            raise NotImplementedError(f"{type(self).__name__} implements neither sample nor draw")
        index, info = self.sample(storage, batch_size)
        return on_device_of(storage, storage.step_numbers(index)), {"info": info}

    def mark(self, data: object, notes: StateDict) -> dict[NestedKey, Tensor]:
        """Write entries into a batch ``[N]``; by default none.

        Returns:
            Entries by key. A ``TensorDictReplayBuffer`` writes them if this method does not.
        """
        return dict(notes.get("info", {}))

    def _integers(self, high: int, count: int) -> Tensor:
        generator = self.generator
        if generator is None:
            return torch.randint(high, (count,))
        return torch.randint(high, (count,), generator=generator, device=generator.device)

    def available(self, storage: Storage) -> int:
        """Return the number of steps that can be drawn."""
        return len(storage)

    def reset(self) -> None:
        """Discard the current pass."""
        self.ran_out = False

    # Priorities

    @property
    def default_priority(self) -> float:
        """Priority of new steps."""
        return 1.0

    def attach_to(self, storage: Storage) -> None:
        """Handle each write to a storage, if the sampler does something with it."""
        handlers = ("add", "extend", "mark_update")
        if any(getattr(type(self), name) is not getattr(Sampler, name) for name in handlers):
            storage.attach(self)

    def add(self, index: int) -> None:
        """Handle a new step; by default nothing."""

    def extend(self, index: Tensor) -> None:
        """Handle new steps, int64 ``[N]``; by default nothing."""

    def mark_update(self, index: Any, *, storage: Storage | None = None) -> None:
        """Handle steps that were written; by default as :meth:`extend`."""
        self.extend(index)

    def mark_empty(self) -> None:
        """Handle the removal of all steps from the storage; by default nothing."""

    def update_priority(
        self, index: Index, priority: Tensor | float, *, storage: Storage | None = None
    ) -> None:
        """Set the priorities of steps; by default nothing.

        Args:
            index: Positions of the steps, as returned by :meth:`sample`.
            priority: One number, or one per step.
            storage: Storage of the steps; required if it has several dims.
        """

    # State

    def state(self) -> StateDict:
        """Return what a saved buffer needs to continue drawing: plain data and tensors."""
        return {}

    def restore(self, state: StateDict) -> None:
        """Continue from what :meth:`state` returned."""
        self.ran_out = False

    def position(self) -> StateDict:
        """Return what :meth:`rewind` needs to draw the next batches again."""
        return self.state() if self.changes_when_drawing else {}

    def rewind(self, position: StateDict) -> None:
        """Draw again from a :meth:`position`, since prefetched batches were discarded."""
        if self.changes_when_drawing:
            self.restore(position)

    def state_dict(self) -> StateDict:
        """Return a copy of the state."""
        return deepcopy(self.state())

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Continue from a copy of what :meth:`state_dict` returned."""
        self.restore(deepcopy(state_dict))

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Save the state in a folder, without pickle."""
        save_state(path, SAMPLER_FILE, self.state())

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Load what :meth:`dumps` saved.

        Raises:
            StorageError: The folder has no valid state.
        """
        self.restore(load_state(path, SAMPLER_FILE))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def require_steps(storage: Storage) -> None:
    """Raise a ``ChainError`` if there is nothing to draw."""
    if not storage.rows:
        raise ChainError(
            "Cannot sample from an empty storage: the buffer is empty",
            hint="extend() it before you sample",
        )


class RandomSampler(Sampler):
    """Draws steps uniformly with replacement.

    Batches are not in time order, so transforms of sequences refuse them.

    Args:
        replacement: ``False`` creates a :class:`SamplerWithoutReplacement`, with its arguments.

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

    def __new__(cls, *, replacement: bool = True, **options: Any) -> Any:
        """Return a sampler without replacement if ``replacement=False``."""
        if replacement:
            return super().__new__(cls)
        return SamplerWithoutReplacement(**options)

    def __init__(self, *, replacement: bool = True) -> None:
        """Do nothing: the argument selects the class."""

    def draw(self, storage: Storage, batch_size: int) -> tuple[Tensor, StateDict]:
        return on_device_of(storage, self._integers(len(storage), batch_size)), {}


class SamplerWithoutReplacement(Sampler):
    """Draws every step once per pass.

    A pass covers the steps that were stored when it started. ``for batch in buffer`` is one
    pass.

    Args:
        drop_last: Skip a last batch that is smaller than the batch size.
        shuffle: Shuffle the steps in each pass.
        replacement: No effect.

    Example:
        >>> import torch
        >>> from tdx import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
        >>> sampler = SamplerWithoutReplacement(shuffle=False)
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(9), sampler=sampler, batch_size=4)
        >>> _ = buffer.extend(torch.arange(9))
        >>> list(buffer)
        [tensor([0, 1, 2, 3]), tensor([4, 5, 6, 7]), tensor([8])]
    """

    def __init__(
        self, drop_last: bool = False, shuffle: bool = True, *, replacement: bool = False
    ) -> None:
        self.drop_last = drop_last
        self.shuffle = shuffle
        self.reset()

    def reset(self) -> None:
        """Start a new pass with the next batch."""
        self._sample_list: Tensor | None = None  # what the pass has left; TorchRL code reads it
        self._size = 0
        self.ran_out = False

    def draw(self, storage: Storage, batch_size: int) -> tuple[Tensor, StateDict]:
        if self._sample_list is not None and self._size > len(storage):
            self._sample_list = None
        return on_device_of(storage, self.take(len(storage), batch_size)), {}

    def take(self, size: int, count: int) -> Tensor:
        """Return the next elements of the pass, int64 ``[count]``.

        Args:
            size: Number of elements of a new pass.
            count: Number of elements; fewer at the end of a pass.

        Raises:
            ArgumentError: With ``drop_last``, a pass has fewer elements.
        """
        if self._sample_list is None:
            self._sample_list, self._size = self._order(size), size
        if self.drop_last and count > self._size:
            raise ArgumentError(
                f"The batch size {count} is greater than the storage capacity: {self._size} steps",
                hint="lower the batch size, or pass drop_last=False",
            )
        batch, self._sample_list = self._sample_list[:count], self._sample_list[count:]
        least = count if self.drop_last else 1
        self.ran_out = len(self._sample_list) < least
        if self.ran_out:
            self._sample_list = None
        return batch

    def _order(self, size: int) -> Tensor:
        if not self.shuffle:
            return torch.arange(size)
        device = "cpu" if self.generator is None else self.generator.device
        return torch.randperm(size, generator=self.generator, device=device)

    def state(self) -> StateDict:
        """Return the steps that the pass has left, int64 ``[n]``."""
        state: StateDict = {"size": self._size}
        return state if self._sample_list is None else state | {"left": self._sample_list}

    def restore(self, state: StateDict) -> None:
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
        self._sample_list, self._size, self.ran_out = left, size, False

    def __repr__(self) -> str:
        return f"SamplerWithoutReplacement(drop_last={self.drop_last}, shuffle={self.shuffle})"
