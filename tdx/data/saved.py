"""Save a replay buffer in a folder: one file of raw numbers per tensor, and a manifest.

A save writes files with new names and then replaces the manifest, which lists them. An
interrupted save leaves the old manifest and the old files. A process that has mapped the old
files keeps them. Reading runs no code from the folder.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import re
import secrets
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path as FilePath
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from tdx.data.layout import Layout, Path, StateDict
from tdx.foundation.container import Container, UnsyncedError, make_folders, read_seal, seal
from tdx.foundation.errors import StorageError
from tdx.foundation.files import report_read_errors, report_write_errors
from tdx.foundation.text import dtype_name
from tdx.foundation.untrusted import MAX_HEADER_BYTES, MAX_NESTING, parse_json, validate_shape

FORMAT, VERSION = "tdx-replay-buffer", 3
MANIFEST = "buffer.json"
DTYPES = {
    dtype_name(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)
}
_FILE = re.compile(r"\d{3,9}(-[0-9a-f]{16})?[.]bin")
_LEFTOVER = re.compile(
    rf"\d{{3,}}-[0-9a-f]{{16}}[.]bin|[.]{re.escape(MANIFEST)}[.][0-9a-f]{{16}}[.]tmp"
)
_ATTEMPTS = 10
_DAMAGED = "the file is damaged: save the buffer again, or restore it from a copy"
_SAVE_AGAIN = "the file was cut short or changed: save the buffer again"
_PASS_FOLDER = "pass the folder that dumps() was given"
Document = Mapping[str, Any]
"""A JSON object of the manifest."""
Stored = TypeVar("Stored")
Other = TypeVar("Other")


@dataclass(frozen=True)
class _StoredArray:
    """A file of raw numbers; ``crc32`` is in hex, ``None`` if it was saved without one."""

    file: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    crc32: str | None

    def to_dict(self) -> Document:
        """Return the array as plain data."""
        dtype = dtype_name(self.dtype)
        return {"file": self.file, "dtype": dtype, "shape": list(self.shape), "crc32": self.crc32}


@dataclass(frozen=True)
class Content(Generic[Stored]):
    """Content of a saved buffer, as tensors or as files.

    ``layout`` is ``None`` if nothing was ever stored. Tensors in the state of the sampler become
    files; the rest of it is plain data.
    """

    layout: Layout | None
    leaves: dict[Path, Stored]
    begins: Stored
    rows: int
    batch: tuple[int, ...]
    cursor: int
    max_rows: int
    write_count: int
    sampler: StateDict

    def map(self, function: Callable[[Stored], Other]) -> Content[Other]:
        """Replace each tensor or file."""
        return Content(
            self.layout,
            {path: function(leaf) for path, leaf in self.leaves.items()},
            function(self.begins),
            self.rows,
            self.batch,
            self.cursor,
            self.max_rows,
            self.write_count,
            {
                name: function(state) if isinstance(state, (Tensor, _StoredArray)) else state  # type: ignore[arg-type]
                for name, state in self.sampler.items()
            },
        )


Saved = Content[Tensor]


def save(folder: FilePath, saved: Saved) -> None:
    """Write a buffer's data; until it is complete, an earlier save in the folder stays valid.

    Other files in the folder are not touched. Files of earlier and of killed saves are removed.

    Raises:
        StorageError: The disk is full, the folder is not writable, or its manifest is a link.
    """
    try:
        with report_write_errors(
            f"the buffer to {folder}", "choose another folder, or make room", kind=StorageError
        ):
            make_folders(folder)
            with Container.open(folder) as container:
                container.lock(wait=True)
                _save(container, saved, secrets.token_hex(8))
    except UnsyncedError as error:
        raise StorageError(error.message, hint=error.hint) from error


def _save(folder: Container, saved: Saved, token: str) -> None:
    outdated: set[str] = set()
    # Without a valid manifest there are no files to remove; a link in its place is an error.
    with suppress(FileNotFoundError):
        text = folder.read(MANIFEST, MAX_HEADER_BYTES)
        with suppress(StorageError):
            _parse(text, MANIFEST).map(lambda array: outdated.add(array.file))
    written: list[str] = []

    def write(tensor: Tensor) -> _StoredArray:
        file = f"{len(written):03}-{token}.bin"
        written.append(file)
        flat: Any = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        crc32 = folder.write(file, [memoryview(flat)])
        return _StoredArray(file, tensor.dtype, tuple(tensor.shape), crc32)

    try:
        manifest, _ = seal(_to_document(saved.map(write)), indent=1)
        # The names of the files are on the disk before the manifest that lists them.
        folder.sync()
        folder.replace(MANIFEST, manifest, completes=True)
    except UnsyncedError:
        raise
    except BaseException:
        folder.discard(written)
        raise
    left = {name for name in folder.names() if name in outdated or _LEFTOVER.fullmatch(name)}
    folder.discard(left.difference(written))


def _to_document(content: Content[_StoredArray]) -> Document:
    layout, sampler = content.layout, content.sampler
    groups = {} if layout is None else layout.groups
    arrays = {name: array for name, array in sampler.items() if isinstance(array, _StoredArray)}
    return {
        "format": FORMAT,
        "version": VERSION,
        "rows": content.rows,
        "batch": list(content.batch),
        "cursor": content.cursor,
        "max_rows": content.max_rows,
        "write_count": content.write_count,
        "leaves": [{"key": list(path), **leaf.to_dict()} for path, leaf in content.leaves.items()],
        "begins": content.begins.to_dict(),
        "groups": [{"key": list(path), "batch": list(batch)} for path, batch in groups.items()],
        "names": [] if layout is None else list(layout.names),
        "sampler": {name: state for name, state in sampler.items() if name not in arrays},
        "sampler_arrays": {name: array.to_dict() for name, array in arrays.items()},
    }


def load(folder: FilePath) -> Saved:
    """Read what :func:`save` wrote; again if another process saved in the meantime."""
    with (
        report_read_errors(
            f"the buffer in {folder}",
            "check the permissions of the folder and its files",
            missing=_missing(folder, MANIFEST),
        ),
        Container.open(folder) as container,
    ):
        for _ in range(_ATTEMPTS):
            text = container.read(MANIFEST, MAX_HEADER_BYTES)
            try:
                return _parse(text, folder / MANIFEST).map(partial(_map_file, container))
            except FileNotFoundError as error:
                if container.read(MANIFEST, MAX_HEADER_BYTES) == text:
                    raise _missing(folder, error.filename) from error
    raise StorageError(
        f"{folder} is being changed by another process", hint="wait until it has saved the buffer"
    )


def _missing(folder: FilePath, name: str) -> StorageError:
    return StorageError(f"{folder} has no saved buffer: {name} is missing", hint=_PASS_FOLDER)


def _map_file(folder: Container, array: _StoredArray) -> Tensor:
    """Map a file into memory, privately, after comparing its size and checksum."""
    path, size = folder.path / array.file, math.prod(array.shape) * array.dtype.itemsize
    with folder.open_file(array.file) as file:
        actual = os.fstat(file.fileno()).st_size
        if actual != size:
            raise StorageError(f"{path} has {actual:,} bytes instead of {size:,}", hint=_SAVE_AGAIN)
        if not size:
            return torch.empty(array.shape, dtype=array.dtype)
        data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
    if array.crc32 is not None and array.crc32 != f"{zlib.crc32(data):08x}":
        raise StorageError(f"{path} does not match its checksum", hint=_SAVE_AGAIN)
    try:
        return torch.frombuffer(data, dtype=array.dtype).reshape(array.shape)
    except (RuntimeError, ValueError, TypeError) as error:
        raise StorageError(f"{path} cannot be read as {array.dtype}", hint=_SAVE_AGAIN) from error


def _parse(text: bytes, source: str | FilePath) -> Content[_StoredArray]:
    """Read and validate a manifest; ``source`` is what an error message calls it."""
    document = parse_json(text, source)
    try:
        version = document["version"]
        if document["format"] != FORMAT or version not in (1, 2, VERSION):
            raise StorageError(
                f"{source} has format {document['format']!r} version {version!r}",
                hint=f"this release reads {FORMAT} versions 1 to {VERSION}",
            )
        if version == 2:
            end = len(text) - len(b'01234567"\n}')
            is_intact = text[end:] == b'%08x"\n}' % zlib.crc32(text[:end])
        else:
            is_intact = version == 1 or read_seal(text) is not None
        if not is_intact:
            raise StorageError(f"{source} does not match its checksum", hint=_DAMAGED)
        return _parse_document(document)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        reason = f"missing key {error}" if isinstance(error, KeyError) else str(error)
        raise StorageError(f"{source} is not a valid manifest: {reason}", hint=_DAMAGED) from error


def _parse_document(document: Document) -> Content[_StoredArray]:
    names = ("rows", "cursor", "max_rows", "write_count")
    rows, cursor, max_rows, write_count = (_count(document, name) for name in names)
    batch = validate_shape(document["batch"], "batch")
    width = math.prod(batch)
    if cursor >= max_rows or rows > max_rows or not width:
        raise ValueError("the numbers of rows contradict each other")
    first = document["version"] == 1
    shapes: dict[Path, tuple[int, ...]] = {}
    leaves: dict[Path, _StoredArray] = {}
    if not isinstance(document["leaves"], list):
        raise TypeError("leaves is not a list")
    for number, entry in enumerate(document["leaves"]):
        path = _path(entry["key"])
        shape = validate_shape(entry["shape"], "shape")
        shapes[path] = shape if first else shape[1 + len(batch) :]
        array = _array(entry | ({"file": f"{number:03}.bin"} if first else {}))
        full = validate_shape((rows, *batch, *shapes[path]), "shape")
        if path in leaves or (not first and array.shape != full):
            raise ValueError(f"the leaf {path} is listed twice or has another shape")
        leaves[path] = _StoredArray(array.file, array.dtype, full, array.crc32)
    begins = _StoredArray(f"{len(leaves):03}.bin", torch.bool, (rows, width), None)
    if not first:
        begins = _array(document["begins"])
    if begins.dtype is not torch.bool or begins.shape != (rows, width):
        raise ValueError("begins has another shape or dtype")
    arrays = {name: _array(entry) for name, entry in document.get("sampler_arrays", {}).items()}
    return Content(
        layout=_layout(document, shapes, leaves),
        leaves=leaves,
        begins=begins,
        rows=rows,
        batch=batch,
        cursor=cursor,
        max_rows=max_rows,
        write_count=write_count,
        sampler=dict(document["sampler"]) | arrays,
    )


def _layout(
    document: Document, shapes: dict[Path, tuple[int, ...]], leaves: Mapping[Path, _StoredArray]
) -> Layout | None:
    if not leaves:
        return None
    groups: dict[Path, torch.Size] = {}
    for group in document["groups"]:
        groups[_path(group["key"])] = torch.Size(validate_shape(group["batch"], "batch of a group"))
    for path, shape in [*shapes.items(), *groups.items()]:
        for end in range(len(path)):
            outer = groups[path[:end]]
            if tuple(shape[: len(outer)]) != tuple(outer):
                raise ValueError(f"{path} does not fit into the group around it")
    if shapes.keys() & groups.keys() or ((() in shapes) and len(shapes) > 1):
        raise ValueError("a key is a leaf and a group")
    names = tuple(document["names"])
    if any(not isinstance(name, str | None) for name in names):
        raise ValueError("names are not texts")
    if len(names) != len(groups.get((), ())):
        raise ValueError("names and dims differ in number")
    sizes = {path: torch.Size(shape) for path, shape in shapes.items()}
    return Layout({path: leaf.dtype for path, leaf in leaves.items()}, sizes, groups, names)


def _array(entry: Document) -> _StoredArray:
    file, crc32 = entry["file"], entry.get("crc32")
    if not isinstance(file, str) or not _FILE.fullmatch(file):
        raise ValueError(f"{file!r} is not the name of a data file")
    if crc32 is not None and not isinstance(crc32, str):
        raise ValueError(f"{crc32!r} is not a checksum")
    return _StoredArray(
        file, DTYPES[entry["dtype"]], validate_shape(entry["shape"], "shape"), crc32
    )


def _path(parts: object) -> Path:
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"{parts!r} is not a key")
    if len(parts) > MAX_NESTING:
        raise ValueError(f"a key has {len(parts)} parts")
    return tuple(parts)


def _count(document: Document, name: str) -> int:
    value = document[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(f"{name} is {value!r}")
    return value


def save_state(folder: str | os.PathLike[str], name: str, state: StateDict) -> None:
    """Write a state of plain data and tensors, which become lists.

    Args:
        folder: Folder; created if it does not exist.
        name: Name of the file.
        state: State.
    """
    lists = {
        key: value.tolist() if isinstance(value, Tensor) else value for key, value in state.items()
    }
    make_folders(FilePath(folder))
    with Container.open(FilePath(folder)) as container:
        container.replace(name, json.dumps(lists))


def load_state(folder: str | os.PathLike[str], name: str) -> StateDict:
    """Read what :func:`save_state` wrote.

    Raises:
        StorageError: The file is missing, or not a JSON object.
    """
    path = FilePath(folder)
    try:
        with Container.open(path) as container:
            state = parse_json(container.read(name, MAX_HEADER_BYTES), path / name)
    except FileNotFoundError as error:
        raise StorageError(f"{path} has no {name}", hint=_PASS_FOLDER) from error
    if not isinstance(state, dict):
        raise StorageError(f"{path / name} is not a state", hint="save it again")
    return state
