"""Track of a dump: one growing file of raw numbers per entry, step after step.

The folder is also what ``TensorDict.load_memmap`` reads, as ``[T, *B]``.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.data.layout import Layout, LeavesByPath
from tdx.foundation.container import Container
from tdx.foundation.errors import ArgumentError, StorageError, Where, get_first_line
from tdx.foundation.folders import open_path
from tdx.foundation.keys import format_key, normalize_key
from tdx.foundation.text import dtype_name
from tdx.foundation.untrusted import MAX_COUNT, MAX_NESTING, Fields
from tdx.rollouts.dump.encoding import DAMAGED, DTYPES
from tdx.rollouts.dump.entries import LEAVE_OUT, Parts, flatten_tensors, unflatten_tensors

_DESCRIPTION = "meta.json"
_BLOCK = 2**20
"""Number of bytes that are copied and written at a time, unless a step is larger."""
_FREE_STEPS = 2**24
"""Largest number of steps of a track whose entries have no bytes."""


@dataclass(slots=True)
class Track:
    """Columns of a rollout, each in one file."""

    name: str
    batch_size: tuple[int, ...]
    # by path; the shape of one step, [*B, ...]
    leaves: dict[Parts, tuple[torch.dtype, tuple[int, ...]]] = field(default_factory=dict)
    # Batch dimensions that nested TensorDicts have in addition, by path.
    groups: dict[Parts, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, data: TensorDictBase, dim: int) -> Track:
        """Return the track for chunks like ``data``, ``[*B, T]``, with ``dim`` batch dimensions."""
        layout = Layout.of(data, flatten_tensors(data), dim + 1)
        batch = tuple(data.batch_size[:dim])
        leaves = {p: (layout.dtypes[p], (*batch, *shape)) for p, shape in layout.shapes.items()}
        groups = {path: tuple(size) for path, size in layout.groups.items() if path}
        for path in leaves:
            if not all(map(_is_name, path)):
                where = Where(key=normalize_key(path))
                raise ArgumentError("the key cannot be a file name", where=where, hint=LEAVE_OUT)
        return cls(name, batch, leaves, groups)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        leaves = [
            {
                "key": list(path),
                "dtype": dtype_name(dtype),
                "shape": list(shape),
                "file": self.file(path),
            }
            for path, (dtype, shape) in self.leaves.items()
        ]
        groups = [{"key": list(path), "batch": list(size)} for path, size in self.groups.items()]
        return {"leaves": leaves, "groups": groups}

    @classmethod
    def from_dict(cls, name: str, batch: tuple[int, ...], data: object) -> Track:
        """Parse the output of :meth:`to_dict`."""
        fields = Fields(data, f"track {name!r}", DAMAGED)
        leaves, groups = {}, {}
        for leaf in fields.objects("leaves"):
            dtype = leaf.text("dtype")
            if dtype not in DTYPES:
                raise leaf.invalid("dtype", "a dtype that can be stored")
            leaves[_path(leaf)] = (DTYPES[dtype], leaf.shape("shape"))
        for group in fields.objects("groups"):
            groups[_path(group)] = group.shape("batch")
        nested = {path[:size] for path in leaves for size in range(1, len(path))}
        if len(leaves) < len(fields.list("leaves")) or (nested | set(groups)) & set(leaves):
            raise StorageError(f"{fields.source} has two entries of one name", hint=DAMAGED)
        track = cls(name, batch, leaves, groups)
        for path, (_, shape) in leaves.items():
            for size in range(len(path)):
                outer = (*batch, *groups.get(path[:size], ()))
                if shape[: len(outer)] != outer:
                    raise StorageError(
                        f"{fields.source}: {format_key(normalize_key(path))!r} has the shape "
                        f"{list(shape)}, which does not begin with the batch size {list(outer)}",
                        hint=DAMAGED,
                    )
            if track.step_bytes(path) > MAX_COUNT:
                raise StorageError(f"{fields.source} is impossibly large", hint=DAMAGED)
        return track

    def file(self, path: Parts) -> str:
        """Return the file of an entry, relative to the dump's folder."""
        return "/".join([self.name, *path[:-1], f"{path[-1]}.memmap"])

    def step_bytes(self, path: Parts) -> int:
        """Return the number of bytes of an entry per step."""
        dtype, shape = self.leaves[path]
        return torch.Size(shape).numel() * dtype.itemsize

    # Writing

    def columns(self, data: TensorDictBase) -> LeavesByPath:
        """Return the entries of a chunk ``[*B, T]`` with time first, ``[T, *B, ...]``."""
        dim = len(self.batch_size)
        columns = {path: leaf.movedim(dim, 0) for path, leaf in flatten_tensors(data).items()}
        found = {path: (leaf.dtype, tuple(leaf.shape[1:])) for path, leaf in columns.items()}
        if found != self.leaves:
            odd = sorted(format_key(p) for p, _ in found.items() ^ self.leaves.items())
            raise ArgumentError(
                f"{odd[0]!r} changes its shape or dtype, or is not in every step, of the rollout",
                hint=LEAVE_OUT,
            )
        return columns

    def write(
        self, root: Container, columns: LeavesByPath, start: int, pool: Executor | None = None
    ) -> dict[str, str]:
        """Write a chunk ``[T, *B, ...]`` after ``start`` steps; return the checksum of each file.

        A file never shrinks: other processes may have mapped it. With a ``pool``, the files are
        written concurrently, and flushed to the disk.

        Raises:
            StorageError: A file is a link, or not a regular file.
            OSError: It cannot be written.
        """
        jobs = [
            (self.file(path), start * self.step_bytes(path), column)
            for path, column in columns.items()
        ]

        def write_column(job: tuple[str, int, Tensor]) -> str:
            file, offset, column = job
            return root.write(file, _blocks(column), offset=offset, sync=pool is not None)

        sums = (map if pool is None else pool.map)(write_column, jobs)
        return dict(zip((file for file, *_ in jobs), sums, strict=True))

    def sync_folders(self, root: Container) -> None:
        """Flush the lists of files of all folders to the disk."""
        for path in self._folders():
            with root.subfolder(self._folder(path)) as folder:
                folder.sync()
        root.sync()

    def _folders(self) -> list[Parts]:
        found: set[Parts] = {(), *self.groups, *(path[:-1] for path in self.leaves)}
        found |= {path[:size] for path in found for size in range(len(path))}
        return sorted(found)

    def _folder(self, path: Parts) -> str:
        return "/".join([self.name, *path])

    def descriptions(self, steps: int) -> dict[str, str]:
        """Return the text of each file that ``TensorDict.load_memmap`` reads, by name."""
        found, folders = {}, self._folders()
        for path in folders:
            entries: dict[str, Any] = {}
            for leaf, (dtype, step) in self.leaves.items():
                if leaf[:-1] == path:
                    shape = [steps, *step]
                    entries[leaf[-1]] = {
                        "device": "cpu",
                        "shape": shape,
                        "dtype": str(dtype),
                        "is_nested": False,
                    }
            for other in folders:
                if other and other[:-1] == path:
                    entries[other[-1]] = {"type": "TensorDict"}
            shape = [steps, *self.batch_size, *self.groups.get(path, ())]
            kind = "<class 'tensordict._td.TensorDict'>"
            whole = {**entries, "shape": shape, "device": "cpu", "_type": kind}
            found[f"{self._folder(path)}/{_DESCRIPTION}"] = json.dumps(whole)
        return found

    def write_descriptions(self, root: Container, steps: int) -> None:
        """Write :meth:`descriptions` below the descriptor of a dump's folder."""
        for name, text in self.descriptions(steps).items():
            root.replace(name, text)

    def remove_descriptions(self, root: Container) -> None:
        """Remove the files of :meth:`write_descriptions`, before steps are added."""
        for name in self.descriptions(0):
            with suppress(FileNotFoundError):
                root.remove(name, sync=True)

    # Reading

    def check_steps(self, steps: int) -> None:
        """Refuse an implausible number of steps without a byte."""
        if steps > _FREE_STEPS and not any(map(self.step_bytes, self.leaves)):
            raise StorageError(
                f"track {self.name!r} declares {steps:,} steps without a byte", hint=DAMAGED
            )

    def find_problem(self, root: Container, path: Parts, steps: int) -> str | None:
        """Return the problem of an entry's file, without reading it; ``None`` if it has none."""
        wanted = steps * self.step_bytes(path)
        try:
            with root.open_file(self.file(path)) as file:
                found = os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return "is missing"
        return f"has {found} bytes, {wanted} are needed" if found < wanted else None

    def check_files(self, root: Container, steps: int) -> None:
        """Check that no file is missing or too short."""
        for path in self.leaves:
            problem = self.find_problem(root, path, steps)
            if problem:
                raise StorageError(
                    f"{root.path / self.file(path)} {problem}",
                    hint=f"`tdx verify {root.path}` lists all problems",
                )

    def open(self, root: Container, steps: int) -> TensorDictBase:
        """Return the entries as memory-mapped tensors, ``[*B, T]``, without reading them."""
        self.check_files(root, steps)
        leaves = {path: self._map(root, path, steps) for path in self.leaves}
        return unflatten_tensors(leaves, (*self.batch_size, steps), self.groups)

    def read_column(self, root: Container, path: Parts, start: int, steps: int) -> Tensor:
        """Read the steps of an entry from ``start`` on, ``[T, *B, ...]``, into memory."""
        dtype, shape = self.leaves[path]
        if not (size := self.step_bytes(path)) or not steps:
            return torch.empty((steps, *shape), dtype=dtype)
        with root.open_file(self.file(path)) as file:
            file.seek(start * size)
            data = bytearray(file.read(steps * size))
        if len(data) < steps * size:
            raise StorageError(
                f"{root.path / self.file(path)} ends before step {start + steps}",
                hint=f"`tdx verify {root.path}` lists all problems",
            )
        return torch.frombuffer(data, dtype=dtype).reshape(steps, *shape)

    def _map(self, root: Container, path: Parts, steps: int) -> Tensor:
        dtype, shape = self.leaves[path]
        full = torch.Size((steps, *shape))
        if not full.numel():
            mapped = torch.empty(full, dtype=dtype)
        else:
            # Map the file that was checked, even if its name was replaced since.
            with root.open_file(self.file(path)) as file:
                name = open_path(file, root.path / self.file(path))
                try:
                    flat = torch.from_file(name, shared=False, size=full.numel(), dtype=dtype)
                except RuntimeError as error:
                    raise StorageError(
                        f"cannot map {self.file(path)!r} into memory: {get_first_line(error)}",
                        hint="the system limits open files (ulimit -n) and memory (ulimit -v)",
                    ) from error
            mapped = flat.reshape(full)
        return mapped.movedim(0, len(self.batch_size))


def _path(fields: Fields) -> Parts:
    path = fields.texts("key")
    if not 0 < len(path) < MAX_NESTING or not all(map(_is_name, path)):
        raise fields.invalid("key", "a key")
    return path


def _is_name(part: str) -> bool:
    return bool(part) and "/" not in part and "\0" not in part and not part.startswith(".")


def checksum(column: Tensor) -> str:
    """Return the checksum of a column."""
    crc = 0
    for data in _blocks(column):
        crc = zlib.crc32(data, crc)
    return f"{crc:08x}"


def _blocks(column: Tensor) -> Iterator[memoryview]:
    """Yield the bytes of a column ``[T, *B, ...]`` in order.

    Blocks are small, because the allocator keeps the copies of every writing thread.
    """
    step = column[:1].numel() * column.itemsize
    for block in column.detach().cpu().split(max(1, _BLOCK // max(step, 1))):
        flat: Any = block.contiguous().reshape(-1).view(torch.uint8).numpy()
        yield memoryview(flat)
