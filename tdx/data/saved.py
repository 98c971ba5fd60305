"""A buffer's data in a folder: one file of raw numbers for each leaf, and a manifest."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

import torch
from torch import Tensor

from tdx.data.layout import Layout, Leaves
from tdx.errors import StorageError
from tdx.keys import format_key

FORMAT, VERSION = "tdx-replay-buffer", 1
MANIFEST = "buffer.json"
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
}


@dataclass(frozen=True)
class Saved:
    """What is saved of a buffer.

    Args:
        layout: what a step looks like; ``None`` where nothing was ever stored.
        leaves: the filled rows of every leaf, ``[rows, *B, ...]``.
        begins: which steps do not follow on the one before them, bool ``[rows, width]``.
        rows: the number of filled rows.
        batch: the dims ``[*B]``.
        cursor: the row that is written next.
        max_rows: the most rows there were.
        write_count: how many rows were ever written.
        sampler: the sampler's state.
    """

    layout: Layout | None
    leaves: Leaves
    begins: Tensor
    rows: int
    batch: tuple[int, ...]
    cursor: int
    max_rows: int
    write_count: int
    sampler: dict[str, Any]


def save(folder: FilePath, saved: Saved) -> None:
    """Write a buffer's data; the manifest comes last, so that half a save is none.

    Raises:
        StorageError: the disk is full, or the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MANIFEST).unlink(missing_ok=True)
        for number, leaf in enumerate([*saved.leaves.values(), saved.begins]):
            with (folder / _file(number)).open("wb") as file:
                _bytes(leaf).numpy().tofile(file)
        unfinished = folder / f"{MANIFEST}.part"
        unfinished.write_text(json.dumps(_manifest(saved), indent=1))
        os.replace(unfinished, folder / MANIFEST)
    except OSError as error:
        raise StorageError(
            f"cannot save the buffer in {folder}: {error.strerror or error}",
            hint="choose another folder, or make room",
        ) from error


def load(folder: FilePath) -> Saved:
    """Read what :func:`save` wrote; no code is run by it.

    Raises:
        StorageError: there is no saved buffer, or a file of it is missing or cut short.
    """
    file = folder / MANIFEST
    try:
        manifest = json.loads(file.read_text())
        if manifest["format"] != FORMAT or manifest["version"] != VERSION:
            raise StorageError(
                f"{file} is of format {manifest['format']!r} {manifest['version']!r}",
                hint=f"this release reads {FORMAT} {VERSION}",
            )
        return _read(folder, manifest)
    except FileNotFoundError as error:
        raise StorageError(
            f"there is no saved buffer in {folder}: no {FilePath(error.filename).name}",
            hint="give the folder that dumps() was given",
        ) from None
    except (KeyError, TypeError, ValueError, OSError) as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{file} cannot be understood: {error}") from error


def _manifest(saved: Saved) -> dict[str, Any]:
    layout = saved.layout
    leaves = (
        []
        if layout is None
        else [
            {
                "key": list(path),
                "dtype": str(layout.dtypes[path]).removeprefix("torch."),
                "shape": list(shape),
                "file": _file(number),
            }
            for number, (path, shape) in enumerate(layout.shapes.items())
        ]
    )
    groups = {} if layout is None else layout.groups
    return {
        "format": FORMAT,
        "version": VERSION,
        "rows": saved.rows,
        "batch": list(saved.batch),
        "cursor": saved.cursor,
        "max_rows": saved.max_rows,
        "write_count": saved.write_count,
        "leaves": leaves,
        "groups": [{"key": list(path), "batch": list(batch)} for path, batch in groups.items()],
        "names": [] if layout is None else list(layout.names),
        "sampler": saved.sampler,
    }


def _read(folder: FilePath, manifest: dict[str, Any]) -> Saved:
    rows, batch = int(manifest["rows"]), tuple(map(int, manifest["batch"]))
    if min(rows, manifest["cursor"], *batch) < 0 or manifest["cursor"] >= manifest["max_rows"]:
        raise ValueError("its numbers of rows contradict each other")
    dtypes, shapes, leaves = {}, {}, {}
    for number, entry in enumerate(manifest["leaves"]):
        path = tuple(map(str, entry["key"]))
        dtypes[path], shapes[path] = DTYPES[entry["dtype"]], torch.Size(entry["shape"])
        full = torch.Size((rows, *batch, *shapes[path]))
        leaves[path] = _tensor(folder / _file(number), full, dtypes[path], format_key(path or "-"))
    groups = {tuple(each["key"]): torch.Size(each["batch"]) for each in manifest["groups"]}
    width = torch.Size(batch).numel()
    begins = folder / _file(len(leaves))
    return Saved(
        layout=Layout(dtypes, shapes, groups, tuple(manifest["names"])) if leaves else None,
        leaves=leaves,
        begins=_tensor(begins, torch.Size((rows, width)), torch.bool, "the starts of episodes"),
        rows=rows,
        batch=batch,
        cursor=int(manifest["cursor"]),
        max_rows=int(manifest["max_rows"]),
        write_count=int(manifest["write_count"]),
        sampler=dict(manifest["sampler"]),
    )


def _file(number: int) -> str:
    return f"{number:03}.bin"


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _tensor(file: FilePath, shape: torch.Size, dtype: torch.dtype, what: str) -> Tensor:
    wanted = shape.numel() * dtype.itemsize
    found = file.stat().st_size
    if found != wanted:
        raise StorageError(
            f"{file} has {found} bytes, {wanted} are needed for {what}",
            hint="the save was cut short, or the file changed: save the buffer again",
        )
    if not wanted:
        return torch.empty(shape, dtype=dtype)
    flat = torch.from_file(str(file), shared=False, size=shape.numel(), dtype=dtype)
    return flat.reshape(shape)
