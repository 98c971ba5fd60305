"""Checks on Minari datasets from strangers, made before Minari opens them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tdx.errors import StorageError
from tdx.rollouts.formats.hdf5_checks import checked_datasets, open_hdf5
from tdx.rollouts.formats.untrusted_files import MAX_NOTE_BYTES, array_bytes, check_folder
from tdx.untrusted import parse_json, read_limited, validate_shape

_METADATA, _NUMBERS = "data/metadata.json", "data/main_data.hdf5"
_MAX_OBJECTS = 10_000_000
_DTYPE = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)")
_SPACES = ("observation_space", "action_space")
_AGAIN = "write the dataset again with Minari 0.5 or newer"


def check_dataset(folder: Path) -> tuple[dict[str, Any], int]:
    """Check the metadata and the HDF5 file of a dataset.

    Args:
        folder: Folder of the dataset.

    Returns:
        The metadata, and the number of bytes that the dataset has after decompression.

    Raises:
        StorageError: There are links, spaces are missing or odd, or the HDF5 file is not safe.
    """
    files = check_folder(folder)
    if _METADATA not in files:
        raise StorageError(
            f"{folder} cannot be read as a Minari dataset: {_METADATA} is missing",
            hint="name the folder that `data` is in",
        )
    metadata = parse_json(read_limited(folder / _METADATA, MAX_NOTE_BYTES), folder / _METADATA)
    if not isinstance(metadata, dict):
        raise StorageError(f"{folder / _METADATA} is not a JSON object", hint=_AGAIN)
    if metadata.get("data_format") != "hdf5" or _NUMBERS not in files:
        raise StorageError(
            f"{folder} has the data format {metadata.get('data_format')!r}",
            hint="only Minari datasets in HDF5 are imported",
        )
    for name in _SPACES:
        # Without a space, Minari would make the env that env_spec describes, and run its code.
        if not isinstance(metadata.get(name), str):
            raise StorageError(f"{folder / _METADATA} has no {name}", hint=_AGAIN)
        _check_space(parse_json(metadata[name], folder / _METADATA), folder)
    path = folder / _NUMBERS
    with open_hdf5(path) as file:
        datasets = checked_datasets(path, file, _MAX_OBJECTS)
        sizes = (array_bytes(each.shape or (), each.dtype, name) for name, each in datasets.items())
        return metadata, sum(sizes)


def _check_space(space: Any, folder: Path) -> None:
    for each in _parts(space):
        dtype, shape = each.get("dtype", "int64"), each.get("shape", [])
        if not isinstance(dtype, str) or not _DTYPE.fullmatch(dtype):
            raise StorageError(f"a space in {folder} has the dtype {dtype!r}", hint=_AGAIN)
        validate_shape(shape, f"a space in {folder}")


def _parts(space: Any) -> Iterator[dict[str, Any]]:
    """Every space in a space; the depth is limited by the parser."""
    if isinstance(space, dict):
        if "type" in space:
            yield space
        for each in space.values():
            yield from _parts(each)
    elif isinstance(space, list):
        for each in space:
            yield from _parts(each)
