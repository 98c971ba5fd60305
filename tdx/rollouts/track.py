"""One growing file of raw numbers for each entry: a rollout's columns, step after step.

The folder is also what ``TensorDict.load_memmap`` reads, as ``[T, *B]``.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase, is_non_tensor
from torch import Tensor

from tdx.data.layout import Layout, Leaves
from tdx.data.saved import DTYPES
from tdx.errors import ArgumentError, StorageError, Where
from tdx.keys import format_key, normal_key
from tdx.tensordicts import new_tensordict

Parts = tuple[str, ...]


@dataclass(slots=True)
class Track:
    """What the columns of a rollout look like, and where their files are.

    Args:
        name: of its folder.
        batch_size: ``[*B]``.
        leaves: dtype and shape in one step of every entry, ``[*B, ...]``, by its path.
        groups: the dims that a nested group has beyond the batch, by its path.
    """

    name: str
    batch_size: tuple[int, ...]
    leaves: dict[Parts, tuple[torch.dtype, tuple[int, ...]]] = field(default_factory=dict)
    groups: dict[Parts, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, data: TensorDictBase, dim: int) -> Track:
        """The track for chunks such as ``data``, ``[*B, T]``, with ``dim`` batch dims."""
        layout = Layout.of(data, tensors_of(data), dim + 1)
        batch = tuple(data.batch_size[:dim])
        leaves = {p: (layout.dtypes[p], (*batch, *shape)) for p, shape in layout.shapes.items()}
        groups = {path: tuple(size) for path, size in layout.groups.items() if path}
        for path in leaves:
            if any("/" in part or part.startswith(".") for part in path):
                where = Where(key=normal_key(path))
                raise ArgumentError("a key with / cannot be stored", where=where, hint=_LEAVE_OUT)
        return cls(name, batch, leaves, groups)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        leaves = [
            {
                "key": list(path),
                "dtype": str(dtype).removeprefix("torch."),
                "shape": list(shape),
                "file": self.file(path),
            }
            for path, (dtype, shape) in self.leaves.items()
        ]
        groups = [{"key": list(path), "batch": list(size)} for path, size in self.groups.items()]
        return {"leaves": leaves, "groups": groups}

    @classmethod
    def from_dict(cls, name: str, batch: tuple[int, ...], data: Mapping[str, Any]) -> Track:
        """The track that :meth:`to_dict` described."""
        leaves = {
            _path(each["key"]): (DTYPES[each["dtype"]], tuple(map(int, each["shape"])))
            for each in data["leaves"]
        }
        groups = {_path(each["key"]): tuple(map(int, each["batch"])) for each in data["groups"]}
        return cls(name, batch, leaves, groups)

    def file(self, path: Parts) -> str:
        """Where an entry is, from the dump's folder on."""
        return "/".join([self.name, *path[:-1], f"{path[-1]}.memmap"])

    def step_bytes(self, path: Parts) -> int:
        """How many bytes an entry takes in a step."""
        dtype, shape = self.leaves[path]
        return torch.Size(shape).numel() * dtype.itemsize

    # Writing

    def columns(self, data: TensorDictBase) -> Leaves:
        """The entries of a chunk ``[*B, T]`` with time first, ``[T, *B, ...]``.

        Raises:
            ArgumentError: they are not those of the chunks before.
        """
        dim = len(self.batch_size)
        columns = {path: leaf.movedim(dim, 0) for path, leaf in tensors_of(data).items()}
        found = {path: (leaf.dtype, tuple(leaf.shape[1:])) for path, leaf in columns.items()}
        if found != self.leaves:
            odd = sorted(format_key(p) for p, _ in found.items() ^ self.leaves.items())
            raise ArgumentError(
                f"{odd[0]!r} changes its shape or dtype, or comes and goes, during the rollout",
                hint=_LEAVE_OUT,
            )
        return columns

    def append(self, folder: Path, columns: Leaves, start: int) -> dict[str, str]:
        """Write a chunk behind ``start`` steps; what stood there before is overwritten.

        It is on the disk only after :func:`sync_files`.

        Returns:
            the checksum of each entry, by its file.
        """
        sums = {}
        for path, column in columns.items():
            data = _bytes_of(column)
            target = folder / self.file(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            offset = start * self.step_bytes(path)
            mode = "r+b" if target.exists() else "w+b"
            with target.open(mode) as file:
                file.truncate(offset)
                file.seek(offset)
                file.write(data)
            sums[self.file(path)] = f"{zlib.crc32(data):08x}"
        return sums

    def describe(self, folder: Path, steps: int) -> None:
        """Write what ``TensorDict.load_memmap`` wants to know."""
        paths: set[Parts] = {(), *self.groups, *(path[:-1] for path in self.leaves)}
        for path in paths:
            shape = [steps, *self.batch_size, *self.groups.get(path, ())]
            entries: dict[str, Any] = {}
            for each, (dtype, step) in self.leaves.items():
                if each[:-1] == path:
                    entries[each[-1]] = _leaf_entry(dtype, (steps, *step))
            for other in paths:
                if other and other[:-1] == path:
                    entries[other[-1]] = {"type": "TensorDict"}
            kind = "<class 'tensordict._td.TensorDict'>"
            whole = {**entries, "shape": shape, "device": "cpu", "_type": kind}
            place = folder.joinpath(self.name, *path)
            place.mkdir(parents=True, exist_ok=True)
            write_atomically(place / "meta.json", json.dumps(whole))

    # Reading

    def problem(self, folder: Path, path: Parts, steps: int) -> str | None:
        """What is wrong with an entry's file, if anything is, without reading it."""
        wanted = steps * self.step_bytes(path)
        target = folder / self.file(path)
        if not target.is_file():
            return "is missing"
        found = target.stat().st_size
        return f"has {found} bytes, {wanted} are needed" if found < wanted else None

    def open(self, folder: Path, steps: int) -> TensorDictBase:
        """Every entry as memory-mapped files, ``[*B, T]``; nothing is read yet.

        Raises:
            StorageError: a file is missing or cut short.
        """
        leaves = {}
        for path in self.leaves:
            problem = self.problem(folder, path, steps)
            if problem:
                raise StorageError(
                    f"{folder / self.file(path)} {problem}", hint=f"tdx verify {folder} says more"
                )
            leaves[path] = self._mapped(folder, path, steps)
        return self._nested(leaves, steps)

    def _mapped(self, folder: Path, path: Parts, steps: int) -> Tensor:
        dtype, shape = self.leaves[path]
        full = torch.Size((steps, *shape))
        if not full.numel():
            mapped = torch.empty(full, dtype=dtype)
        else:
            name = str(folder / self.file(path))
            flat = torch.from_file(name, shared=False, size=full.numel(), dtype=dtype)
            mapped = flat.reshape(full)
        return mapped.movedim(0, len(self.batch_size))

    def _nested(self, leaves: Mapping[Parts, Tensor], steps: int) -> TensorDictBase:
        groups = {**{path[:-1]: () for path in leaves if len(path) > 1}, **self.groups}
        return _level(leaves, groups, (), torch.Size((*self.batch_size, steps)))


_LEAVE_OUT = "leave it out: --keys names what is stored"


def tensors_of(data: TensorDictBase) -> Leaves:
    """Every entry by its path.

    Raises:
        ArgumentError: one is no tensor.
    """
    found: Leaves = {}
    _collect(data, (), found)
    return found


def _collect(data: TensorDictBase, path: Parts, found: Leaves) -> None:
    for name in data.keys():
        value, here = data.get(name), (*path, name)
        if isinstance(value, Tensor):
            found[here] = value.detach()
        elif isinstance(value, TensorDictBase) and not is_non_tensor(value):
            _collect(value, here, found)
        else:
            where = Where(key=normal_key(here))
            raise ArgumentError(
                "an entry that is no tensor cannot be stored", where=where, hint=_LEAVE_OUT
            )


def from_tensors(leaves: Mapping[Parts, Tensor], batch: Any, groups: Any) -> TensorDictBase:
    """A TensorDict ``[*batch]`` of entries by their path."""
    known = {**{path[:-1]: () for path in leaves if len(path) > 1}, **groups}
    return _level(leaves, known, (), torch.Size(batch))


def _level(
    leaves: Mapping[Parts, Tensor],
    groups: Mapping[Parts, tuple[int, ...]],
    path: Parts,
    batch: torch.Size,
) -> TensorDictBase:
    entries: dict[str, Any] = {each[-1]: leaf for each, leaf in leaves.items() if each[:-1] == path}
    below = {each[: len(path) + 1] for each in groups if len(each) > len(path) == _same(each, path)}
    for each in sorted(below):
        entries[each[-1]] = _level(leaves, groups, each, batch)
    size = torch.Size((*batch, *groups.get(path, ())))
    return new_tensordict(entries, size, torch.device("cpu"))


def _same(path: Parts, start: Parts) -> int:
    return len(start) if path[: len(start)] == start else -1


def _leaf_entry(dtype: torch.dtype, shape: tuple[int, ...]) -> dict[str, Any]:
    return {"device": "cpu", "shape": list(shape), "dtype": str(dtype), "is_nested": False}


def _path(parts: Any) -> Parts:
    path = tuple(map(str, parts))
    if not path or any("/" in part or part in ("", ".", "..") for part in path):
        raise ValueError(f"{parts!r} is no key")
    return path


def checksum(column: Tensor) -> str:
    """The checksum of an entry's numbers."""
    return f"{zlib.crc32(_bytes_of(column)):08x}"


def _bytes_of(column: Tensor) -> memoryview:
    flat: Any = column.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return memoryview(flat)


def write_atomically(path: Path, data: str | bytes) -> None:
    """Put a file in its place whole, or not at all, and have it on the disk."""
    unfinished = path.with_name(f".{path.name}.part")
    block = data.encode() if isinstance(data, str) else data
    try:
        with unfinished.open("wb") as file:
            file.write(block)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError:
        with suppress(OSError):
            unfinished.unlink()
        raise
    sync_folder(path.parent)


def sync_files(paths: Iterable[Path], pool: Executor) -> None:
    """Have files on the disk; a disk does many at once in little more than the time of one."""
    list(pool.map(_synced, paths))


def _synced(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Have the folder's list of files on the disk."""
    _synced(folder)
