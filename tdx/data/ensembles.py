"""Ensembles of the parts of several replay buffers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import Any, NoReturn

import torch
from torch import Tensor

from tdx.core.transforms import Transform
from tdx.data.samplers import Sampler
from tdx.data.storage import Storage
from tdx.data.writers import Writer
from tdx.foundation.errors import ArgumentError, ChainError


def resolve_members(index: Any, count: int) -> int | list[int]:
    """Return the member, or the members, that an index selects.

    Args:
        index: Number, slice, ellipsis, range, list, array, or int64 tensor ``[N]``.
        count: Number of members.

    Raises:
        IndexError: The index has another type or shape, or exceeds the number of members.
    """
    if index is Ellipsis:
        index = slice(None)
    if isinstance(index, slice):
        return list(range(count))[index]
    try:
        found = torch.as_tensor(list(index) if isinstance(index, range) else index)
    except (TypeError, ValueError, RuntimeError):
        found = torch.zeros(())
    if found.ndim > 1 or found.is_floating_point() or found.dtype is torch.bool:
        raise IndexError(f"cannot select members of an ensemble by {index!r}")
    members = [range(count)[i] for i in found.reshape(-1).tolist()]
    return members if found.ndim else members[0]


def _refuse_writes(*args: Any, **kwargs: Any) -> NoReturn:
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
        super().__init__(max(sum(each.max_size for each in storages), 1))
        if transforms is not None and len(transforms) != len(storages):
            raise ArgumentError(
                f"there are {len(storages)} storages and {len(transforms)} transforms",
                hint="pass one transform for each storage, or None",
            )
        self._storages = storages
        self._transforms = None if transforms is None else list(transforms)

    def __len__(self) -> int:
        """Return the number of storages."""
        return len(self._storages)

    def __getitem__(self, index: Any) -> Any:
        """Return storages, or with a second index what they store at it."""
        inner = index[1:] if isinstance(index, tuple) else ()
        members = resolve_members(index[0] if isinstance(index, tuple) else index, len(self))
        if isinstance(members, int):
            return self._storages[members][inner] if inner else self._storages[members]
        if inner:
            return [self._storages[member][inner] for member in members]
        transforms = self._transforms and [self._transforms[member] for member in members]
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

    def state_dict(self) -> dict[str, Any]:
        return {str(i): storage.state_dict() for i, storage in enumerate(self._storages)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
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
        self.p = None if p is None else _as_weights(p, len(samplers))
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

    def __getitem__(self, index: Any) -> Any:
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

    def state(self) -> dict[str, Any]:
        return {str(i): sampler.state() for i, sampler in enumerate(self._samplers)}

    def restore(self, state: dict[str, Any]) -> None:
        for i, sampler in enumerate(self._samplers):
            sampler.restore(state[str(i)])

    def position(self) -> dict[str, Any]:
        return {str(i): sampler.position() for i, sampler in enumerate(self._samplers)}

    def rewind(self, position: dict[str, Any]) -> None:
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

    def __getitem__(self, index: Any) -> Any:
        """Return one writer, or an ensemble of some."""
        members = resolve_members(index, len(self))
        if isinstance(members, int):
            return self._writers[members]
        return WriterEnsemble(*(self._writers[i] for i in members))

    def state_dict(self) -> dict[str, Any]:
        return {str(i): writer.state_dict() for i, writer in enumerate(self._writers)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for i, writer in enumerate(self._writers):
            writer.load_state_dict(state_dict[str(i)])

    def __repr__(self) -> str:
        return f"WriterEnsemble({', '.join(map(repr, self._writers))})"


def _as_weights(p: Sequence[float] | Tensor, count: int) -> Tensor:
    weights = torch.as_tensor(p, dtype=torch.float32)
    if weights.shape != (count,) or bool((weights < 0).any()) or not bool(weights.sum() > 0):
        raise ArgumentError(
            f"p must be {count} weights of at least 0, got {weights.tolist()}",
            hint="pass one weight for each buffer",
        )
    return weights / weights.sum()
