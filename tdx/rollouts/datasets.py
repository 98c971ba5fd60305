"""Open recorded data of any format as a dataset: LeRobot, Minari, dumps, statistics of openpi."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Never

import numpy as np

from tdx.foundation.errors import StorageError
from tdx.foundation.files import is_contract
from tdx.foundation.keys import format_key, normalize_key
from tdx.rollouts.samples import SAMPLE_FILES, read_samples
from tdx.stacks.checkpoints import is_checkpoint, is_dataset, read_checkpoint, read_dataset
from tdx.stacks.checkpoints.dataset import Dataset, DatasetFeature, flatten_rows, rows_at_once
from tdx.stacks.checkpoints.frames import MAX_FRAMES, spread
from tdx.stacks.checkpoints.openpi import NAMES_IN_DATA

if TYPE_CHECKING:
    from torch import Tensor

    from tdx.foundation.array_files import Array
    from tdx.rollouts.dump.reading import Dump


def read_data(path: str | Path, *, has_results: bool = False) -> Dataset:
    """Open a LeRobot or Minari dataset, a dump, a file of samples, or the statistics of openpi.

    A file of samples has arrays ``[N, ...]`` by key. With ``has_results``, a dump has the rewards
    and flags that its steps returned too.
    """
    path = Path(path)
    if is_dump(path):
        return _read_dump(path, has_results)
    if path.suffix in SAMPLE_FILES:
        return _read_samples(path)
    if not is_dataset(path) and is_checkpoint(path):
        return _read_norm_stats(path)
    return read_dataset(path)


def is_dump(path: str | Path) -> bool:
    """Return True for the folder of a dump.

    Example:
        >>> is_dump("pipeline.yaml")
        False
    """
    from tdx.rollouts.dump.folder import MANIFEST

    return not is_contract(path) and Path(path, MANIFEST).exists()


def _read_dump(path: Path, has_results: bool) -> Dataset:
    from tdx.rollouts.dump.encoding import DTYPES
    from tdx.rollouts.dump.reading import open_dump

    dump = open_dump(path)
    manifest = dump.manifest
    dims = len(manifest.batch_size)
    stored = () if manifest.data is None else manifest.data.leaves
    features: dict[str, DatasetFeature] = {}
    paths: dict[str, Sequence[str]] = {}
    for spec in manifest.specs:
        entry = tuple(spec["key"])
        if spec["part"] in ("reward", "done") and has_results:
            entry = ("next", *entry)
        elif spec["part"] not in ("observation", "action"):
            continue
        if entry in stored and not DTYPES[spec["dtype"]].is_complex:
            key = format_key(normalize_key(entry))
            paths[key] = entry
            features[key] = DatasetFeature(spec["dtype"], tuple(spec["shape"][dims:]) or (1,))
    steps = len(dump) * math.prod(manifest.batch_size)
    return Dataset(
        path=path,
        title="a dump",
        fps=None,
        steps=steps,
        features=features,
        stored=None,
        vectors=[key for key, feature in features.items() if not feature.is_image],
        read_rows=partial(_dump_rows, dump, features, paths),
        read_frames=partial(_dump_frames, dump, paths),
    )


def _dump_rows(
    dump: Dump,
    features: Mapping[str, DatasetFeature],
    paths: Mapping[str, Sequence[str]],
    keys: Sequence[str],
) -> Iterator[Mapping[str, Array]]:
    if not keys:
        return
    envs = math.prod(dump.manifest.batch_size)
    size = max(1, rows_at_once(features, keys) // envs)
    for start in range(0, len(dump), size):
        steps = dump[start : start + size]
        rows = {}
        for key in keys:
            array = _to_array(steps[tuple(paths[key])])
            rows[key] = flatten_rows(array, features[key], f"{key!r} in {dump.path}")
        yield rows


def _dump_frames(dump: Dump, paths: Mapping[str, Sequence[str]], key: str) -> Iterator[Array]:
    dims = len(dump.manifest.batch_size)
    for number, index in enumerate(spread(len(dump), MAX_FRAMES)):
        array = _to_array(dump[index][tuple(paths[key])])
        frames = array.reshape(-1, *array.shape[dims:])
        # Of each step, the frame of another env.
        yield frames[number % len(frames)]


def _to_array(value: Tensor) -> Array:
    import torch

    if value.dtype.is_floating_point and value.dtype is not torch.float64:
        value = value.float()  # NumPy has no bfloat16
    array: Array = value.numpy()
    return array


def _read_samples(path: Path) -> Dataset:
    samples = read_samples(path)
    arrays = {
        key: array
        for key in samples[0]
        if (array := np.stack([np.asarray(sample[key]) for sample in samples])).dtype.kind in "biuf"
    }
    features = {
        key: DatasetFeature(array.dtype.name, array.shape[1:] or (1,))
        for key, array in arrays.items()
    }
    vectors = [key for key, feature in features.items() if not feature.is_image]

    def read_rows(keys: Sequence[str]) -> Iterator[Mapping[str, Array]]:
        if keys:
            yield {key: flatten_rows(arrays[key], features[key], repr(key)) for key in keys}

    def read_frames(key: str) -> Iterator[Array]:
        return (arrays[key][index] for index in spread(len(samples), MAX_FRAMES))

    count = len(samples)
    return Dataset(
        *(path, "a file of samples", None, count, features, None, vectors, read_rows, read_frames)
    )


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
    return Dataset(path, title, None, 0, features, stored, (), _nothing, _nothing)


def _nothing(keys: object) -> Iterator[Never]:
    return iter(())
