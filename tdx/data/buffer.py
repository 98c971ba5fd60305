"""Replay buffers."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path as FilePath
from threading import Lock, RLock
from typing import Any, NamedTuple, Self, cast

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.transforms import CallableTransform, Compose, TimeBehavior, Transform
from tdx.core.transforms.chain_member import ChainOwner
from tdx.core.transforms.compose import as_transform
from tdx.core.transforms.validation import check_integer
from tdx.data.conditional_updates import ConditionalUpdate, update_if_present
from tdx.data.layout import Index, Info, StateDict, to_time_first, to_written_order
from tdx.data.online_samplers import LEFT, ConsumingSampler
from tdx.data.prioritized_sampler import PRIORITIES
from tdx.data.sample_units import SampleUnit
from tdx.data.samplers import RandomSampler, Sampler, on_device_of, require_steps
from tdx.data.saved import load, save
from tdx.data.storage import (
    ListStorage,
    Storage,
    TensorStorage,
    collate,
    moves_oldest_first,
)
from tdx.data.writers import RoundRobinWriter, Writer
from tdx.foundation.errors import ArgumentError, ChainError
from tdx.foundation.keys import NestedKey
from tdx.foundation.tensordicts import read, write
from tdx.foundation.torch_internals import forward_hooks, tree_map


def build_part(part: Any, kind: type, default: Callable[[], Any] | None = None) -> Any:
    """Return a part of the buffer, or what a function creates for it; ``None``: the default."""
    if part is None and default is not None:
        return default()
    if not isinstance(part, kind) and callable(part):
        part = part()
    if not isinstance(part, kind):
        raise ArgumentError(
            f"{kind.__name__.lower()} must be a {kind.__name__}, got {type(part).__name__}",
            hint="or a function that creates one",
        )
    return part


def check_batch_size(batch_size: int) -> int:
    """Return a batch size, which must be an integer of at least 1."""
    return check_integer(batch_size, "batch_size", 1, "pass the number of steps in a batch")


class Batch(NamedTuple):
    """A sampled batch, with the positions of its steps and what the sampler wrote.

    ``ended`` marks the last one of a pass, ``before`` is the state of the sampler before it.
    """

    data: Any
    info: Info
    ended: bool
    before: StateDict


class ChainProgram:
    """Runs ``chain(data)`` with less overhead for transforms that map tensor by tensor.

    A changed chain needs a new program.
    """

    def __init__(self, chain: Compose) -> None:
        self.chain = chain
        functions = [stage.function for stage in chain if isinstance(stage, CallableTransform)]
        self._functions = functions if len(functions) == len(chain) else None
        self._hooks = forward_hooks(chain)
        self._steps = tuple(
            (
                stage,
                stage._pairs if type(stage).forward is Transform.forward else None,
                *forward_hooks(stage),
            )
            for stage in chain
        )

    def __call__(self, data: Any) -> Any:
        """Map a batch ``[N, ...]`` that the caller owns; most transforms do so in place.

        Raises:
            ChainError: The batch is not a TensorDict, and a stage is not a plain function.
        """
        if not self._steps:
            return data
        if not isinstance(data, TensorDictBase):
            if self._functions is not None:
                for function in self._functions:
                    data = function(data)
                return data
            raise ChainError(
                f"transforms map TensorDicts, but the batches are {type(data).__name__}",
                hint="store TensorDicts, or pass a collate_fn that returns them",
            )
        chain = self.chain
        is_replaced = "forward" in chain.__dict__ or type(chain).forward is not Compose.forward
        if self._hooks[0] or self._hooks[1] or is_replaced:
            return chain(data)
        stage: Transform
        try:
            for stage, pairs, hooks, pre_hooks in self._steps:
                if pairs is None or hooks or pre_hooks:
                    data = stage(data)
                else:
                    _map_each(stage, pairs, data)
        except Exception as error:
            raise chain.locate_error(error, stage, "sampling") from error.__cause__
        return data


def _map_each(
    stage: Transform, pairs: tuple[tuple[NestedKey, NestedKey], ...], data: TensorDictBase
) -> None:
    for in_key, out_key in pairs:
        value = read(data, in_key)
        if value is None:
            if stage.missing_tolerance:
                continue
            raise stage._missing_key(in_key, data)
        result = stage._apply_transform(value)
        alike = type(result) is Tensor and result.shape == value.shape
        if alike and result.device == value.device:
            write(data, out_key, result)
        else:
            data.set(out_key, result)


class InvertedTransform(Transform):
    """Swaps ``forward`` and ``inv`` of a transform."""

    time_behavior = TimeBehavior.CONTROL

    def __init__(self, transform: Transform) -> None:
        super().__init__()
        self.transform = transform
        transform.set_container(self)

    @property
    def invertible(self) -> bool:
        """Always true."""
        return True

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Map sampled data by the inverse of the transform."""
        return self.transform.inv(tensordict)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self.transform(tensordict)

    def __repr__(self) -> str:
        return f"InvertedTransform({self.transform})"


