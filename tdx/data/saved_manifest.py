"""Files of a saved buffer, which are untrusted input: its manifest, and small states."""

from __future__ import annotations

import json
import math
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import torch
from torch import Tensor

from tdx.data.layout import Layout, Path
from tdx.foundation.confined_files import open_below, open_folder, write_below
from tdx.foundation.errors import StorageError
from tdx.foundation.files import make_folders
from tdx.foundation.untrusted import MAX_HEADER_BYTES, MAX_NESTING, parse_json, validate_shape


def save_state(folder: str | os.PathLike[str], name: str, state: dict[str, Any]) -> None:
    """Write a state of plain data and tensors, which become lists.

    Args:
        folder: Folder; created if it does not exist.
        name: Name of the file.
        state: State.
    """
    lists = {
        key: each.tolist() if isinstance(each, Tensor) else each for key, each in state.items()
    }
    make_folders(FilePath(folder))
    with open_folder(folder if isinstance(folder, str) else FilePath(folder)) as descriptor:
        write_below(descriptor, name, json.dumps(lists))


def load_state(folder: str | os.PathLike[str], name: str) -> dict[str, Any]:
    """Read what :func:`save_state` wrote.

    Raises:
        StorageError: The file is missing, or not a JSON object.
    """
    path = FilePath(folder)
    try:
        with (
            open_folder(path) as descriptor,
            os.fdopen(open_below(descriptor, name), "rb") as file,
        ):
            state = parse_json(file.read(MAX_HEADER_BYTES), path / name)
    except FileNotFoundError as error:
        raise StorageError(
            f"{path} has no {name}", hint="pass the folder that dumps() was given"
        ) from error
    if not isinstance(state, dict):
        raise StorageError(f"{path / name} is not a state", hint="save it again")
    return state


FORMAT, VERSION = "tdx-replay-buffer", 2
MANIFEST = "buffer.json"
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
}
_NO_CHECKSUM = "0" * 8
_CHECKSUM = re.compile(rb'"crc32": "([0-9a-f]{8})"\n}\Z')
_FILE = re.compile(r"\d{3,9}(-[0-9a-f]{16})?[.]bin")
_DAMAGED = "the file is damaged: save the buffer again, or restore it from a copy"


