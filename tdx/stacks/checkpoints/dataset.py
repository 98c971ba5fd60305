"""Read LeRobot datasets, versions 2.1 and 3.0: their stored statistics, and their data.

Statistics of datasets of any format are computed here; ``frames.py`` samples images and videos.

References:
    https://huggingface.co/docs/lerobot/lerobot-dataset-v3
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, overload

import numpy as np

from tdx.foundation.container import Container
from tdx.foundation.errors import MissingPackageError, StorageError, explain_os_error, install_extra
from tdx.foundation.untrusted import MAX_HEADER_BYTES, parse_json, validate_shape
from tdx.stacks.checkpoints.model import Array, Json, parse_fps

if TYPE_CHECKING:
    from pyarrow import ChunkedArray

INFO, STATS, EPISODES_STATS = "meta/info.json", "meta/stats.json", "meta/episodes_stats.jsonl"
QUANTILES: Mapping[str, float] = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
SKETCH_SIZE = 1_000
"""Size of a KLL sketch: a quantile is off by at most 0.4 % of the steps, with 99 % confidence."""
BATCH_ROWS = 65_536

RowReader = Callable[[Sequence[str]], Iterator[Mapping[str, Array]]]
"""Reads features in parts, each an array ``[n, numbers]`` by feature."""
Progress = Callable[[int, int], None]
"""Called with the steps that were read, and their number."""


@dataclass(frozen=True, slots=True)
class DatasetFeature:
    """A feature of a dataset.

    Args:
        dtype: Such as ``float32``, ``video`` or ``image``.
        shape: Shape of one step; images are ``(H, W, C)``.
        names: Names of its numbers, such as joints; empty if there are none.
    """

    dtype: str
    shape: tuple[int, ...]
    names: tuple[str, ...] = ()

    @property
    def is_image(self) -> bool:
        """True for images and videos."""
        return self.dtype in ("video", "image")


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset, without its data.

    Args:
        path: Its folder.
        title: What it is, for messages.
        fps: Steps per second; ``None`` if it is not declared.
        steps: Number of steps that it declares.
        features: Features by key.
        stored: Statistics that it stores, by feature and name; ``None`` if its format has none.
        vectors: Keys of the numeric features of observations and actions.
        read_rows: Reads them.
    """

    path: Path
    title: str
    fps: float | None
    steps: int
    features: Mapping[str, DatasetFeature]
    stored: Mapping[str, Mapping[str, Array]] | None
    vectors: Sequence[str]
    read_rows: RowReader

    @property
    def images(self) -> tuple[str, ...]:
        """Keys of the images and videos."""
        return tuple(key for key, feature in self.features.items() if feature.is_image)


def is_dataset(path: str | Path) -> bool:
    """Return True for the folder of a LeRobot dataset.

    Example:
        >>> is_dataset("pipeline.yaml")
        False
    """
    return Path(path, INFO).is_file()


def read_dataset(path: str | Path) -> Dataset:
    """Read what a dataset declares, and the statistics that it stores.

    Args:
        path: Its folder.

    Raises:
        StorageError: A file is missing or malformed.
    """
    folder = Path(path)
    try:
        with Container.open(folder) as container:
            document = parse_json(container.read(INFO, MAX_HEADER_BYTES), INFO)
            info = _mapping(document, INFO)
            stored = _read_statistics(container)
    except StorageError:
        raise
    except OSError as error:
        reason = explain_os_error(error)
        raise StorageError(f"{folder} is not a LeRobot dataset: {INFO}: {reason}") from error
    features = {
        key: _feature(_mapping(value, f"feature {key!r} of {INFO}"), key)
        for key, value in _mapping(info.get("features"), f"features of {INFO}").items()
    }
    # Without what LeRobot adds, such as ``index``.
    vectors = [
        key
        for key, feature in features.items()
        if key.startswith(("observation", "action"))
        and not feature.is_image
        and feature.dtype.startswith(("float", "int", "uint", "bool"))
    ]
    steps = info.get("total_frames")
    return Dataset(
        folder,
        "a LeRobot dataset",
        parse_fps(info.get("fps")),
        steps if isinstance(steps, int) else 0,
        features,
        stored,
        vectors,
        partial(_read_tables, folder, features),
    )


def _feature(value: Mapping[str, Json], key: str) -> DatasetFeature:
    dtype, names = value.get("dtype"), value.get("names")
    if isinstance(names, dict):
        # {"motors": ["shoulder", "elbow"]}, or one position by name.
        first = next(iter(names.values()), None)
        names = first if isinstance(first, list) else list(names)
    shape = validate_shape(_list(value.get("shape")), f"the shape of {key!r}")
    listed = tuple(str(name) for name in names) if isinstance(names, list) else ()
    return DatasetFeature(str(dtype), shape, listed)


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _mapping(value: object, what: str) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise StorageError(f"{what} is not a JSON object", hint="download the dataset again")
    return value