class Prefetcher:
    """A queue of batches prepared in advance; with ``ahead=0`` each is prepared when requested.

    A single thread prepares them in order, so that the order of the batches is that of the
    random numbers.
    """

    def __init__(self, ahead: int) -> None:
        hint = "pass the number of batches to prepare, or None"
        self.ahead = check_integer(ahead, "prefetch", 0, hint)
        self._pool: ThreadPoolExecutor | None = None
        self._queue: deque[Future[Batch]] = deque()
        self._size = 0
        self._lock = Lock()

    def fits(self, size: int) -> bool:
        """Return True if the queue is empty or contains batches of this size."""
        return not self._queue or self._size == size

    def next(self, size: int, make: Callable[[int], Batch]) -> Batch:
        """Return the next batch of a size, and schedule the ones after it."""
        if not self.ahead:
            return make(size)
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="tdx-prefetch")
            self._size = size
            while len(self._queue) <= self.ahead:
                self._queue.append(self._pool.submit(make, size))
            first = self._queue.popleft()
        return first.result()

    @property
    def pending(self) -> int:
        """Number of scheduled batches."""
        return len(self._queue)

    def settle(self) -> None:
        """Wait until all scheduled batches are prepared."""
        if not self.ahead:
            return
        with self._lock:
            pending = list(self._queue)
        wait(pending)

    def discard(self) -> Batch | None:
        """Discard all scheduled batches, and return the first one, if there is one."""
        if not self.ahead:
            return None
        with self._lock:
            pending = list(self._queue)
            self._queue.clear()
        wait(pending)
        for future in pending:
            if future.exception() is None:
                return future.result()
        return None

    def close(self) -> None:
        """Stop the thread."""
        self.discard()
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()


Stage = Transform | Callable[[TensorDictBase], TensorDictBase]