@dataclass(frozen=True)
class Array:
    """A file of raw numbers.

    Args:
        file: Its name in the folder.
        dtype: Type of the numbers.
        shape: Shape of the tensor.
        crc32: Checksum of its bytes in hex; ``None`` if it was saved without one.
    """

    file: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    crc32: str | None

    @property
    def size(self) -> int:
        """Number of bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def to_dict(self) -> dict[str, Any]:
        """Return the array as plain data."""
        return {
            "file": self.file,
            "dtype": str(self.dtype).removeprefix("torch."),
            "shape": list(self.shape),
            "crc32": self.crc32,
        }


@dataclass(frozen=True)
class Manifest:
    """Content of ``buffer.json``; see :class:`tdx.data.saved.Saved`."""

    layout: Layout | None
    leaves: Mapping[Path, Array]
    begins: Array
    rows: int
    batch: tuple[int, ...]
    cursor: int
    max_rows: int
    write_count: int
    sampler: dict[str, Any] = field(default_factory=dict)
    sampler_arrays: Mapping[str, Array] = field(default_factory=dict)

    @property
    def arrays(self) -> Iterator[Array]:
        """Every file."""
        yield from self.leaves.values()
        yield self.begins
        yield from self.sampler_arrays.values()


def manifest_text(manifest: Manifest) -> bytes:
    """Return the manifest as JSON that ends with a checksum of the bytes before it."""
    layout = manifest.layout
    groups = {} if layout is None else layout.groups
    leaves = [{"key": list(path), **each.to_dict()} for path, each in manifest.leaves.items()]
    document = {
        "format": FORMAT,
        "version": VERSION,
        "rows": manifest.rows,
        "batch": list(manifest.batch),
        "cursor": manifest.cursor,
        "max_rows": manifest.max_rows,
        "write_count": manifest.write_count,
        "leaves": leaves,
        "begins": manifest.begins.to_dict(),
        "groups": [{"key": list(path), "batch": list(batch)} for path, batch in groups.items()],
        "names": [] if layout is None else list(layout.names),
        "sampler": manifest.sampler,
        "sampler_arrays": {name: each.to_dict() for name, each in manifest.sampler_arrays.items()},
        "crc32": _NO_CHECKSUM,
    }
    text = json.dumps(document, indent=1).encode()
    end = text.rindex(_NO_CHECKSUM.encode())
    return text[:end] + f"{zlib.crc32(text[:end]):08x}".encode() + text[end + len(_NO_CHECKSUM) :]


def parse_manifest(text: bytes, source: str | FilePath) -> Manifest:
    """Read and validate a manifest.

    Args:
        text: The JSON document.
        source: What an error message calls it.

    Raises:
        StorageError: It does not match its checksum, is of another version or format, or its
            entries contradict each other.
    """
    document = parse_json(text, source)
    try:
        if document["format"] != FORMAT or document["version"] not in (1, VERSION):
            raise StorageError(
                f"{source} has format {document['format']!r} version {document['version']!r}",
                hint=f"this release reads {FORMAT} versions 1 and {VERSION}",
            )
        if document["version"] == VERSION:
            _check_checksum(text, source)
        return _manifest(document)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        reason = f"missing key {error}" if isinstance(error, KeyError) else str(error)
        raise StorageError(f"{source} is not a valid manifest: {reason}", hint=_DAMAGED) from error


def _check_checksum(text: bytes, source: str | FilePath) -> None:
    found = _CHECKSUM.search(text)
    if found is None or zlib.crc32(text[: found.start(1)]) != int(found[1], 16):
        raise StorageError(f"{source} does not match its checksum", hint=_DAMAGED)


def _manifest(document: Mapping[str, Any]) -> Manifest:
    names = ("rows", "cursor", "max_rows", "write_count")
    rows, cursor, max_rows, write_count = (_count(document, name) for name in names)
    batch = validate_shape(document["batch"], "batch")
    width = math.prod(batch)
    if cursor >= max_rows or rows > max_rows or not width:
        raise ValueError("the numbers of rows contradict each other")
    first = document["version"] == 1
    shapes: dict[Path, tuple[int, ...]] = {}
    leaves: dict[Path, Array] = {}
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
        leaves[path] = Array(array.file, array.dtype, full, array.crc32)
    begins = Array(f"{len(leaves):03}.bin", torch.bool, (rows, width), None)
    if not first:
        begins = _array(document["begins"])
    if begins.dtype is not torch.bool or begins.shape != (rows, width):
        raise ValueError("begins has another shape or dtype")
    arrays = {name: _array(each) for name, each in document.get("sampler_arrays", {}).items()}
    return Manifest(
        layout=_layout(document, shapes, leaves),
        leaves=leaves,
        begins=begins,
        rows=rows,
        batch=batch,
        cursor=cursor,
        max_rows=max_rows,
        write_count=write_count,
        sampler=dict(document["sampler"]),
        sampler_arrays=arrays,
    )


def _layout(
    document: Mapping[str, Any], shapes: dict[Path, tuple[int, ...]], leaves: Mapping[Path, Array]
) -> Layout | None:
    if not leaves:
        return None
    groups: dict[Path, torch.Size] = {}
    for each in document["groups"]:
        groups[_path(each["key"])] = torch.Size(validate_shape(each["batch"], "batch of a group"))
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
    return Layout({path: each.dtype for path, each in leaves.items()}, sizes, groups, names)


def _array(entry: Mapping[str, Any]) -> Array:
    file, crc32 = entry["file"], entry.get("crc32")
    if not isinstance(file, str) or not _FILE.fullmatch(file):
        raise ValueError(f"{file!r} is not the name of a data file")
    if crc32 is not None and not isinstance(crc32, str):
        raise ValueError(f"{crc32!r} is not a checksum")
    return Array(file, DTYPES[entry["dtype"]], validate_shape(entry["shape"], "shape"), crc32)


def _path(parts: Any) -> Path:
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"{parts!r} is not a key")
    if len(parts) > MAX_NESTING:
        raise ValueError(f"a key has {len(parts)} parts")
    return tuple(parts)


def _count(document: Mapping[str, Any], name: str) -> int:
    value = document[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(f"{name} is {value!r}")
    return value