def _read_statistics(container: Container) -> dict[str, dict[str, Array]]:
    try:
        document = _mapping(parse_json(container.read(STATS, MAX_HEADER_BYTES), STATS), STATS)
        return {key: _arrays(value, STATS) for key, value in document.items()}
    except FileNotFoundError:
        pass
    try:
        lines = container.read(EPISODES_STATS, MAX_HEADER_BYTES).splitlines()
    except FileNotFoundError:
        return {}
    episodes = []
    for line in lines:
        document = _mapping(parse_json(line, EPISODES_STATS), EPISODES_STATS)
        stats = _mapping(document.get("stats"), EPISODES_STATS)
        episodes.append({key: _arrays(value, EPISODES_STATS) for key, value in stats.items()})
    keys = dict.fromkeys(key for episode in episodes for key in episode)
    return {key: merge([episode[key] for episode in episodes if key in episode]) for key in keys}


def _arrays(value: object, what: str) -> dict[str, Array]:
    arrays = {}
    for name, numbers in _mapping(value, what).items():
        try:
            arrays[name] = np.asarray(numbers, np.float64)
        except (ValueError, TypeError) as error:
            raise StorageError(f"{name!r} in {what} is not an array of numbers") from error
    return arrays


class DatasetSamples(Sequence[Mapping[str, Array]]):
    """The steps of a dataset as samples, without images; one part of the data is in memory.

    Args:
        dataset: The dataset.

    Raises:
        MissingPackageError: pyarrow is not installed.
        StorageError: A file cannot be read, or the dataset has no numeric features.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        if not dataset.vectors:
            raise StorageError(f"{dataset.path} has no numeric features")
        self._begin()

    def _begin(self) -> None:
        self._batches = self._dataset.read_rows(self._dataset.vectors)
        self._batch: Mapping[str, Array] = {}
        self._start, self._count = 0, 0

    def __len__(self) -> int:
        return self._dataset.steps

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Array]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Mapping[str, Array]]: ...

    def __getitem__(
        self, index: int | slice
    ) -> Mapping[str, Array] | Sequence[Mapping[str, Array]]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        if index < self._start:
            self._begin()
        while index >= self._start + self._count:
            self._start += self._count
            batch = next(self._batches, None)
            if batch is None:
                self._begin()
                raise StorageError(
                    f"{self._dataset.path} has fewer steps than it declares, {len(self):,}",
                    hint="download all of its data",
                )
            self._batch = batch
            self._count = len(next(iter(batch.values())))
        # A copy: arrays of Arrow cannot be written to.
        return {
            key: rows[index - self._start].reshape(self._dataset.features[key].shape).copy()
            for key, rows in self._batch.items()
        }


def merge(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Return the statistics of several episodes together; quantiles have no exact merge.

    The variance is that of the law of total variance.

    Args:
        parts: Statistics of each, with ``count``.
    """
    if not all({"mean", "std", "count"} <= part.keys() for part in parts):
        return {}
    counts = np.asarray([float(part["count"].ravel()[0]) for part in parts])
    weights = counts / counts.sum()
    means = np.stack([part["mean"] for part in parts])
    variances = np.stack([np.square(part["std"]) for part in parts])
    mean = np.tensordot(weights, means, 1)
    variance = np.tensordot(weights, variances + np.square(means - mean), 1)
    merged = {"mean": mean, "std": np.sqrt(variance), "count": np.asarray([counts.sum()])}
    for name, reduce in (("min", np.min), ("max", np.max)):
        if all(name in part for part in parts):
            merged[name] = reduce(np.stack([part[name] for part in parts]), axis=0)
    return merged


