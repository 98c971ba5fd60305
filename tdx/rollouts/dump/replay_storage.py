"""Storage of a replay buffer that reads the steps of a dump."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from tdx.data.storage import Storage
from tdx.foundation.errors import ArgumentError
from tdx.foundation.torch_internals import unravel_positions
from tdx.rollouts.dump.reading import Dump, open_dump


class DumpStorage(Storage):
    """The steps of a dump as the full, read-only storage of a replay buffer.

    A batch reads its own steps from the disk, so that a dump can be larger than the memory.

    Args:
        dump: The dump, or its folder. It may have shards.

    Raises:
        StorageError: The dump cannot be read.

    Example:
        >>> import tempfile
        >>> from tdx import DumpStorage, ImmutableDatasetWriter, Pipeline, ReplayBuffer, record_dump
        >>> folder = tempfile.mkdtemp() + "/pendulum"
        >>> _ = record_dump(Pipeline.of("Pendulum-v1"), folder, steps=250, seed=0)
        >>> buffer = ReplayBuffer(
        ...     storage=DumpStorage(folder), writer=ImmutableDatasetWriter(), batch_size=32
        ... )
        >>> len(buffer), buffer.sample().shape
        (250, torch.Size([32]))
    """

    def __init__(self, dump: Dump | str | Path) -> None:
        self._source = dump if isinstance(dump, Dump) else open_dump(dump)
        self._batch = torch.Size(self._source.manifest.batch_size)
        steps = self._source.manifest.steps
        super().__init__(steps * self.width, ndim=1 + len(self._batch))
        self.rows = self.write_count = steps

    @property
    def width(self) -> int:
        return math.prod(self._batch)

    def positions(self, steps: Tensor) -> tuple[Tensor, ...]:
        if not self._batch:
            return (steps,)
        return unravel_positions(steps, (self.max_rows, *self._batch))

    def gather(self, steps: Tensor, name: str | None = None) -> Any:
        time, *rows = self.positions(steps)
        wanted, place = time.unique(return_inverse=True)
        found = self._source.data[..., wanted][(*rows, place)]
        batch = found.contiguous()
        if name is not None:
            batch.names = [name, *[None] * (batch.ndim - 1)]
        return batch

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, tuple):
            time, *rows = index
            return self._source.data[(*rows, *[slice(None)] * (len(self._batch) - len(rows)), time)]
        found = self._source.data[..., index]
        dims = len(self._batch)
        if not dims or found.ndim == dims:
            return found
        return found.permute(dims, *range(dims))

    def _refuse(self, *arguments: Any, **options: Any) -> NoReturn:
        raise ArgumentError(
            f"the storage reads {self._source.path}, and cannot be changed or saved",
            hint="copy the steps into a LazyTensorStorage or LazyMemmapStorage",
        )

    append = _set = _prepare = _write_rows = __setitem__ = empty = _refuse
    state_dict = load_state_dict = as_tensors = load_saved = _refuse
