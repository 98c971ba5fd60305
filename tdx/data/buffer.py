"""The replay buffer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.data import saved as saving
from tdx.data.buffer_parts import BufferParts, checked_size
from tdx.data.list_storage import collate
from tdx.data.prefetch import Batch
from tdx.data.snapshot import restored, snapshot
from tdx.data.tensor_storage import LazyTensorStorage
from tdx.errors import ArgumentError, ChainError


class ReplayBuffer(BufferParts):
    """Holds steps, and gives batches of them.

    Transforms map batches on their way out, in :meth:`sample`, by their ``forward``; those that
    have an inverse map data on its way in, in :meth:`extend` and :meth:`add`. It may be used
    from several threads.

    Args:
        storage: what holds the data, or a function that makes it; ``ListStorage(1000)`` by
            default.
        sampler: what chooses the steps of a batch, or a function that makes it;
            ``RandomSampler()`` by default.
        collate_fn: makes a batch of what the storage gives: for a list, a list of items.
        pin_memory: whether batches are put into page-locked memory.
        prefetch: how many batches are made ahead of time in a thread. They hold what was stored
            when they were made; writing waits for them, so that a seed gives the same batches.
        transform: a transform, a chain of them, or a function over a TensorDict.
        batch_size: how many steps :meth:`sample` gives.
        dim_extend: the dim of the data along which :meth:`extend` appends: time. By default the
            last of the storage's ``ndim`` dims, as in rollouts ``[B, T]``.
        generator: the source of random numbers; torch's own by default.

    Raises:
        ArgumentError: an argument has a wrong type or range.
        ChainError: a transform is already part of another chain.

    Example:
        >>> from tdx import GymEnv, LazyTensorStorage, ReplayBuffer, RewardScaling
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=32)
        >>> _ = buffer.append_transform(RewardScaling(0.0, 0.1, in_keys=[("next", "reward")]))
        >>> _ = buffer.extend(GymEnv("Pendulum-v1").rollout(200))
        >>> buffer.sample()["next", "observation"].shape
        torch.Size([32, 3])
    """

    # Writing

    def extend(self, data: Any) -> Tensor:
        """Write steps behind the newest; when the buffer is full, over the oldest.

        Args:
            data: a TensorDict or a tensor ``[T, ...]``, with ``ndim`` dims that count steps; or
                a list of steps.

        Returns:
            int64: where each step was written, ``[T]``, or ``[T * B, ndim]``.

        Raises:
            ArgumentError: keys, shapes or dtypes are not those of what is stored.
            StorageError: the disk is full.
        """
        if self._takes_tensors and isinstance(data, (list, tuple)) and data:
            data = collate(list(data))
        with self._writing():
            return self._places(self._storage.extend(self._turned(self._mapped_in(data))))

    def add(self, data: Any) -> int | Tensor:
        """Write one step.

        Args:
            data: a TensorDict or a tensor without the dim of time, or any item of a list.

        Returns:
            Where it was written: a number, or ``[B, ndim]``.

        Raises:
            ArgumentError: keys, shapes or dtypes are not those of what is stored.
        """
        with self._writing():
            data = self._mapped_in(data)
            if self._takes_tensors:
                if not isinstance(data, (Tensor, TensorDictBase)):
                    data = torch.as_tensor(data)
                row = self._storage.extend(data.unsqueeze(0))
            else:
                row = self._storage.extend([data])
            places = self._places(row)
            return places if self._storage.ndim > 1 else int(places[0])

    @property
    def _takes_tensors(self) -> bool:
        return isinstance(self._storage, LazyTensorStorage)

    def _mapped_in(self, data: Any) -> Any:
        if isinstance(data, TensorDictBase) and self._transform.invertible:
            return self._transform.inv(data)
        return data

    def _turned(self, data: Any) -> Any:
        """The data with the dim of time in front."""
        dim = self._dim_extend
        if dim == 0 or not isinstance(data, (Tensor, TensorDictBase)) or data.ndim <= dim:
            return data
        return data.permute(dim, *(each for each in range(data.ndim) if each != dim))

    def _places(self, rows: Tensor) -> Tensor:
        storage = self._storage
        if not isinstance(storage, LazyTensorStorage) or storage.ndim == 1:
            return rows
        steps = rows.unsqueeze(1) * storage.width + torch.arange(storage.width)
        return torch.stack(storage.places(steps.flatten()), -1)

    def empty(self, empty_write_count: bool = True) -> None:
        """Forget everything.

        Args:
            empty_write_count: whether ``write_count`` begins anew.
        """
        with self._paused():
            self._storage.empty(empty_write_count)
            self._sampler.reset()

    # Reading

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """A batch of steps, mapped by the transforms.

        Args:
            batch_size: how many steps; the buffer's own by default.
            return_info: whether to also return a dict of where the steps are stored
                (``index``: int64 ``[N]``, or one such tensor for each dim) and of what the
                sampler wrote into the batch.

        Returns:
            The batch ``[N, ...]``, a copy of what is stored; or that and the dict.

        Raises:
            ArgumentError: no batch size was ever given, or the sampler cannot make one of it.
            ChainError: the buffer is empty, or no episode is long enough.
        """
        batch = self._next(self._size(batch_size))
        return (batch.data, batch.info) if return_info else batch.data

    def _size(self, batch_size: int | None) -> int:
        if batch_size is not None:
            return checked_size(batch_size)
        if self._batch_size is None:
            raise ArgumentError(
                "no batch_size is given", hint="give one to sample() or to the buffer"
            )
        return self._batch_size

    def _next(self, size: int) -> Batch:
        prefetcher = self._prefetcher
        if prefetcher is None:
            return self._make(size)
        if not prefetcher.fits(size):
            self._drop_prefetched()
        try:
            return prefetcher.next(size, self._make)
        except Exception:
            self._drop_prefetched()
            raise

    def _make(self, size: int) -> Batch:
        with self._lock:
            storage, sampler = self._storage, self._sampler
            if not storage.rows:
                raise ChainError("the buffer is empty", hint="extend() it before you sample")
            before = {} if self._prefetcher is None else sampler.state()
            steps, notes = sampler.draw(storage, size)
            data = self._collated(storage.gather(steps, sampler.dim_name), sampler.dim_name)
            marks = sampler.mark(data, notes)
            index = storage.places(steps)
            info = {"index": index[0] if len(index) == 1 else index, **marks}
            data = self._mapped_out(self._with_index(data, index))
            return Batch(data, info, sampler.ran_out, before)

    def _collated(self, data: Any, name: str) -> Any:
        if self._collate_fn is not None:
            return self._collate_fn(data)
        if self._takes_tensors:
            return data
        data = collate(data)
        if isinstance(data, TensorDictBase):
            data.names = [name, *data.names[1:]]
        return data

    def _with_index(self, data: Any, index: tuple[Tensor, ...]) -> Any:
        return data

    def _mapped_out(self, data: Any) -> Any:
        if len(self._transform):
            if not isinstance(data, TensorDictBase):
                raise ChainError(
                    f"the buffer holds no TensorDicts, its batches are {type(data).__name__}",
                    hint="transforms need keys: store TensorDicts, or give a collate_fn",
                )
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
        """What is stored at an index of the data as it was given, mapped by the transforms."""
        with self._lock:
            data = self._back()[index] if self._takes_tensors else self._storage[index]
            if isinstance(data, list):
                data = self._collated(data, "batch")
            if isinstance(data, TensorDictBase) and len(self._transform):
                return self._mapped_out(data.clone(recurse=False))
            return data

    def _back(self) -> Any:
        """Everything that is stored, with its dims in the order in which it was given."""
        stored, dim = self._storage[:], self._dim_extend
        if dim == 0:
            return stored
        order = [*range(1, dim + 1), 0, *range(dim + 1, stored.ndim)]
        return stored.permute(*order)

    def __setitem__(self, index: Any, data: Any) -> None:
        """Replace what is stored at an index; the inverses of the transforms map it first."""
        with self._writing():
            if self._storage.ndim > 1:
                raise ChainError(
                    "a buffer with several dims of steps is only written to by extend and add",
                    hint="buffer.storage[index] = data counts time first",
                )
            self._storage[index] = self._mapped_in(data)

    # Files

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Save the data and the positions of writer and sampler, without pickle.

        An earlier save in the folder is replaced when the new one is complete: after a crash
        :meth:`loads` reads one of the two. Other files in the folder are left alone.

        Args:
            path: Folder; created if it does not exist.

        Raises:
            ArgumentError: A list holds other things than tensors and TensorDicts of one shape.
            StorageError: The disk is full, or the folder cannot be written to.
        """
        with self._paused():
            saving.save(FilePath(path), snapshot(self._storage, self._sampler.state()))

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Load what :meth:`dumps` saved, in place of what is stored here.

        No code from the folder is run, and no link in it is followed. If it cannot be loaded, the
        buffer keeps its content.

        Args:
            path: Folder.

        Raises:
            ArgumentError: The storage is too small for the data, or was made for other data.
            StorageError: The folder has no saved buffer, or a file of it is damaged.
        """
        found = saving.load(FilePath(path))
        with self._paused():
            before = self._sampler.state()
            self._sampler.reset()
            try:
                self._sampler.restore(found.sampler)
                restored(self._storage, found)
            except Exception:
                self._sampler.restore(before)
                raise

    def __repr__(self) -> str:
        chain = f", transform={self._transform}" if len(self._transform) else ""
        return (
            f"{type(self).__name__}(storage={self._storage}, sampler={self._sampler}, "
            f"batch_size={self._batch_size}{chain})"
        )
