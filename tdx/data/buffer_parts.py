"""What a replay buffer is made of, and how its parts are exchanged."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any, Self

import torch
from tensordict import TensorDictBase

from tdx.core.transforms import Compose, Transform
from tdx.core.transforms.callable_transform import as_transform
from tdx.data.chain_program import ChainProgram
from tdx.data.inverted import InvertedTransform
from tdx.data.list_storage import ListStorage
from tdx.data.prefetch import Prefetcher
from tdx.data.samplers import RandomSampler, Sampler
from tdx.data.storage import Storage
from tdx.errors import ArgumentError

Stage = Transform | Callable[[TensorDictBase], TensorDictBase]


class BufferParts:
    """Storage, sampler, chain and lock; see :class:`tdx.ReplayBuffer`."""

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
        self._storage = made(ListStorage(1000) if storage is None else storage, Storage, "storage")
        self._sampler = made(RandomSampler() if sampler is None else sampler, Sampler, "sampler")
        self._collate_fn = collate_fn
        self._pin_memory = pin_memory
        if prefetch is not None and (not isinstance(prefetch, int) or prefetch < 0):
            raise ArgumentError(
                f"prefetch must be an integer of at least 0, got {prefetch!r}",
                hint="pass the number of batches to make ahead, or None",
            )
        self._prefetcher = Prefetcher(prefetch) if prefetch else None
        self._batch_size = None if batch_size is None else checked_size(batch_size)
        ndim = self._storage.ndim
        self._dim_extend = ndim - 1 if dim_extend is None else dim_extend
        if not 0 <= self._dim_extend < ndim:
            raise ArgumentError(
                f"dim_extend={dim_extend} is none of the {ndim} dims of the storage",
                hint="the storage's ndim says how many dims of the data count steps",
            )
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
        """What holds the data."""
        return self._storage

    @property
    def sampler(self) -> Sampler:
        """What chooses the steps of a batch."""
        return self._sampler

    @property
    def transform(self) -> Compose:
        """The chain of transforms."""
        return self._transform

    @property
    def batch_size(self) -> int | None:
        """How many steps :meth:`sample` gives by default."""
        return self._batch_size

    @property
    def dim_extend(self) -> int:
        """The dim of the data along which :meth:`extend` appends."""
        return self._dim_extend

    @property
    def write_count(self) -> int:
        """How many rows were ever written."""
        return self._storage.write_count

    def set_sampler(self, sampler: Sampler) -> None:
        """Draw with another sampler from now on."""
        new: Sampler = made(sampler, Sampler, "sampler")
        with self._paused():
            new.generator = self._sampler.generator
            self._sampler = new

    def set_rng(self, generator: torch.Generator | None) -> None:
        """Take random numbers from another generator from now on."""
        with self._paused():
            self._sampler.generator = generator

    def append_transform(self, transform: Stage, *, invert: bool = False) -> Self:
        """Add a transform at the end of the chain.

        Args:
            transform: a transform, or a function over a TensorDict.
            invert: whether it maps data on its way in, and its inverse data on its way out.

        Raises:
            ChainError: it is already part of another chain.
        """
        return self.insert_transform(len(self._transform), transform, invert=invert)

    def insert_transform(self, index: int, transform: Stage, *, invert: bool = False) -> Self:
        """Add a transform so that it gets this index in the chain.

        Args:
            index: from 0; negative ones count from the end.
            transform: a transform, or a function over a TensorDict.
            invert: whether it maps data on its way in, and its inverse data on its way out.

        Raises:
            ChainError: it is already part of another chain.
            IndexError: the index is outside the chain.
        """
        stage = as_transform(transform)
        with self._paused():
            self._transform.insert(index, InvertedTransform(stage) if invert else stage)
        return self

    # Threads

    def _writing(self) -> RLock:
        """The lock, once the batches in the making are made."""
        if self._prefetcher is not None:
            self._prefetcher.settle()
        return self._lock

    def _paused(self) -> RLock:
        """The lock, once the batches in the making are made and dropped."""
        self._drop_prefetched()
        return self._lock

    def _drop_prefetched(self) -> None:
        first = None if self._prefetcher is None else self._prefetcher.drop()
        if first is not None:
            self._sampler.restore(first.before)

    def _chain_changed(self) -> None:
        self._program = ChainProgram(self._transform)
        self._drop_prefetched()

    def close(self) -> None:
        """Stop the thread that makes batches ahead."""
        if self._prefetcher is not None:
            self._prefetcher.close()


def made(part: Any, kind: type, argument: str) -> Any:
    """A part of the buffer, or what a function makes for it.

    Raises:
        ArgumentError: it is of another kind.
    """
    if part is not None and not isinstance(part, kind) and callable(part):
        part = part()
    if part is not None and not isinstance(part, kind):
        raise ArgumentError(
            f"{argument} must be a {kind.__name__}, got {type(part).__name__}",
            hint="or a function that makes one",
        )
    return part


def checked_size(batch_size: int) -> int:
    """The batch size.

    Raises:
        ArgumentError: it is no integer of at least 1.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ArgumentError(
            f"batch_size must be an integer of at least 1, got {batch_size!r}",
            hint="pass the number of steps in a batch",
        )
    return batch_size
