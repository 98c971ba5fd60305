"""``Dataset``: recorded data of any format, and the statistics of its numbers.

``datasets.py`` finds and reads the formats, and ``frames.py`` samples images and videos.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload

import numpy as np

from tdx.foundation.array_files import Array
from tdx.foundation.errors import (
    KeyNotFoundError,
    MissingPackageError,
    StorageError,
    did_you_mean,
    install_extra,
)

QUANTILES: Mapping[str, float] = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
SKETCH_SIZE = 1_000
"""Size of a KLL sketch: a quantile is off by at most 0.4 % of the steps, with 99 % confidence."""
BATCH_ROWS = 65_536
_BATCH_BYTES = 2**26
MIN_SIDE = 16
"""Smallest side of an array that is taken for an image."""

RowReader = Callable[[Sequence[str]], Iterator[Mapping[str, Array]]]
"""Reads features in parts, each an array ``[n, numbers]`` by feature."""
FrameReader = Callable[[str], Iterator[Array]]
"""Decodes up to 64 frames of an image feature, evenly spaced, each ``[H, W]`` or with channels."""
Progress = Callable[[int, int], None]
"""Called with the steps that were read, and their number."""


@dataclass(frozen=True, slots=True)
class DatasetFeature:
    """A feature of a dataset."""

    dtype: str  # Such as float32, video or image.
    shape: tuple[int, ...]  # Of one step; images are (H, W, C).
    names: tuple[str, ...] = ()  # Of its numbers, such as joints; empty if there are none.

    @property
    def is_image(self) -> bool:
        """True for images and videos; those of the env are arrays, which look like images."""
        return self.dtype in ("video", "image") or self._looks_like_image

    @property
    def _looks_like_image(self) -> bool:
        if self.dtype == "uint8":
            sides = self.shape[:2] if len(self.shape) == 2 else self._sides
            return len(sides) == 2 and min(sides) >= MIN_SIDE
        return (
            self.dtype.startswith("float")
            and len(self._sides) == 2
            and min(self._sides) >= MIN_SIDE
            and self.shape[channel_axis(self.shape)] in (1, 3, 4)
        )

    @property
    def _sides(self) -> tuple[int, ...]:
        if len(self.shape) != 3:
            return ()
        return self.shape[:2] if channel_axis(self.shape) == 2 else self.shape[1:]


def channel_axis(shape: Sequence[int]) -> int:
    """Return the axis of the channels of an image ``[H, W, C]`` or ``[C, H, W]``: the smaller one.

    Example:
        >>> channel_axis((84, 84, 3)), channel_axis((4, 84, 84))
        (2, 0)
    """
    return 2 if shape[2] <= shape[0] else 0


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
        read_frames: Reads a sample of the frames of an image or a video.
    """

    path: Path
    title: str
    fps: float | None
    steps: int
    features: Mapping[str, DatasetFeature]
    stored: Mapping[str, Mapping[str, Array]] | None
    vectors: Sequence[str]
    read_rows: RowReader
    read_frames: FrameReader

    @property
    def images(self) -> tuple[str, ...]:
        return tuple(key for key, feature in self.features.items() if feature.is_image)

    def only(self, key: str) -> Dataset:
        """Return the dataset restricted to one feature, so that nothing else is read."""
        known = [*self.vectors, *self.images]
        if key not in known:
            hint = did_you_mean(key, known, f"the features are {', '.join(known)}")
            raise KeyNotFoundError(f"unknown feature {key!r}", hint=hint)
        vectors = [name for name in self.vectors if name == key]
        return replace(self, features={key: self.features[key]}, vectors=vectors)


class DatasetSamples(Sequence[Mapping[str, Array]]):
    """The steps of a dataset as samples, without images; one part of the data is in memory."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        if not dataset.vectors:
            raise StorageError(f"{dataset.path} has no numeric features")
        if not dataset.steps:
            raise StorageError(f"{dataset.path} declares no steps")
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
        if not 0 <= index < len(self):
            raise IndexError(index)
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
    """Mean, standard deviation, extremes and quantiles of rows, in bounded memory."""

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
    """Compute the statistics of the numeric features of a dataset in one pass over its data."""
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


def list_files(folder: Path, part: str, suffix: str) -> list[str]:
    """Return the files with a suffix below a subfolder, relative to the folder, in order."""
    return sorted(
        Path(root, name).relative_to(folder).as_posix()
        for root, _, names in os.walk(folder / part)
        for name in names
        if name.endswith(suffix)
    )


def rows_at_once(features: Mapping[str, DatasetFeature], keys: Sequence[str]) -> int:
    """Return how many rows of features are read at a time."""
    width = sum(math.prod(features[key].shape) for key in keys)
    return max(1, min(BATCH_ROWS, _BATCH_BYTES // (8 * max(1, width))))


def flatten_rows(array: Array, feature: DatasetFeature, what: str) -> Array:
    """Return an array as rows ``[n, numbers]``."""
    width = math.prod(feature.shape)
    if array.size % max(width, 1):
        raise StorageError(f"{what} does not have the shape {list(feature.shape)}")
    rows: Array = np.ascontiguousarray(array).reshape(-1, width)
    return rows
