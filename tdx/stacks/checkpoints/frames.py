"""Sample the images of a LeRobot dataset: PNG and JPEG in its tables, and frames of its videos."""

from __future__ import annotations

import io
import itertools
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tdx.foundation.container import Container
from tdx.foundation.errors import MissingPackageError, StorageError, install_extra
from tdx.stacks.checkpoints.dataset import Dataset, list_files
from tdx.stacks.checkpoints.model import Array

MAX_FILES = 16
"""Files of a feature that frames are taken from, evenly spaced."""
MAX_FRAMES = 64
"""Frames of a feature that are decoded."""
MAX_PIXELS = 2**25
"""Pixels of a frame that is decoded."""
MAX_IMAGE_BYTES = 2**26
"""Size of an encoded image."""
_BATCH_ROWS = 16


@dataclass(frozen=True, slots=True)
class SampledImages:
    """Statistics of a sample of the frames of a feature.

    Args:
        frames: Number of frames.
        statistics: ``mean``, ``std``, ``min`` and ``max`` of each channel, of values in 0 … 1.
    """

    frames: int
    statistics: Mapping[str, Array]


def sample_images(dataset: Dataset) -> tuple[dict[str, SampledImages], dict[str, str]]:
    """Decode a few frames of each image and video of a LeRobot dataset.

    Images of other datasets are skipped.

    Returns:
        The samples by feature, and why each of the other features was not decoded.

    Raises:
        StorageError: A file cannot be read, or a frame is too large.
    """
    samples: dict[str, SampledImages] = {}
    skipped: dict[str, str] = {}
    for key in dataset.images:
        if dataset.stored is None:
            skipped[key] = f"images of {dataset.title} are not read"
            continue
        read = _video_frames if dataset.features[key].dtype == "video" else _table_images
        try:
            sample = _summarize(read(dataset, key))
        except MissingPackageError as error:
            skipped[key] = str(error)
            continue
        if sample is None:
            skipped[key] = "the dataset has no file of it"
        else:
            samples[key] = sample
    return samples, skipped


def _summarize(frames: Iterator[Array]) -> SampledImages | None:
    count, pixels = 0, 0
    total, squares = np.zeros(3), np.zeros(3)
    low, high = np.full(3, np.inf), np.full(3, -np.inf)
    for frame in frames:
        values = frame.reshape(-1, 3)
        # Sums of 8-bit numbers are exact in 64 bits, and need no copy of the frame as floats.
        counts = np.stack([np.bincount(values[:, channel], minlength=256) for channel in range(3)])
        levels = np.arange(256) / 255
        total += counts @ levels
        squares += counts @ np.square(levels)
        low = np.minimum(low, values.min(0) / 255)
        high = np.maximum(high, values.max(0) / 255)
        count, pixels = count + 1, pixels + len(values)
    if not count:
        return None
    mean = total / pixels
    std = np.sqrt(np.maximum(squares / pixels - np.square(mean), 0))
    return SampledImages(count, {"mean": mean, "std": std, "min": low, "max": high})


def _spread(count: int, most: int) -> list[int]:
    """Return up to ``most`` indices below ``count``, evenly spaced."""
    return sorted({int((index + 0.5) * count / most) for index in range(most)}) if count else []


def _video_frames(dataset: Dataset, key: str) -> Iterator[Array]:
    try:
        import av
    except ImportError as error:
        raise MissingPackageError("PyAV is not installed", hint=install_extra("video")) from error
    listed = [name for name in list_files(dataset.path, "videos", ".mp4") if key in name.split("/")]
    files = [listed[index] for index in _spread(len(listed), MAX_FILES)]
    with Container.open(dataset.path) as container:
        for name in files:
            where = f"{name} of {dataset.path}"
            try:
                # The format is given: what FFmpeg takes for a playlist may name other files.
                with (
                    container.open_file(name) as file,
                    av.open(file, mode="r", format="mp4") as video,
                ):
                    stream = video.streams.video[0]
                    _check_pixels(stream.width, stream.height, where)
                    start, duration = stream.start_time or 0, stream.duration or 0
                    for place in _spread(duration, MAX_FRAMES // len(files)) or [0]:
                        # To the key frame before it, which is decoded without others.
                        video.seek(start + place, stream=stream)
                        frame = next(video.decode(stream), None)
                        if frame is not None:
                            _check_pixels(frame.width, frame.height, where)
                            yield frame.to_ndarray(format="rgb24")
            except StorageError:
                raise
            except (av.FFmpegError, OSError, IndexError, ValueError) as error:
                raise StorageError(f"{where} cannot be decoded: {error}") from error


def _table_images(dataset: Dataset, key: str) -> Iterator[Array]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        hint = install_extra("datasets")
        raise MissingPackageError("pyarrow is not installed", hint=hint) from error
    listed = list_files(dataset.path, "data", ".parquet")
    files = [listed[index] for index in _spread(len(listed), MAX_FILES)]
    with Container.open(dataset.path) as container:
        for name in files:
            where = f"{key!r} in {name} of {dataset.path}"
            try:
                with container.open_file(name) as file:
                    table = pq.ParquetFile(file, pre_buffer=False)
                    if key not in table.schema_arrow.names:
                        raise StorageError(f"{name} of {dataset.path} has no column {key!r}")
                    groups = _spread(table.num_row_groups, MAX_FRAMES // len(files))
                    for group in groups:
                        count = table.metadata.row_group(group).num_rows
                        chosen = set(_spread(count, MAX_FRAMES // len(files) // len(groups)))
                        rows = table.iter_batches(_BATCH_ROWS, row_groups=[group], columns=[key])
                        for start, batch in zip(itertools.count(step=_BATCH_ROWS), rows):
                            for index in chosen & set(range(start, start + len(batch))):
                                yield _decode(batch.column(0)[index - start].as_py(), where)
            except StorageError:
                raise
            except (pa.ArrowException, OSError) as error:
                raise StorageError(f"{where} cannot be read: {error}") from error


def _decode(value: object, where: str) -> Array:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingPackageError("Pillow is not installed", hint=install_extra("video")) from error
    data = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(data, bytes):
        raise StorageError(f"{where} has no PNG or JPEG files")
    if len(data) > MAX_IMAGE_BYTES:
        raise StorageError(f"{where} has an image of {len(data):,} bytes")
    try:
        with warnings.catch_warnings():
            # Of large images, whose size is checked here.
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
                _check_pixels(*image.size, where)
                return np.asarray(image.convert("RGB"))
    except StorageError:
        raise
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise StorageError(f"{where} has an image that cannot be decoded: {error}") from error


def _check_pixels(width: int, height: int, where: str) -> None:
    if width * height > MAX_PIXELS:
        raise StorageError(f"{where} has an image of {width:,} x {height:,} pixels")
