"""Replay buffers that sample from several replay buffers, and ensembles of their parts."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path as FilePath
from typing import Any, NoReturn, TypeVar

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from tdx.core.transforms import Compose, Transform
from tdx.data.buffer import Batch, ChainProgram, ReplayBuffer, Stage
from tdx.data.layout import Index, Info, StateDict
from tdx.data.samplers import Sampler
from tdx.data.storage import Storage, collate
from tdx.data.writers import Writer
from tdx.foundation.errors import ArgumentError, ChainError


def resolve_members(index: Index, count: int) -> int | list[int]:
    """Return the member, or the members, that an index selects.

    Raises:
        IndexError: The index has another type or shape, or exceeds the number of members.
    """
    if index is Ellipsis:
        index = slice(None)
    if isinstance(index, slice):
        return list(range(count))[index]
    try:
        numbers = torch.as_tensor(list(index) if isinstance(index, range) else index)
    except (TypeError, ValueError, RuntimeError):
        numbers = torch.zeros(())
    if numbers.ndim > 1 or numbers.is_floating_point() or numbers.dtype is torch.bool:
        raise IndexError(f"cannot select members of an ensemble by {index!r}")
    members = [range(count)[i] for i in numbers.reshape(-1).tolist()]
    return members if numbers.ndim else members[0]


def _refuse_writes(*args: object, **kwargs: object) -> NoReturn:
    raise ChainError(
        "an ensemble cannot be written to", hint="write to a member: ensemble[0].extend(data)"
    )


class StorageEnsemble(Storage):
    """The storages of several replay buffers; cannot be written to.

    Args:
        *storages: Storages.
        transforms: Transform of each storage, or ``None``.

    Raises:
        ArgumentError: The number of transforms differs from that of the storages.

    Example:
        >>> from tdx import ListStorage, StorageEnsemble
        >>> storages = StorageEnsemble(ListStorage(3), ListStorage(4))
        >>> storages[1]
        ListStorage(len=0, max_size=4)
    """

    def __init__(
        self, *storages: Storage, transforms: Sequence[Transform | None] | None = None
    ) -> None:
        super().__init__(max(sum(storage.max_size for storage in storages), 1))
        if transforms is not None and len(transforms) != len(storages):
            raise ArgumentError(
                f"there are {len(storages)} storages and {len(transforms)} transforms",
                hint="pass one transform for each storage, or None",
            )
        self._storages = storages
        self.transforms = None if transforms is None else list(transforms)
        """Transform of each storage, if given."""

    def __len__(self) -> int:
        """Return the number of storages."""
        return len(self._storages)

    def __getitem__(self, index: Index) -> Any:
        """Return storages, or with a second index what they store at it."""
        inner = index[1:] if isinstance(index, tuple) else ()
        members = resolve_members(index[0] if isinstance(index, tuple) else index, len(self))
        if isinstance(members, int):
            return self._storages[members][inner] if inner else self._storages[members]
        if inner:
            return [self._storages[member][inner] for member in members]
        transforms = self.transforms and [self.transforms[member] for member in members]
        return StorageEnsemble(*(self._storages[i] for i in members), transforms=transforms)

    def get(self, index: Any) -> list[tuple[int, Any]]:
        """Return stored data with the number of its member.

        Args:
            index: TensorDict of ``buffer_ids`` ``[n]`` and ``index`` ``[n, N]``, as drawn by a
                :class:`SamplerEnsemble`.
        """
        ids, rows = index.get("buffer_ids").tolist(), index.get("index")
        return [(i, self._storages[i].get(row)) for i, row in zip(ids, rows, strict=True)]

    def gather(self, steps: Tensor, name: str | None = None) -> Any:
        """Raise an error: steps of an ensemble have no common numbers."""
        _refuse_writes()

    extend = append = set = __setitem__ = _set = _prepare = _write_rows = _refuse_writes
    load_saved = _refuse_writes

    def as_tensors(self) -> NoReturn:
        """Raise an error: each storage is saved on its own, by :meth:`dumps`."""
        raise ChainError("an ensemble has one storage per buffer", hint="save it by dumps()")

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Save each storage in a folder of its number."""
        for i, storage in enumerate(self._storages):
            storage.dumps(FilePath(path) / str(i))

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Load what :meth:`dumps` saved."""
        for i, storage in enumerate(self._storages):
            storage.loads(FilePath(path) / str(i))

    def empty(self, empty_write_count: bool = True) -> None:
        """Remove all steps of all storages."""
        for storage in self._storages:
            storage.empty(empty_write_count)

    def state_dict(self) -> StateDict:
        return {str(i): storage.state_dict() for i, storage in enumerate(self._storages)}

    def load_state_dict(self, state_dict: StateDict) -> None:
        for i, storage in enumerate(self._storages):
            storage.load_state_dict(state_dict[str(i)])

    def __repr__(self) -> str:
        return f"StorageEnsemble({', '.join(map(repr, self._storages))})"


class SamplerEnsemble(Sampler):
    """Chooses buffers, and draws the same number of steps from each.

    Args:
        *samplers: Sampler of each buffer.
        p: Weight of each buffer. ``None``: the same for all.
        sample_from_all: Draw from every buffer.
        num_buffer_sampled: Number of buffers of a batch, drawn with replacement. ``None``: as
            many as there are.

    Raises:
        ArgumentError: Both ``p`` and ``sample_from_all`` are given, or the weights are not valid.
    """

    def __init__(
        self,
        *samplers: Sampler,
        p: Sequence[float] | Tensor | None = None,
        sample_from_all: bool = False,
        num_buffer_sampled: int | None = None,
    ) -> None:
        if sample_from_all and p is not None:
            raise ArgumentError(
                "p and sample_from_all=True are both given", hint="pass one of the two"
            )
        self._samplers = samplers
        self._generator: torch.Generator | None = None
        self.p: Tensor | None = None
        if p is not None:
            weights, count = torch.as_tensor(p, dtype=torch.float32), len(samplers)
            is_valid = weights.shape == (count,) and bool((weights >= 0).all())
            if not is_valid or not bool(weights.sum() > 0):
                raise ArgumentError(
                    f"p must be {count} weights of at least 0, got {weights.tolist()}",
                    hint="pass one weight for each buffer",
                )
            self.p = weights / weights.sum()
        self.sample_from_all = sample_from_all
        chosen = num_buffer_sampled is None or sample_from_all
        self.num_buffer_sampled: int = len(samplers) if chosen else num_buffer_sampled  # type: ignore[assignment]

    @property
    def generator(self) -> torch.Generator | None:
        """Random number generator of the choice and, if it is set, of all samplers."""
        return self._generator

    @generator.setter
    def generator(self, generator: torch.Generator | None) -> None:
        self._generator = generator
        if generator is not None:
            for sampler in self._samplers:
                sampler.generator = generator

    def choose(self) -> list[int]:
        """Choose the buffers of a batch."""
        count = self.num_buffer_sampled
        if self.sample_from_all:
            return list(range(count))
        if self.p is None:
            return self._integers(len(self), count).tolist()
        return torch.multinomial(self.p, count, True, generator=self.generator).tolist()

    def split(self, batch_size: int) -> int:
        """Return the number of steps of each buffer in a batch.

        Raises:
            ArgumentError: The batch size is not a multiple of the number of buffers.
        """
        if batch_size % self.num_buffer_sampled:
            raise ArgumentError(
                f"the batch size must be divisible by num_buffer_sampled, got {batch_size} and "
                f"{self.num_buffer_sampled}",
                hint="the same number of steps is drawn from each buffer",
            )
        return batch_size // self.num_buffer_sampled

    def __len__(self) -> int:
        return len(self._samplers)

    def __getitem__(self, index: Index) -> Any:
        """Return one sampler, or an ensemble of some."""
        members = resolve_members(index, len(self))
        if isinstance(members, int):
            return self._samplers[members]
        return SamplerEnsemble(
            *(self._samplers[i] for i in members),
            p=None if self.p is None else self.p[members],
            sample_from_all=self.sample_from_all,
            num_buffer_sampled=self.num_buffer_sampled,
        )

    def reset(self) -> None:
        for sampler in self._samplers:
            sampler.reset()

    def state(self) -> StateDict:
        return {str(i): sampler.state() for i, sampler in enumerate(self._samplers)}

    def restore(self, state: StateDict) -> None:
        for i, sampler in enumerate(self._samplers):
            sampler.restore(state[str(i)])

    def position(self) -> StateDict:
        return {str(i): sampler.position() for i, sampler in enumerate(self._samplers)}

    def rewind(self, position: StateDict) -> None:
        for i, sampler in enumerate(self._samplers):
            sampler.rewind(position[str(i)])

    def __repr__(self) -> str:
        return f"SamplerEnsemble({', '.join(map(repr, self._samplers))})"


class WriterEnsemble(Writer):
    """The writers of several replay buffers; cannot write.

    Args:
        *writers: Writers.
    """

    def __init__(self, *writers: Writer) -> None:
        super().__init__()
        self._writers = writers

    add = extend = _refuse_writes

    def register_storage(self, storage: Storage) -> None:
        """Do nothing: each writer writes to its own storage."""

    def __len__(self) -> int:
        return len(self._writers)

    def __getitem__(self, index: Index) -> Any:
        """Return one writer, or an ensemble of some."""
        members = resolve_members(index, len(self))
        if isinstance(members, int):
            return self._writers[members]
        return WriterEnsemble(*(self._writers[i] for i in members))

    def state_dict(self) -> StateDict:
        return {str(i): writer.state_dict() for i, writer in enumerate(self._writers)}

    def load_state_dict(self, state_dict: StateDict) -> None:
        for i, writer in enumerate(self._writers):
            writer.load_state_dict(state_dict[str(i)])

    def __repr__(self) -> str:
        return f"WriterEnsemble({', '.join(map(repr, self._writers))})"


Collate = Callable[[Any], object]
Buffer = TypeVar("Buffer", bound=ReplayBuffer)


class ReplayBufferEnsemble(ReplayBuffer):
    """Samples from several replay buffers at once.

    A batch is a stack of batches of some of the buffers, ``[num_buffer_sampled, N, ...]``, each
    mapped by the transforms of its buffer. Batches of TensorDicts contain ``index``, with the
    positions ``index`` and the number of the buffer, ``buffer_ids``. Write to the buffers
    themselves: ``ensemble[0].extend(data)``.

    Args:
        *buffers: Replay buffers.
        storages: Their storages and transforms, instead of buffers.
        samplers: Their samplers, instead of buffers.
        writers: Their writers, instead of buffers.
        transform: Transform of the stacked batches; see :class:`ReplayBuffer`.
        batch_size: Default batch size: a multiple of ``num_buffer_sampled``.
        collate_fn: Function that stacks the batches of the buffers.
        collate_fns: Function for each buffer that turns gathered items into a batch.
        p: Weight of each buffer. ``None``: the same for all.
        sample_from_all: Draw from every buffer.
        num_buffer_sampled: Number of buffers of a batch, drawn with replacement. ``None``: as
            many as there are.
        generator: Random number generator; also of the buffers, if given.
        **kwargs: Other arguments of :class:`ReplayBuffer`.

    Raises:
        ArgumentError: Both buffers and parts are given or neither is, their numbers differ, or
            the weights are not valid.

    Example:
        >>> import torch
        >>> from tdx import LazyTensorStorage, ReplayBuffer, ReplayBufferEnsemble
        >>> buffers = [ReplayBuffer(storage=LazyTensorStorage(9)) for _ in range(2)]
        >>> ensemble = ReplayBufferEnsemble(*buffers, p=[0.0, 1.0], batch_size=6)
        >>> _ = ensemble[0].extend(torch.zeros(9)), ensemble[1].extend(torch.ones(9))
        >>> ensemble.sample()
        tensor([[1., 1., 1.],
                [1., 1., 1.]])
    """

    _storage: StorageEnsemble
    _sampler: SamplerEnsemble
    _writer: WriterEnsemble

    def __init__(
        self,
        *buffers: ReplayBuffer,
        storages: StorageEnsemble | None = None,
        samplers: SamplerEnsemble | None = None,
        writers: WriterEnsemble | None = None,
        transform: Stage | None = None,
        batch_size: int | None = None,
        collate_fn: Collate | None = None,
        collate_fns: Sequence[Collate | None] | None = None,
        p: Sequence[float] | Tensor | None = None,
        sample_from_all: bool = False,
        num_buffer_sampled: int | None = None,
        generator: torch.Generator | None = None,
        **kwargs: Any,
    ) -> None:
        if buffers:
            if any(part is not None for part in (storages, samplers, writers)):
                raise ArgumentError("both buffers and parts are given", hint="pass one of the two")
            storages = StorageEnsemble(
                *(buffer.storage for buffer in buffers),
                transforms=[buffer.transform for buffer in buffers],
            )
            samplers = SamplerEnsemble(
                *(buffer.sampler for buffer in buffers),
                p=p,
                sample_from_all=sample_from_all,
                num_buffer_sampled=num_buffer_sampled,
            )
            writers = WriterEnsemble(*(buffer.writer for buffer in buffers))
        if storages is None or samplers is None or writers is None:
            raise ArgumentError(
                "the buffers are missing", hint="pass buffers, or storages, samplers and writers"
            )
        if kwargs.get("sample_unit") is not None:
            raise ArgumentError("pass sample_unit to the buffers of the ensemble")
        self._members = buffers or _members(storages, samplers, writers)
        if collate_fns is not None:
            if len(collate_fns) != len(self._members):
                raise ArgumentError(
                    f"there are {len(self._members)} buffers and {len(collate_fns)} collate_fns",
                    hint="pass one for each buffer",
                )
            self._members = tuple(
                _twin(member, _collate_fn=function)
                for member, function in zip(self._members, collate_fns, strict=True)
            )
        super().__init__(
            storage=storages,
            sampler=samplers,
            writer=writers,
            transform=transform,
            batch_size=batch_size,
            collate_fn=collate_fn,
            generator=generator,
            **kwargs,
        )

    @property
    def storage(self) -> StorageEnsemble:
        """Storages of the buffers."""
        return self._storage

    @property
    def sampler(self) -> SamplerEnsemble:
        """Samplers of the buffers."""
        return self._sampler

    @property
    def writer(self) -> WriterEnsemble:
        """Writers of the buffers."""
        return self._writer

    @property
    def write_count(self) -> int:
        """Number of rows ever written to all buffers."""
        return sum(member.write_count for member in self._members)

    def __len__(self) -> int:
        """Return the number of buffers."""
        return len(self._members)

    def __getitem__(self, index: Index) -> Any:
        """Return a buffer or an ensemble of some; with a second index, what they store at it.

        Args:
            index: Number, slice, list, array or int64 tensor of buffers; or a pair of such an
                index and an index into the data.
        """
        inner = index[1] if isinstance(index, tuple) else None
        members = resolve_members(index[0] if isinstance(index, tuple) else index, len(self))
        if isinstance(members, int):
            return self._members[members] if inner is None else self._members[members][inner]
        if inner is not None:
            return self._stack([self._members[i][inner] for i in members])
        if members == list(range(len(self))):
            return self
        return _twin(
            self,
            _members=tuple(self._members[i] for i in members),
            _storage=self._storage[members],
            _sampler=self._sampler[members],
            _writer=self._writer[members],
        )

    def __setitem__(self, index: Index, data: object) -> None:
        self.extend(data)

    # Writing and reading

    def extend(self, data: object, *, update_priority: bool | None = None) -> Tensor:
        """Raise an error: write to one of the buffers.

        Raises:
            ChainError: Always.
        """
        return self._storage.extend(data)

    def add(self, data: object) -> int | Tensor | None:
        """Raise an error, as :meth:`extend`."""
        return self._storage.extend(data)

    def empty(self, empty_write_count: bool = True) -> None:
        """Remove all steps of all buffers."""
        for member in self._members:
            member.empty(empty_write_count)
        self._discard_prefetched()

    def update_priority(self, index: Any, priority: Tensor | float) -> None:
        """Set the priorities of steps.

        Args:
            index: The ``index`` of a batch: a TensorDict of ``index`` and ``buffer_ids``.
            priority: One number, or one per step, as the shape of ``buffer_ids``.
        """
        ids, rows = index.get("buffer_ids"), index.get("index")
        if ids.ndim == 1 and rows.ndim > 1:
            ids = ids.unsqueeze(-1).expand(rows.shape[:2])
        priorities = torch.as_tensor(priority).expand(ids.shape)
        for i, member in enumerate(self._members):
            mask = ids == i
            if bool(mask.any()):
                member.update_priority(rows[mask], priorities[mask])

    def _prepare(self, size: int) -> Batch:
        with self._lock:
            count = self._sampler.split(size)
            before = self._sampler.position() if self._prefetcher.ahead else {}
            chosen = self._sampler.choose()
            batches = [_draw(self._members[i], count) for i in chosen]
            for member, batch in zip(chosen, batches, strict=True):
                if isinstance(batch.data, TensorDictBase):
                    _mark_members(batch.data, batch.info["index"], member)
            data = self._stack([batch.data for batch in batches])
            data = self._map(data, ("index",) if isinstance(data, TensorDictBase) else ())
            index = [torch.atleast_1d(_as_rows(batch.info["index"])) for batch in batches]
            info: Info = {
                "index": TensorDict(index=collate(index), buffer_ids=torch.tensor(chosen))
                if len({rows.shape for rows in index}) == 1
                else [TensorDict(index=rows) for rows in index],
                "buffer_ids": torch.tensor(chosen),
            }
            return Batch(data, info, any(batch.ended for batch in batches), before)

    def _stack(self, batches: list[object]) -> Any:
        return (self._collate_fn or collate)(batches)

    # Files

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Save each buffer in a folder of its number; see :meth:`ReplayBuffer.dumps`."""
        for i, member in enumerate(self._members):
            member.dumps(FilePath(path) / str(i))

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Load what :meth:`dumps` saved; see :meth:`ReplayBuffer.loads`."""
        for i, member in enumerate(self._members):
            member.loads(FilePath(path) / str(i))
        self._discard_prefetched()

    def state_dict(self) -> StateDict:
        """Return the state of each buffer, by its number, and of the chain."""
        state: StateDict = {str(i): member.state_dict() for i, member in enumerate(self._members)}
        return state | {"_transforms": self._transform.state_dict()}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Continue from a copy of what :meth:`state_dict` returned."""
        for i, member in enumerate(self._members):
            member.load_state_dict(state_dict[str(i)])
        self._transform.load_state_dict(state_dict["_transforms"])
        self._discard_prefetched()