class RunningStatistics:
    """Mean, standard deviation, extremes and quantiles of rows, in bounded memory.

    Args:
        width: Numbers in a row.
    """

    def __init__(self, width: int) -> None:
        try:
            from datasketches import vector_of_kll_floats_sketches
        except ImportError as error:
            raise MissingPackageError(
                "datasketches is not installed", hint=install_extra("datasets")
            ) from error
        self.count = 0
        self.nonfinite = 0
        self._shift = np.zeros(width)
        self._sum = np.zeros(width)
        self._squares = np.zeros(width)
        self._low = np.full(width, np.inf)
        self._high = np.full(width, -np.inf)
        self._sketch = vector_of_kll_floats_sketches(SKETCH_SIZE, width)

    def add(self, rows: Array) -> None:
        """Add rows ``[n, width]``; rows with a value that is not finite are counted apart."""
        finite = np.isfinite(rows).all(1) if np.issubdtype(rows.dtype, np.floating) else None
        if finite is not None and not finite.all():
            self.nonfinite += int((~finite).sum())
            rows = rows[finite]
        if not len(rows):
            return
        wide = rows.astype(np.float64)
        if self.count == 0:
            # Sums of squares of values far from zero would lose their digits.
            self._shift = wide.mean(0)
        self.count += len(rows)
        self._low = np.minimum(self._low, wide.min(0))
        self._high = np.maximum(self._high, wide.max(0))
        wide -= self._shift
        self._sum += wide.sum(0)
        self._squares += np.einsum("ij,ij->j", wide, wide)
        # A copy: the sketch refuses arrays that cannot be written to, such as those of Arrow.
        self._sketch.update(np.array(rows, np.float32, order="C"))

    def result(self) -> dict[str, Array]:
        """Return the statistics by name, each ``[width]``; empty without a row."""
        if self.count == 0:
            return {}
        mean = self._sum / self.count
        variance = np.maximum(self._squares / self.count - np.square(mean), 0)
        quantiles = np.asarray(self._sketch.get_quantiles(list(QUANTILES.values())))
        return {
            "mean": mean + self._shift,
            "std": np.sqrt(variance),
            "min": self._low,
            "max": self._high,
            "count": np.asarray([self.count]),
            **{name: quantiles[:, index] for index, name in enumerate(QUANTILES)},
        }

    def ranks(self, values: Array) -> Array:
        """Return the share of rows that do not exceed each value, ``[width]``."""
        # Each sketch gives the ranks of all values.
        ranks: Array = np.asarray(self._sketch.get_ranks(np.asarray(values, np.float32)))
        return np.diagonal(ranks)


def compute_statistics(
    dataset: Dataset, keys: Sequence[str] | None = None, on_progress: Progress | None = None
) -> dict[str, RunningStatistics]:
    """Compute the statistics of the numeric features of a dataset in one pass over its data.

    Args:
        dataset: The dataset.
        keys: Features. Defaults to all numeric ones.
        on_progress: Called after each part.

    Raises:
        MissingPackageError: pyarrow or datasketches is not installed.
        StorageError: A file cannot be read, or has another form than declared.
    """
    chosen = [key for key in dataset.vectors if keys is None or key in keys]
    running = {key: RunningStatistics(int(np.prod(dataset.features[key].shape))) for key in chosen}
    done = 0
    for batch in dataset.read_rows(chosen):
        for key, rows in batch.items():
            running[key].add(rows)
        done += len(next(iter(batch.values())))
        if on_progress is not None:
            on_progress(done, max(dataset.steps, done))
    if chosen and not done:
        raise StorageError(
            f"the data of {dataset.path} has no steps", hint="download all of its files"
        )
    return running


def _read_tables(
    folder: Path, features: Mapping[str, DatasetFeature], keys: Sequence[str]
) -> Iterator[Mapping[str, Array]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingPackageError(
            "pyarrow is not installed", hint=install_extra("datasets")
        ) from error
    if not keys:
        return
    with Container.open(folder) as container:
        for name in list_files(folder, "data", ".parquet"):
            try:
                with container.open_file(name) as file:
                    table = pq.ParquetFile(file)
                    missing = [key for key in keys if key not in table.schema_arrow.names]
                    if missing:
                        raise StorageError(
                            f"{name} has no column {missing[0]!r}, which {INFO} declares",
                            hint="download the dataset again",
                        )
                    for batch in table.iter_batches(BATCH_ROWS, columns=list(keys)):
                        yield {
                            key: _rows(batch.column(key), features[key], key, name) for key in keys
                        }
            except StorageError:
                raise
            except (pa.ArrowException, OSError) as error:
                raise StorageError(f"{name} of {folder} cannot be read: {error}") from error


def list_files(folder: Path, part: str, suffix: str) -> list[str]:
    """Return the files with a suffix below a subfolder, relative to the folder, in order."""
    return sorted(
        Path(root, name).relative_to(folder).as_posix()
        for root, _, names in os.walk(folder / part)
        for name in names
        if name.endswith(suffix)
    )


def _rows(column: ChunkedArray, feature: DatasetFeature, key: str, name: str) -> Array:
    """Return a column as an array ``[n, numbers]``."""
    count, width = len(column), int(np.prod(feature.shape))
    values = column
    while hasattr(values, "flatten") and str(values.type).partition("<")[0].endswith("list"):
        values = values.flatten()
    numbers = values.to_numpy(zero_copy_only=False)
    if len(numbers) != count * width:
        raise StorageError(
            f"{key!r} in {name} has {len(numbers):,} numbers in {count:,} steps, and {INFO} "
            f"declares the shape {list(feature.shape)}",
            hint="download the dataset again",
        )
    rows: Array = numbers.reshape(count, width)
    return rows