class ReplayBuffer(ChainOwner):
    """Stores steps and samples batches of them.

    Transforms map sampled batches by their ``forward``. Transforms with an inverse map data that
    is written by :meth:`extend` and :meth:`add`. A buffer can be used from several threads.

    Args:
        storage: Storage, or a function that creates one; ``ListStorage(1000)`` by default.
        sampler: Sampler, or a function that creates one; ``RandomSampler()`` by default.
        writer: Writer, or a function that creates one; ``RoundRobinWriter()`` by default.
        collate_fn: Function that turns gathered items into a batch; for a list storage, of a
            list of items.
        pin_memory: Put batches into page-locked memory.
        prefetch: Number of batches to prepare in a thread. They contain what was stored when
            they were prepared; writing waits for them, so that a seed reproduces the batches.
        transform: Transform, chain, or function of a TensorDict.
        transform_factory: Function that creates the transform, instead.
        batch_size: Default batch size of :meth:`sample`.
        dim_extend: Dim of the data along which :meth:`extend` appends: time. ``None``: the last
            of the storage's ``ndim`` dims, as in rollouts ``[B, T]``.
        generator: Random number generator. ``None``: torch's default generator.
        shared: Must be false: a buffer belongs to one process.
        compilable: No effect, as ``delayed_init``.
        delayed_init: No effect.
        consume_after_n_samples: Draw each step that often, then never again: a
            :class:`ConsumingSampler`.
        sample_unit: What a batch has for each step that the sampler draws, such as a
            :class:`Sequence`. ``None``: the step.

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
        writer: Writer | Callable[[], Writer] | None = None,
        collate_fn: Callable[[Any], object] | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Stage | None = None,
        transform_factory: Callable[[], Stage] | None = None,
        batch_size: int | None = None,
        dim_extend: int | None = None,
        generator: torch.Generator | None = None,
        shared: bool = False,
        compilable: bool | None = None,
        delayed_init: bool | None = None,
        consume_after_n_samples: int | None = None,
        sample_unit: SampleUnit | None = None,
    ) -> None:
        if shared:
            raise ArgumentError(
                "a replay buffer belongs to one process, got shared=True",
                hint="send data to its process, or exchange saved buffers by dumps() and loads()",
            )
        self._storage: Storage = build_part(storage, Storage, lambda: ListStorage(1000))
        if consume_after_n_samples is not None:
            if not (sampler is None or type(sampler) is RandomSampler):
                raise ArgumentError(
                    "consume_after_n_samples only supports the default RandomSampler, got "
                    f"{type(sampler).__name__}",
                    hint="remove sampler",
                )
            sampler = ConsumingSampler(consume_after_n_samples)
        self._sampler: Sampler = build_part(sampler, Sampler, RandomSampler)
        self._writer: Writer = build_part(writer, Writer, RoundRobinWriter)
        self._writer.register_storage(self._storage)
        if not (sample_unit is None or isinstance(sample_unit, SampleUnit)):
            raise ArgumentError(
                f"sample_unit must have a method expand, got {type(sample_unit).__name__}",
                hint="for example sample_unit=Sequence(length=8)",
            )
        self._sample_unit = sample_unit
        self._collate_fn = collate_fn
        self._pin_memory = pin_memory
        self._prefetcher = Prefetcher(0 if prefetch is None else prefetch)
        self._check_prefetch(self._sampler)
        batch_size = self._sampler.batch_size if batch_size is None else batch_size
        self._batch_size = None if batch_size is None else check_batch_size(batch_size)
        if batch_size is None and getattr(self._sampler, "drop_last", False):
            raise ArgumentError(
                "Samplers with drop_last=True must work with a predictable batch-size",
                hint="pass batch_size to the buffer",
            )
        ndim = self._storage.ndim
        self._dim_extend = ndim - 1 if dim_extend is None else dim_extend
        if not 0 <= self._dim_extend < ndim:
            raise ArgumentError(
                f"dim_extend={dim_extend} is out of range for a storage with {ndim} dims of steps",
                hint="the storage's ndim is the number of dims of the data that count steps",
            )
        self._lock = RLock()
        self._sampler.generator = generator
        self._sampler.attach_to(self._storage)
        transform = transform if transform_factory is None else transform_factory()
        self._transform = transform if type(transform) is Compose else Compose()
        self._program = ChainProgram(self._transform)
        self._transform.set_container(self)
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
    def writer(self) -> Writer:
        """Writer of the data."""
        return self._writer

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

    def _check_prefetch(self, sampler: Sampler) -> None:
        if self._prefetcher.ahead and not sampler.draws_ahead:
            raise ArgumentError(
                f"Prefetching is not supported by {type(sampler).__name__}", hint="remove prefetch"
            )

    def set_sampler(self, sampler: Sampler) -> None:
        """Replace the sampler."""
        new: Sampler = build_part(sampler, Sampler)
        self._check_prefetch(new)
        with self._locked_without_prefetch():
            new.generator = self._sampler.generator
            self._storage.detach(self._sampler)
            self._sampler = new
            new.attach_to(self._storage)

    def set_writer(self, writer: Writer) -> None:
        """Replace the writer."""
        new: Writer = build_part(writer, Writer)
        with self._locked_for_write():
            self._writer = new
            new.register_storage(self._storage)

    def set_rng(self, generator: torch.Generator | None) -> None:
        """Replace the random number generator."""
        with self._locked_without_prefetch():
            self._sampler.generator = generator

    def append_transform(self, transform: Stage, *, invert: bool = False) -> Self:
        """Append a transform, or each stage of a chain; see :meth:`insert_transform`."""
        stage = as_transform(transform)
        with self._locked_without_prefetch():
            self._transform.append(InvertedTransform(stage) if invert else stage)
        return self

    def insert_transform(self, index: int, transform: Stage, *, invert: bool = False) -> Self:
        """Insert a transform into the chain before an index.

        Args:
            index: Index; a negative one counts from the end.
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
            self._sampler.rewind(first.before)

    def chain_changed(self) -> None:
        self._program = ChainProgram(self._transform)
        self._discard_prefetched()

    def close(self) -> None:
        """Stop the prefetch thread."""
        self._prefetcher.close()

    # Writing

    def extend(self, data: object, *, update_priority: bool | None = None) -> Tensor:
        """Write steps; when the buffer is full, overwrite the oldest.

        Args:
            data: TensorDict or tensor ``[T, ...]`` with ``ndim`` dims that count steps, a
                tensorclass, nested dicts and tuples of tensors, or a list of steps.
            update_priority: Set priorities from the data, in a :class:`TensorDictReplayBuffer`.

        Returns:
            Position of each step, int64 ``[T]`` or ``[T * B, ndim]``; steps that a transform holds
            back until later ones are written have none.

        Raises:
            ArgumentError: Keys, shapes or dtypes differ from those of the stored data.
            ChainError: The writer does not accept the data.
            StorageError: The disk is full.
        """
        return cast(Tensor, self._write(data, several=True)[0])

    def add(self, data: object) -> int | Tensor | None:
        """Write one step: a TensorDict or tensor without a time dim, or any item of a list.

        Returns:
            Position of the step: an index, or ``[B, ndim]``; empty if a transform holds the step
            back until later ones are written, ``None`` if the writer leaves it out.
        """
        index: int | Tensor | None = self._write(data, several=False)[0]
        return index

    def _write(self, data: object, several: bool) -> tuple[Any, Any]:
        """Return the positions of the written steps, and the steps as they were written."""
        if several and isinstance(self._storage, TensorStorage) and isinstance(data, list) and data:
            data = collate(data)
        with self._locked_for_write():
            mapped = self._invert(data)
            if mapped is not data and 0 in mapped.batch_size:  # a transform holds it back
                return self._storage.row_positions(torch.zeros(0, dtype=torch.int64)), mapped
            if several:
                return self._writer.extend(to_time_first(mapped, self._dim_extend)), mapped
            return self._writer.add(mapped), mapped

    def _invert(self, data: object) -> Any:
        if isinstance(data, TensorDictBase) and self._transform.invertible:
            return self._transform.inv(data)
        return data

    def empty(self, empty_write_count: bool = True) -> None:
        """Remove all steps, and reset ``write_count`` if ``empty_write_count``."""
        with self._locked_without_prefetch():
            self._storage.empty(empty_write_count)
            self._sampler.reset()

    def update_priority(self, index: Index, priority: Tensor | float) -> None:
        """Set the priorities of steps, for a :class:`PrioritizedSampler`.

        Args:
            index: Positions of the steps, as in the ``index`` of a batch.
            priority: One number, or one per step; ``[B, T]`` as written with several dims.
        """
        priority = torch.as_tensor(priority)
        if priority.ndim > 1:
            priority = to_time_first(priority, self._dim_extend)
        with self._locked_for_write():
            self._sampler.update_priority(index, priority, storage=self._storage)

    def update_if_present(
        self,
        *,
        index: Index,
        generation: Tensor,
        patch: Mapping[NestedKey, Tensor],
        version_key: NestedKey | None = None,
        version: Tensor | int | None = None,
        require_newer: bool = False,
    ) -> ConditionalUpdate:
        """Replace entries of stored steps, except of those that were replaced or removed meanwhile.

        For values that are computed from a batch while other threads write, such as the states of
        a recurrent policy. The writer has to track generations:
        ``TensorDictRoundRobinWriter(track_generations=True)``. Nothing is written if an argument
        is invalid.

        Args:
            index: Positions of the steps, as in the ``index`` of a batch.
            generation: Their generations, as in the ``index_generation`` of a batch, or as
                returned by ``writer.generations_of(index)``, int64 ``[N]``.
            patch: New values by key, ``[N, ...]``; ``[B, T, ...]`` as written with several dims.
            version_key: Entry with the version of each step, int64. Steps with a newer version
                are not updated; the others get ``version``.
            version: Version of the patch: one, or one per step.
            require_newer: Do not update steps of the same version either.

        Returns:
            Which steps were updated.

        Raises:
            KeyNotFoundError: The data has no such entry.
            ArgumentError: A shape or dtype does not fit.
            ChainError: The writer tracks no generations, or the storage is a list.

        Example:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> from tdx import LazyTensorStorage, TensorDictReplayBuffer
            >>> from tdx import TensorDictRoundRobinWriter
            >>> buffer = TensorDictReplayBuffer(
            ...     storage=LazyTensorStorage(3),
            ...     writer=TensorDictRoundRobinWriter(track_generations=True),
            ... )
            >>> index = buffer.extend(TensorDict(value=torch.zeros(3), batch_size=[3]))
            >>> generation = buffer.writer.generations_of(index)
            >>> _ = buffer.extend(TensorDict(value=torch.ones(1), batch_size=[1]))
            >>> update = buffer.update_if_present(
            ...     index=index, generation=generation, patch={"value": torch.full((3,), 7.0)}
            ... )
            >>> update.updated, buffer[:]["value"]
            (tensor([False,  True,  True]), tensor([1., 7., 7.]))
        """
        with self._locked_for_write():
            return update_if_present(
                self._storage,
                self._writer.generations,
                index,
                generation,
                patch,
                self._dim_extend,
                version_key,
                version,
                require_newer,
            )

    def set_(self, key: NestedKey, value: Tensor) -> Self:
        """Replace an entry of all stored steps in place."""
        return self.set_at_(key, value, slice(None))

    def set_at_(self, key: NestedKey, value: Tensor, index: Index) -> Self:
        """Replace an entry of stored steps at an index in place."""
        with self._locked_for_write():
            to_written_order(self._storage[:], self._dim_extend).get(key)[index] = value
            self._storage.version += 1
        return self

    def update_(self, data: TensorDictBase) -> Self:
        """Replace the entries of all stored steps that the data has in place."""
        for key, value in data.items(True, True):
            self.set_(key, value)
        return self

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
            ArgumentError: No batch size is given, or the sampler does not support it.
            ChainError: The buffer is empty, or no episode is long enough.
        """
        batch = self._next(self._size(batch_size))
        return (batch.data, batch.info) if return_info else batch.data

    def _size(self, batch_size: int | None) -> int:
        if batch_size is not None:
            return check_batch_size(batch_size)
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
            require_steps(storage)
            before = sampler.position() if self._prefetcher.ahead else {}
            steps, notes = sampler.draw(storage, size)
            if self._sample_unit is None:
                data = self._collate(storage.gather(steps, sampler.dim_name), sampler.dim_name)
                marks = sampler.mark(data, notes)
            else:
                steps, marks = self._expand(self._sample_unit, steps, notes)
                data = self._collate(storage.gather(steps, "batch"), "batch")
            index = storage.positions(steps)
            info = {"index": index[0] if len(index) == 1 else index, **marks}
            if self._writer.generations is not None:
                info["index_generation"] = self._writer.generations.of(steps).to(steps.device)
            data = self._map(self._with_info(data, info), self._info_keys(info))
            return Batch(data, info, sampler.ran_out, before)

    def _expand(self, unit: SampleUnit, steps: Tensor, notes: StateDict) -> tuple[Tensor, Info]:
        """Return the steps of the batch for those that the sampler has drawn, and its entries."""
        storage, sampler = self._storage, self._sampler
        if sampler.dim_name == "time":
            raise ArgumentError(
                f"sample_unit expands single steps, but {type(sampler).__name__} draws sequences",
                hint="use a RandomSampler or a PrioritizedSampler, or remove sample_unit",
            )
        drawn = storage.positions(steps)
        info = sampler.describe(storage, steps, notes)
        index, entries = unit.expand(drawn[0] if len(drawn) == 1 else drawn, info, storage)
        return on_device_of(storage, storage.step_numbers(index)), entries

    def _collate(self, data: object, name: str) -> Any:
        if self._collate_fn is not None:
            return self._collate_fn(data)
        return self._storage.collate(data, name)

    def _with_info(self, data: object, info: Info) -> Any:
        return data

    def _info_keys(self, info: Info) -> Collection[str]:
        """Return the root entries that :meth:`_with_info` wrote."""
        return ()

    def _map(self, data: Any, kept_keys: Collection[str] = ()) -> Any:
        """Run the transforms on a batch ``[N, ...]``.

        They must not drop the root entries ``kept_keys``, such as the positions of the steps. A
        transform that changes the batch size may.
        """
        kept = {key: read(data, key) for key in kept_keys}
        size = data.batch_size if kept else None
        data = self._program(data)
        for key, value in kept.items():
            if value is not None and data.batch_size == size and read(data, key) is None:
                data.set(key, value)
        return data.pin_memory() if self._pin_memory else data

    def __iter__(self) -> Iterator[Any]:
        size = self._size(None)
        while len(self):
            batch = self._next(size)
            yield batch.data
            if batch.ended:
                return

    def stats(self) -> dict[str, int | float | bool]:
        """Return figures to log: how many steps are stored, and how many rows were written.

        Example:
            >>> import torch
            >>> from tdx import LazyTensorStorage, ReplayBuffer
            >>> buffer = ReplayBuffer(storage=LazyTensorStorage(4))
            >>> _ = buffer.extend(torch.arange(6))
            >>> stats = buffer.stats()
            >>> stats["size"], stats["capacity"], stats["utilization"], stats["write_count"]
            (4, 4, 1.0, 6)
        """
        size, capacity = len(self), self._storage.max_size
        return {
            "size": size,
            "capacity": capacity,
            "utilization": size / capacity,
            "write_count": self.write_count,
            "prefetch_queue_size": self._prefetcher.pending,
            "initialized": True,
        }

    def __len__(self) -> int:
        """Return the number of steps that can be sampled."""
        return self._sampler.available(self._storage)

    def __getitem__(self, index: Index) -> Any:
        """Return stored data, in the dim order in which it was written, mapped by the chain."""
        with self._lock:
            data = self._read(index)
            if isinstance(data, list) and isinstance(self._storage, ListStorage):
                data = self._collate(data, "batch")
            if isinstance(data, TensorDictBase) and len(self._transform):
                return self._map(data.clone(recurse=False))
            return data

    def _read(self, index: Index) -> Any:
        """Return stored data at an index into written data, or at a key."""
        storage, dim = self._storage, self._dim_extend
        if not dim:
            return storage[:][index] if isinstance(index, str) else storage[index]
        data = to_written_order(storage[:], dim)
        if hasattr(data, "permute") or isinstance(index, str):
            return data[index]
        return tree_map(lambda leaf: leaf[index], data)

    def __setitem__(self, index: Index, data: object) -> None:
        """Replace stored data, after the inverses of the transforms mapped the new data."""
        with self._locked_for_write():
            inverted = self._invert(data)
            if isinstance(self._storage, TensorStorage) and self._storage.ndim > 1:
                self._storage.assign(index, inverted, self._dim_extend)
            else:
                self._storage[index] = inverted

    # Files

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Save the data and the positions of writer and sampler, without pickle.

        An earlier save in the folder is replaced when the new one is complete.

        Raises:
            ArgumentError: A list contains other items than tensors and TensorDicts of one shape.
            StorageError: The disk is full, or the folder is not writable.
        """
        with self._locked_without_prefetch():
            save(FilePath(path), self._storage.snapshot(self._sampler.state()))

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Load what :meth:`dumps` saved, and replace the stored data.

        No code from the folder is run. If loading fails, the buffer is not changed.

        Raises:
            ArgumentError: The storage is too small for the data, or was created for other data.
            StorageError: The folder has no saved buffer, or a file of it is damaged.
        """
        saved = load(FilePath(path))
        with self._locked_without_prefetch():
            storage, sampler = self._storage, self._sampler
            before, state = sampler.state(), saved.sampler
            if moves_oldest_first(saved, storage.max_size):
                width = torch.Size(saved.batch).numel()
                for name in (PRIORITIES, LEFT):
                    if name in state:
                        numbers = torch.as_tensor(state[name])[: saved.rows * width]
                        moved = numbers.roll(-saved.cursor * width)
                        state = state | {name: moved, "max_index": None}
            sampler.reset()
            try:
                sampler.restore(state)
                storage.restore(saved)
            except Exception:
                sampler.restore(before)
                raise
            sampler.attach_to(storage)
            if self._writer.generations is not None:
                self._writer.generations.mark_loaded(len(storage))

    save = dump = dumps
    load = loads

    def state_dict(self) -> StateDict:
        """Return a copy of the data and the state of every part."""
        with self._locked_without_prefetch():
            generator = self._sampler.generator
            return {
                "_storage": self._storage.state_dict(),
                "_sampler": self._sampler.state_dict(),
                "_writer": self._writer.state_dict(),
                "_transforms": self._transform.state_dict(),
                "_rng": None if generator is None else generator.get_state(),
                "_batch_size": self._batch_size,
            }

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Continue from a copy of what :meth:`state_dict` returned.

        Raises:
            ArgumentError: The storage is too small for the data, or was created for other data.
            StorageError: The state of a part is not valid.
        """
        with self._locked_without_prefetch():
            sampler = self._sampler
            self._storage.load_state_dict(state_dict["_storage"])
            sampler.reset()
            sampler.load_state_dict(state_dict["_sampler"])
            sampler.attach_to(self._storage)
            self._writer.load_state_dict(state_dict["_writer"])
            self._transform.load_state_dict(state_dict["_transforms"])
            if state_dict.get("_rng") is not None:
                if sampler.generator is None:
                    sampler.generator = torch.Generator()
                sampler.generator.set_state(state_dict["_rng"])
            self._batch_size = state_dict["_batch_size"]

    def __getstate__(self) -> StateDict:
        """Return the parts, without threads, locks and prefetched batches."""
        with self._locked_without_prefetch():
            parts = {"_lock": None, "_prefetcher": self._prefetcher.ahead, "_program": None}
            return self.__dict__ | parts

    def __setstate__(self, state: StateDict) -> None:
        self.__dict__.update(state)
        self._lock = RLock()
        self._prefetcher = Prefetcher(state["_prefetcher"])
        self._program = ChainProgram(self._transform)
        self._transform.set_container(self)
        self._sampler.attach_to(self._storage)
        self._writer.attach_to(self._storage)

    def __repr__(self) -> str:
        chain = f", transform={self._transform}" if len(self._transform) else ""
        parts = f"storage={self._storage}, sampler={self._sampler}, batch_size={self._batch_size}"
        return f"{type(self).__name__}({parts}{chain})"
