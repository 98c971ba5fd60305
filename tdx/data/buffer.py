"""Replay buffers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path as FilePath
from threading import RLock
from typing import Any, Self

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.transforms import Compose, Transform
from tdx.core.transforms.callable_transform import as_transform
from tdx.core.transforms.validation import check_integer
from tdx.data import saved
from tdx.data.batches import Batch, ChainProgram, InvertedTransform, Prefetcher
from tdx.data.samplers import RandomSampler, Sampler
from tdx.data.storage import (
    ListStorage,
    Storage,
    collate,
    find_time_dim,
    to_time_first,
    to_written_order,
)
from tdx.data.tensor_storage import LazyTensorStorage
from tdx.errors import ArgumentError, ChainError
from tdx.tensordicts import write

_BATCH_SIZE = ("batch_size", 1, "pass the number of steps in a batch")

Stage = Transform | Callable[[TensorDictBase], TensorDictBase]


class ReplayBuffer:
    """Stores steps and samples batches of them.

    Transforms map sampled batches by their ``forward``. Transforms with an inverse map data that
    is written by :meth:`extend` and :meth:`add`. A buffer can be used from several threads.

    Args:
        storage: Storage, or a function that creates one; ``ListStorage(1000)`` by default.
        sampler: Sampler, or a function that creates one; ``RandomSampler()`` by default.
        collate_fn: Function that turns gathered items into a batch; for a list storage, of a
            list of items.
        pin_memory: Put batches into page-locked memory.
        prefetch: Number of batches to prepare in a thread. They contain what was stored when
            they were prepared; writing waits for them, so that a seed reproduces the batches.
        transform: Transform, chain, or function of a TensorDict.
        batch_size: Default batch size of :meth:`sample`.
        dim_extend: Dim of the data along which :meth:`extend` appends: time. ``None``: the last
            of the storage's ``ndim`` dims, as in rollouts ``[B, T]``.
        generator: Random number generator. ``None``: torch's default generator.

    Raises:
        ArgumentError: An argument has an invalid type or value.
        ChainError: A transform is already part of another chain.

    Example:
        >>> from tdx import GymEnv, LazyTensorStorage, ReplayBuffer, RewardScaling
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=32)
        >>> _ = buffer.append_transform(RewardScaling(0.0, 0.1, in_keys=[("next", "reward")]))
        >>> _ = buffer.extend(GymEnv("Pendulum-v1").rollout(200))
        >>> buffer.sample()["next", "observation"].shape
        torch.Size([32, 3])
    """

    def __init__(
        self,
        *,
        storage: Storage | Callable[[], Storage] | None = None,
        sampler: Sampler | Callable[[], Sampler] | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Stage | None = None,
        batch_size: int | None = None,
        dim_extend: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self._storage = _build(ListStorage(1000) if storage is None else storage, Storage)
        self._sampler = _build(RandomSampler() if sampler is None else sampler, Sampler)
        self._collate_fn = collate_fn
        self._pin_memory = pin_memory
        self._prefetcher = Prefetcher(0 if prefetch is None else prefetch)
        self._batch_size = None if batch_size is None else check_integer(batch_size, *_BATCH_SIZE)
        self._dim_extend = find_time_dim(dim_extend, self._storage.ndim)
        self._lock = RLock()
        self._sampler.generator = generator
        self._transform = transform if type(transform) is Compose else Compose()
        self._program = ChainProgram(self._transform)
        self._transform.set_container(self)  # type: ignore[arg-type]
        if transform is not None and transform is not self._transform:
            self.append_transform(transform)

    # Parts

    @property
    def storage(self) -> Storage:
        """Storage of the steps."""
        return self._storage

    @property
    def sampler(self) -> Sampler:
        """Sampler of the batches."""
        return self._sampler

    @property
    def transform(self) -> Compose:
        """Chain of transforms."""
        return self._transform

    @property
    def batch_size(self) -> int | None:
        """Default batch size of :meth:`sample`."""
        return self._batch_size

    @property
    def dim_extend(self) -> int:
        """Dim of the data along which :meth:`extend` appends."""
        return self._dim_extend

    @property
    def write_count(self) -> int:
        """Number of rows ever written."""
        return self._storage.write_count

    def set_sampler(self, sampler: Sampler) -> None:
        """Replace the sampler."""
        new: Sampler = _build(sampler, Sampler)
        with self._locked_without_prefetch():
            new.generator = self._sampler.generator
            self._sampler = new

    def set_rng(self, generator: torch.Generator | None) -> None:
        """Replace the random number generator."""
        with self._locked_without_prefetch():
            self._sampler.generator = generator

    def append_transform(self, transform: Stage, *, invert: bool = False) -> Self:
        """Append a transform to the chain.

        Args:
            transform: Transform, or function of a TensorDict.
            invert: Map written data by its ``forward`` and sampled data by its inverse.

        Raises:
            ChainError: The transform is already part of another chain.
        """
        return self.insert_transform(len(self._transform), transform, invert=invert)

    def insert_transform(self, index: int, transform: Stage, *, invert: bool = False) -> Self:
        """Insert a transform into the chain before an index.

        Args:
            index: Index from 0, or negative to count from the end.
            transform: Transform, or function of a TensorDict.
            invert: Map written data by its ``forward`` and sampled data by its inverse.

        Raises:
            ChainError: The transform is already part of another chain.
            IndexError: The index is out of range.
        """
        stage = as_transform(transform)
        with self._locked_without_prefetch():
            self._transform.insert(index, InvertedTransform(stage) if invert else stage)
        return self

    # Threads

    def _locked_for_write(self) -> RLock:
        """Return the lock once all prefetched batches are prepared."""
        self._prefetcher.settle()
        return self._lock

    def _locked_without_prefetch(self) -> RLock:
        """Return the lock once all prefetched batches are prepared and discarded."""
        self._discard_prefetched()
        return self._lock

    def _discard_prefetched(self) -> None:
        first = self._prefetcher.discard()
        if first is not None:
            self._sampler.restore(first.before)

    def _chain_changed(self) -> None:
        self._program = ChainProgram(self._transform)
        self._discard_prefetched()

    def close(self) -> None:
        """Stop the prefetch thread."""
        self._prefetcher.close()

    # Writing

    def extend(self, data: Any) -> Tensor:
        """Write steps; when the buffer is full, overwrite the oldest.

        Args:
            data: TensorDict or tensor ``[T, ...]`` with ``ndim`` dims that count steps, or a list
                of steps.

        Returns:
            Position of each step, int64 ``[T]`` or ``[T * B, ndim]``; those that a transform holds
            back until later ones are written have none.

        Raises:
            ArgumentError: Keys, shapes or dtypes differ from those of the stored data.
            StorageError: The disk is full.
        """
        if self._takes_tensors and isinstance(data, (list, tuple)) and data:
            data = collate(list(data))
        with self._locked_for_write():
            mapped = self._invert(data)
            if mapped is not data and 0 in mapped.batch_size:  # a stage waits for later steps
                return self._storage.row_positions(torch.zeros(0, dtype=torch.int64))
            data = to_time_first(mapped, self._dim_extend)
            return self._storage.row_positions(self._storage.extend(data))

    def add(self, data: Any) -> int | Tensor:
        """Write one step.

        Args:
            data: TensorDict or tensor without a time dim, or any item of a list.

        Returns:
            Position of the step: an index, or ``[B, ndim]``; empty if a transform holds the step
            back until later ones are written.

        Raises:
            ArgumentError: Keys, shapes or dtypes differ from those of the stored data.
        """
        with self._locked_for_write():
            mapped = self._invert(data)
            if mapped is not data and 0 in mapped.batch_size:  # a stage waits for later steps
                return self._storage.row_positions(torch.zeros(0, dtype=torch.int64))
            data = mapped
            if self._takes_tensors:
                if not isinstance(data, (Tensor, TensorDictBase)):
                    data = torch.as_tensor(data)
                row = self._storage.extend(data.unsqueeze(0))
            else:
                row = self._storage.extend([data])
            positions = self._storage.row_positions(row)
            return positions if self._storage.ndim > 1 else int(positions[0])

    @property
    def _takes_tensors(self) -> bool:
        return isinstance(self._storage, LazyTensorStorage)

    def _invert(self, data: Any) -> Any:
        if isinstance(data, TensorDictBase) and self._transform.invertible:
            return self._transform.inv(data)
        return data

    def empty(self, empty_write_count: bool = True) -> None:
        """Remove all steps.

        Args:
            empty_write_count: Reset ``write_count`` to 0.
        """
        with self._locked_without_prefetch():
            self._storage.empty(empty_write_count)
            self._sampler.reset()

    # Reading

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """Sample a batch of steps and map it by the transforms.

        Args:
            batch_size: Number of steps. ``None``: that of the buffer.
            return_info: Also return a dict with the positions of the steps (``index``: int64
                ``[N]``, or one such tensor per dim) and the entries that the sampler wrote.

        Returns:
            Batch ``[N, ...]``, a copy of stored data; or the batch and the dict.

        Raises:
            ArgumentError: There is no batch size, or the sampler does not support it.
            ChainError: The buffer is empty, or no episode is long enough.
        """
        batch = self._next(self._size(batch_size))
        return (batch.data, batch.info) if return_info else batch.data

    def _size(self, batch_size: int | None) -> int:
        if batch_size is not None:
            return check_integer(batch_size, *_BATCH_SIZE)
        if self._batch_size is None:
            raise ArgumentError(
                "the buffer has no batch_size", hint="pass one to sample() or to the buffer"
            )
        return self._batch_size

    def _next(self, size: int) -> Batch:
        if not self._prefetcher.fits(size):
            self._discard_prefetched()
        try:
            return self._prefetcher.next(size, self._prepare)
        except Exception:
            self._discard_prefetched()
            raise

    def _prepare(self, size: int) -> Batch:
        with self._lock:
            storage, sampler = self._storage, self._sampler
            if not storage.rows:
                raise ChainError("the buffer is empty", hint="extend() it before you sample")
            before = sampler.state() if self._prefetcher.ahead else {}
            steps, notes = sampler.draw(storage, size)
            data = self._collate(storage.gather(steps, sampler.dim_name), sampler.dim_name)
            marks = sampler.mark(data, notes)
            index = storage.positions(steps)
            info = {"index": index[0] if len(index) == 1 else index, **marks}
            data = self._map(self._with_index(data, index))
            return Batch(data, info, sampler.ran_out, before)

    def _collate(self, data: Any, name: str) -> Any:
        if self._collate_fn is not None:
            return self._collate_fn(data)
        if self._takes_tensors:
            return data
        return collate(data, name)

    def _with_index(self, data: Any, index: tuple[Tensor, ...]) -> Any:
        return data

    def _map(self, data: Any) -> Any:
        data = self._program(data)
        return data.pin_memory() if self._pin_memory else data

    def __iter__(self) -> Iterator[Any]:
        size = self._size(None)
        while len(self):
            batch = self._next(size)
            yield batch.data
            if batch.ended:
                return

    def __len__(self) -> int:
        return len(self._storage)

    def __getitem__(self, index: Any) -> Any:
        """Return stored data, in the dim order in which it was written, mapped by the chain."""
        with self._lock:
            if self._takes_tensors:
                data = to_written_order(self._storage[:], self._dim_extend)[index]
            else:
                data = self._storage[index]
            if isinstance(data, list):
                data = self._collate(data, "batch")
            if isinstance(data, TensorDictBase) and len(self._transform):
                return self._map(data.clone(recurse=False))
            return data

    def __setitem__(self, index: Any, data: Any) -> None:
        """Replace stored data, after the inverses of the transforms mapped the new data."""
        with self._locked_for_write():
            if self._storage.ndim > 1:
                raise ChainError(
                    "item assignment is not supported with several dims of steps",
                    hint="use extend() or add(), or buffer.storage[index] with time first",
                )
            self._storage[index] = self._invert(data)

    # Files

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Save the data and the positions of writer and sampler, without pickle.

        An earlier save in the folder is replaced when the new one is complete: after a crash
        :meth:`loads` reads one of the two. Other files in the folder are not changed.

        Args:
            path: Folder; created if it does not exist.

        Raises:
            ArgumentError: A list contains something other than tensors and TensorDicts of one
                shape.
            StorageError: The disk is full, or the folder is not writable.
        """
        with self._locked_without_prefetch():
            saved.save(FilePath(path), saved.snapshot(self._storage, self._sampler.state()))

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Load what :meth:`dumps` saved, and replace the stored data.

        No code from the folder is run, and no link in it is followed. If loading fails, the
        buffer is not changed.

        Args:
            path: Folder.

        Raises:
            ArgumentError: The storage is too small for the data, or was created for other data.
            StorageError: The folder has no saved buffer, or a file of it is damaged.
        """
        found = saved.load(FilePath(path))
        with self._locked_without_prefetch():
            saved.restore(self._storage, self._sampler, found)

    def __repr__(self) -> str:
        chain = f", transform={self._transform}" if len(self._transform) else ""
        return (
            f"{type(self).__name__}(storage={self._storage}, sampler={self._sampler}, "
            f"batch_size={self._batch_size}{chain})"
        )


def _build(part: Any, kind: type) -> Any:
    """Return a part of the buffer, or what a function creates for it.

    Raises:
        ArgumentError: It has another type.
    """
    if not isinstance(part, kind) and callable(part):
        part = part()
    if not isinstance(part, kind):
        raise ArgumentError(
            f"{kind.__name__.lower()} must be a {kind.__name__}, got {type(part).__name__}",
            hint="or a function that creates one",
        )
    return part


class TensorDictReplayBuffer(ReplayBuffer):
    """A replay buffer of TensorDicts whose batches contain the positions of their steps.

    Args:
        **kwargs: Arguments of :class:`ReplayBuffer`.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer
        >>> buffer = TensorDictReplayBuffer(
        ...     storage=LazyTensorStorage(9),
        ...     sampler=SamplerWithoutReplacement(shuffle=False),
        ...     batch_size=4,
        ... )
        >>> _ = buffer.extend(TensorDict(reward=torch.ones(9, 1), batch_size=[9]))
        >>> buffer.sample()["index"]
        tensor([0, 1, 2, 3])
    """

    def _with_index(self, data: Any, index: tuple[Tensor, ...]) -> Any:
        if not isinstance(data, TensorDictBase):
            raise ChainError(
                f"the batches are {type(data).__name__} instead of TensorDicts",
                hint="use ReplayBuffer, which stores data of any kind",
            )
        write(data, "index", index[0] if len(index) == 1 else torch.stack(index, -1))
        return data
