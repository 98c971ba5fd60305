"""Storages that are allocated with the first data: in memory, and in memory-mapped files."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path as FilePath
from typing import Any

import torch
from torch import Tensor

from tdx.data.forms import as_entries
from tdx.data.layout import Layout, leaves_of
from tdx.data.storage import Storage
from tdx.data.tensor_storage import TensorStorage
from tdx.foundation.errors import ArgumentError, StorageError


class LazyTensorStorage(TensorStorage):
    """Stores steps in tensors in memory, which are allocated with the first data.

    Args:
        max_size: Capacity in steps, over all dims.
        device: Device of the tensors. ``"auto"``: that of the first data.
        ndim: Number of dims that count steps: 2 for rollouts ``[B, T]`` of a batch of envs.
        compilable: No effect.

    Raises:
        ArgumentError: An argument is not an integer of at least 1.

    Example:
        >>> import torch
        >>> from tdx import LazyTensorStorage, ReplayBuffer
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(4))
        >>> buffer.extend(torch.arange(6))
        tensor([0, 1, 2, 3, 0, 1])
        >>> buffer[:]
        tensor([4, 5, 2, 3])
    """

    def __init__(
        self,
        max_size: int,
        *,
        device: torch.device | str = "cpu",
        ndim: int = 1,
        compilable: bool = False,
    ) -> None:
        Storage.__init__(self, max_size, ndim)
        self._follows_data = device == "auto"
        self._prepare_empty(None if device == "auto" else device)

    def _prepare(self, data: Any, newest: int | None) -> int:
        if self._follows_data and not self.initialized:
            entries, _ = as_entries(data, self.ndim)
            leaves = leaves_of(entries, self.ndim).values()
            devices = (leaf.device for leaf in leaves)
            self._device = entries.device or next(devices, self._device)
        return super()._prepare(data, newest)


class LazyMemmapStorage(LazyTensorStorage):
    """Stores steps in memory-mapped files, which are created with the first data.

    Disk space is allocated at once, so that a full disk is detected immediately and not in the
    middle of a run.

    Args:
        max_size: Capacity in steps, over all dims.
        scratch_dir: Folder of the files. ``None``: a temporary folder.
        device: Device of the tensors; must be ``cpu`` or ``"auto"``, which has the same effect.
        ndim: Number of dims that count steps: 2 for rollouts ``[B, T]`` of a batch of envs.
        existsok: Overwrite existing files in ``scratch_dir``.
        compilable: No effect.
        auto_cleanup: Remove the files with the storage. ``None``: only from a temporary folder.

    Raises:
        ArgumentError: An argument is not an integer of at least 1, or ``device`` is not ``cpu``.
        StorageError: The disk is full, or the files already exist (with the first data).

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
        compilable: bool = False,
        auto_cleanup: bool | None = None,
    ) -> None:
        if device != "auto" and torch.device(device).type != "cpu":
            raise ArgumentError(
                f"device must be cpu for memory-mapped files, got {str(device)!r}",
                hint="to move samples, append a DeviceCastTransform to the buffer",
            )
        super().__init__(max_size, device="cpu", ndim=ndim)
        self.scratch_dir = None if scratch_dir is None else FilePath(scratch_dir)
        self.existsok = existsok
        self.auto_cleanup = scratch_dir is None if auto_cleanup is None else auto_cleanup
        self._files: list[FilePath] = []

    def allocate(self, layout: Layout, batch: torch.Size) -> None:
        """Create the files for steps of a layout.

        Raises:
            ArgumentError: A single row does not fit.
            StorageError: The disk is full, or the files already exist.
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
                f"cannot store the buffer in {self.scratch_dir}: {error.strerror or error}",
                hint="choose a scratch_dir on a larger disk, or lower max_size",
            ) from error
        if self.auto_cleanup:
            weakref.finalize(self, _remove, list(self._files))

    def cleanup(self) -> bool:
        """Remove the files and their folder, and return True if there were any.

        Other files in the folder, and the folder with them, are kept. Nothing can be read or
        written afterwards.
        """
        existing = [file for file in self._files if file.exists()]
        _remove(existing)
        if existing and self.scratch_dir is not None:
            with suppress(OSError):  # other files are in it
                self.scratch_dir.rmdir()
        return bool(existing)

    def __getstate__(self) -> dict[str, Any]:
        """Return the data. A copy stores it in a temporary folder."""
        owned: dict[str, Any] = {
            "scratch_dir": None,
            "existsok": False,
            "auto_cleanup": True,
            "_files": [],
        }
        return super().__getstate__() | owned

    def _allocate_pack(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
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
                hint="it may belong to another buffer: use another scratch_dir, or existsok=True",
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
