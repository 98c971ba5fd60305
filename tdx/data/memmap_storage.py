"""Keep steps in files that are mapped into memory."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path as FilePath

import torch
from torch import Tensor

from tdx.data.layout import Layout
from tdx.data.tensor_storage import LazyTensorStorage
from tdx.errors import ArgumentError, StorageError


class LazyMemmapStorage(LazyTensorStorage):
    """Keeps steps on disk, mapped into memory; the files are made when the first data comes.

    The room on the disk is taken at once, so that a full disk is found then and not in the
    middle of a run.

    Args:
        max_size: the most steps it holds, over all dims.
        scratch_dir: the folder of the files; a temporary one by default.
        device: where the tensors are: ``cpu``.
        ndim: the number of dims that count steps: 2 for rollouts ``[B, T]`` of a batch of envs.
        existsok: whether files in ``scratch_dir`` may be overwritten.
        auto_cleanup: whether the files are removed with the storage; by default those in a
            temporary folder are.

    Raises:
        ArgumentError: an argument is no integer of at least 1, or ``device`` is not ``cpu``.
        StorageError: (with the first data) the disk is full, or the files are there already.

    Example:
        >>> import torch
        >>> from tdx import LazyMemmapStorage, ReplayBuffer
        >>> buffer = ReplayBuffer(storage=LazyMemmapStorage(1000), batch_size=2)
        >>> _ = buffer.extend(torch.zeros(10, 84, 84))
        >>> buffer.sample().shape
        torch.Size([2, 84, 84])
    """

    def __init__(
        self,
        max_size: int,
        *,
        scratch_dir: str | os.PathLike[str] | None = None,
        device: torch.device | str = "cpu",
        ndim: int = 1,
        existsok: bool = False,
        auto_cleanup: bool | None = None,
    ) -> None:
        if torch.device(device).type != "cpu":
            raise ArgumentError(
                f"files are mapped into the memory of the cpu, got device={str(device)!r}",
                hint="samples can be moved: append a DeviceCastTransform to the buffer",
            )
        super().__init__(max_size, device="cpu", ndim=ndim)
        self.scratch_dir = None if scratch_dir is None else FilePath(scratch_dir)
        self.existsok = existsok
        self.auto_cleanup = scratch_dir is None if auto_cleanup is None else auto_cleanup
        self._files: list[FilePath] = []

    def allocate(self, layout: Layout, batch: torch.Size) -> None:
        """Make the files for steps of a layout.

        Raises:
            ArgumentError: not even one row would fit.
            StorageError: the disk is full, or the files are there already.
        """
        try:
            if self.scratch_dir is None:
                self.scratch_dir = FilePath(tempfile.mkdtemp(prefix="tdx-buffer-"))
                if self.auto_cleanup:
                    weakref.finalize(self, shutil.rmtree, self.scratch_dir, ignore_errors=True)
            else:
                self.scratch_dir.mkdir(parents=True, exist_ok=True)
            super().allocate(layout, batch)
        except OSError as error:
            _remove(self._files)
            if isinstance(error, StorageError):
                raise
            raise StorageError(
                f"cannot keep the buffer in {self.scratch_dir}: {error.strerror or error}",
                hint="name a folder on a larger disk as scratch_dir, or lower max_size",
            ) from error
        if self.auto_cleanup:
            weakref.finalize(self, _remove, list(self._files))

    def _allocated(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        assert self.scratch_dir is not None
        if not shape.numel():
            return torch.empty(shape, dtype=dtype)
        file = self.scratch_dir / f"{len(self._files):03}.bin"
        flags = os.O_RDWR | os.O_CREAT | (os.O_TRUNC if self.existsok else os.O_EXCL)
        try:
            descriptor = os.open(file, flags, 0o600)
        except FileExistsError:
            raise StorageError(
                f"{file} already exists",
                hint="it may be another buffer's: use another scratch_dir, or existsok=True",
            ) from None
        self._files.append(file)
        try:
            os.posix_fallocate(descriptor, 0, shape.numel() * dtype.itemsize)
        finally:
            os.close(descriptor)
        flat = torch.from_file(str(file), shared=True, size=shape.numel(), dtype=dtype)
        return flat.view(shape)


def _remove(files: list[FilePath]) -> None:
    for file in files:
        file.unlink(missing_ok=True)