def _members(
    storages: StorageEnsemble, samplers: SamplerEnsemble, writers: WriterEnsemble
) -> tuple[ReplayBuffer, ...]:
    """Return a buffer of each storage, sampler and writer."""
    if not len(storages) == len(samplers) == len(writers):
        raise ArgumentError(
            f"there are {len(storages)} storages, {len(samplers)} samplers and {len(writers)} "
            "writers",
            hint="pass one of each for each buffer",
        )
    members = []
    for i, transform in enumerate(storages.transforms or [None] * len(storages)):
        writer = writers[i]
        member = ReplayBuffer(storage=storages[i], sampler=samplers[i], writer=writer)
        if isinstance(transform, Compose):
            # The chain of another buffer is shared with it.
            member = _twin(member, _transform=transform, _program=ChainProgram(transform))
        elif transform is not None:
            member.append_transform(transform)
        members.append(member)
    return tuple(members)


def _twin(buffer: Buffer, **parts: object) -> Buffer:
    """Return a buffer of the same parts, chain and lock, except for the given attributes."""
    twin = object.__new__(type(buffer))
    twin.__dict__.update(buffer.__dict__, **parts)
    return twin


def _draw(member: ReplayBuffer, count: int) -> Batch:
    """Return a batch of ``count`` steps, of two passes if one ends."""
    batch = member._prepare(count)
    drawn = len(_as_rows(batch.info["index"]))
    if not batch.ended or drawn >= count or not hasattr(batch.data, "shape"):
        return batch
    rest = _draw(member, count - drawn)
    index = torch.cat([_as_rows(part.info["index"]) for part in (batch, rest)])
    return Batch(torch.cat([batch.data, rest.data]), {"index": index}, True, batch.before)


def _as_rows(index: Tensor | tuple[Tensor, ...]) -> Tensor:
    return torch.stack(index, -1) if isinstance(index, tuple) else index


def _mark_members(data: TensorDictBase, index: Tensor | tuple[Tensor, ...], member: int) -> None:
    """Write the positions of steps ``[N, ...]`` and their buffer into the entry ``index``."""
    rows = _as_rows(index)
    shaped = rows.reshape(len(rows), *[1] * (data.ndim - 1), *rows.shape[1:])
    entry = {
        "index": shaped.expand(*data.batch_size, *rows.shape[1:]),
        "buffer_ids": torch.full(data.batch_size, member, device=data.device),
    }
    data.set("index", TensorDict(entry, data.batch_size, device=data.device))
