"""Open recorded data of any format as a dataset: LeRobot, Minari, dumps, statistics of openpi."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tdx.foundation.errors import StorageError
from tdx.foundation.keys import format_key, normalize_key
from tdx.stacks.checkpoints import is_checkpoint, is_dataset, read_checkpoint, read_dataset
from tdx.stacks.checkpoints.dataset import BATCH_ROWS, Dataset, DatasetFeature
from tdx.stacks.checkpoints.openpi import NAMES_IN_DATA

if TYPE_CHECKING:
    from tdx.rollouts.dump.reading import Dump
    from tdx.stacks.checkpoints.model import Array

_BATCH_BYTES = 2**26


def is_minari(path: str | Path) -> bool:
    """Return True for the folder of a Minari dataset.

    Example:
        >>> is_minari("pipeline.yaml")
        False
    """
    from tdx.rollouts.formats.registry import find_format

    return find_format("minari").is_in(Path(path))


def is_recorded(path: str | Path) -> bool:
    """Return True for the folder of a LeRobot or Minari dataset."""
    return is_dataset(path) or is_minari(path)


def read_data(path: str | Path) -> Dataset:
    """Open a LeRobot or Minari dataset, a dump, or the statistics that openpi stores.

    Args:
        path: Its folder.

    Raises:
        MissingPackageError: A package that reads it is not installed.
        StorageError: It is none of these, or cannot be read.
    """
    from tdx.rollouts.dump.folder import MANIFEST

    path = Path(path)
    if is_minari(path):
        return _read_minari(path)
    if (path / MANIFEST).exists():
        return _read_dump(path)
    if not is_dataset(path) and is_checkpoint(path):
        return _read_norm_stats(path)
    return read_dataset(path)


def _read_minari(path: Path) -> Dataset:
    from tdx.rollouts.formats.registry import find_format, load_exporter

    load_exporter(find_format("minari"))
    from tdx.rollouts.formats.minari import read_steps

    with read_steps(path) as reader:
        columns = {
            name: column
            for name, column in reader.columns().items()
            if not name.startswith("next.") and column.dtype.kind in "biuf"
        }
        steps = next((column.shape[0] for column in columns.values()), 0)
    features = {
        # An observation without dimensions is one number.
        name: _feature(column.dtype.name, column.shape[1:] or (1,))
        for name, column in columns.items()
    }
    rows = partial(_minari_rows, path, features, steps)
    return _dataset(path, "a Minari dataset", steps, features, rows)


def _minari_rows(
    path: Path, features: Mapping[str, DatasetFeature], steps: int, keys: Sequence[str]
) -> Iterator[Mapping[str, Array]]:
    from tdx.rollouts.formats.minari import read_steps

    size = _rows_of(features, keys)
    with read_steps(path) as reader:
        for start in range(0, steps, size):
            arrays = reader.read_steps(keys, start, min(start + size, steps))
            yield {key: _flatten(array, features[key], key, path) for key, array in arrays.items()}


def _read_dump(path: Path) -> Dataset:
    from tdx.rollouts.dump.encoding import DTYPES
    from tdx.rollouts.dump.reading import open_dump

    dump = open_dump(path)
    manifest = dump.manifest
    dims = len(manifest.batch_size)
    stored = () if manifest.data is None else manifest.data.leaves
    features = {
        format_key(normalize_key(tuple(spec["key"]))): _feature(
            spec["dtype"], tuple(spec["shape"][dims:]) or (1,)
        )
        for spec in manifest.specs
        if spec["part"] in ("observation", "action")
        and tuple(spec["key"]) in stored
        and not DTYPES[spec["dtype"]].is_complex
    }
    keys = {format_key(normalize_key(tuple(spec["key"]))): spec["key"] for spec in manifest.specs}
    steps = len(dump) * math.prod(manifest.batch_size)
    return _dataset(path, "a dump", steps, features, partial(_dump_rows, dump, features, keys))


def _dump_rows(
    dump: Dump,
    features: Mapping[str, DatasetFeature],
    paths: Mapping[str, Sequence[str]],
    keys: Sequence[str],
) -> Iterator[Mapping[str, Array]]:
    import torch

    envs = math.prod(dump.manifest.batch_size)
    size = max(1, _rows_of(features, keys) // envs)
    for start in range(0, len(dump), size):
        steps = dump[start : start + size]
        rows = {}
        for key in keys:
            value = steps[tuple(paths[key])]
            if value.dtype.is_floating_point and value.dtype is not torch.float64:
                value = value.float()  # NumPy has no bfloat16
            rows[key] = _flatten(value.numpy(), features[key], key, dump.path)
        yield rows


def _read_norm_stats(path: Path) -> Dataset:
    checkpoint = read_checkpoint(path)
    if checkpoint.library != "openpi":
        raise StorageError(
            f"{path} is a policy checkpoint, not a dataset",
            hint="pass a LeRobot or Minari dataset, a dump, or the norm_stats.json of openpi",
        )
    step = checkpoint.processors[0].steps[0]
    names = {key: NAMES_IN_DATA.get(key, key) for key in step.features}
    features = {
        names[key]: DatasetFeature("float32", feature.shape)
        for key, feature in step.features.items()
        if key in step.statistics
    }
    stored = {names[key]: values for key, values in step.statistics.items() if key in names}
    title = "statistics of openpi"
    return Dataset(path, title, None, 0, features, stored, (), lambda keys: iter(()))


def _feature(dtype: str, shape: tuple[int, ...]) -> DatasetFeature:
    is_image = dtype == "uint8" and len(shape) == 3
    return DatasetFeature("image" if is_image else dtype, shape)


def _dataset(
    path: Path,
    title: str,
    steps: int,
    features: Mapping[str, DatasetFeature],
    read_rows: partial[Iterator[Mapping[str, Array]]],
) -> Dataset:
    vectors = [key for key, feature in features.items() if not feature.is_image]
    return Dataset(path, title, None, steps, features, None, vectors, read_rows)


def _rows_of(features: Mapping[str, DatasetFeature], keys: Sequence[str]) -> int:
    """Return how many rows are read at a time."""
    width = sum(math.prod(features[key].shape) for key in keys)
    return max(1, min(BATCH_ROWS, _BATCH_BYTES // (8 * max(1, width))))


def _flatten(array: Array, feature: DatasetFeature, key: str, path: Path) -> Array:
    width = math.prod(feature.shape)
    if array.size % max(width, 1):
        raise StorageError(f"{key!r} in {path} does not have the shape {list(feature.shape)}")
    rows: Array = np.ascontiguousarray(array).reshape(-1, width)
    return rows
