"""Sample the images of a dataset: arrays, PNG and JPEG in tables, and frames of videos."""

from __future__ import annotations

import io
import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tdx.foundation.array_files import Array
from tdx.foundation.container import Container
from tdx.foundation.errors import MissingPackageError, StorageError, install_extra
from tdx.stacks.checkpoints.dataset import Dataset, channel_axis, list_files

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
    """Statistics of a sample of the frames of a feature."""

    frames: int
    total: int  # Frames of the dataset.
    nonfinite: int  # Frames with NaN or infinite values, which are left out.
    # mean, std, min and max of each channel; numbers of 8 bits are scaled to 0 … 1.
    statistics: Mapping[str, Array]

    @property
    def is_in_pixels(self) -> bool:
        """True for numbers in 0 … 255 that are not of 8 bits, which nothing scales later."""
        return float(self.statistics["max"].max()) > 2


def sample_images(dataset: Dataset) -> tuple[dict[str, SampledImages], dict[str, str]]:
    """Read a few frames of each image and video of a dataset.

    Returns:
        The samples by feature, and why each of the other features was not decoded.
    """
    samples: dict[str, SampledImages] = {}
    skipped: dict[str, str] = {}
    for key in dataset.images:
        try:
            sample = summarize_images(dataset.read_frames(key), dataset.steps)
        except MissingPackageError as error:
            skipped[key] = str(error)
            continue
        if sample is None:
            skipped[key] = "the dataset has no file of it"
        else:
            samples[key] = sample
    return samples, skipped


def summarize_images(frames: Iterable[Array], total: int) -> SampledImages | None:
    """Return the statistics of images by channel; ``None`` without one.

    Images are ``[H, W]``, ``[H, W, C]`` or ``[C, H, W]``, a sample of ``total`` ones. Numbers of 8
    bits are scaled to 0 … 1, others are taken as they are.
    """
    count, nonfinite, pixels = 0, 0, 0
    sums: list[Array] = []
    for frame in frames:
        image = frame[..., None] if frame.ndim == 2 else frame
        image = np.moveaxis(image, channel_axis(image.shape), -1)
        channels = image.shape[-1]
        values = image.reshape(-1, channels)
        if not sums:
            zero = np.zeros(channels)
            sums = [zero, zero, np.full(channels, np.inf), np.full(channels, -np.inf)]
        if len(sums[0]) != channels:
            raise StorageError(f"images have {len(sums[0])} and {channels} channels")
        count += 1
        if values.dtype == np.uint8:
            # Sums of 8-bit numbers are exact in 64 bits, and need no copy of the frame as floats.
            hits = np.stack([np.bincount(values[:, at], minlength=256) for at in range(channels)])
            levels = np.arange(256) / 255
            added, squares = hits @ levels, hits @ np.square(levels)
            pixels += len(values)
            values = np.stack([values.min(0), values.max(0)]) / 255
        else:
            values = values.astype(np.float64)
            finite = np.isfinite(values).all(1)
            nonfinite += int(not finite.all())
            values = values[finite]
            if not len(values):
                continue
            added, squares = values.sum(0), np.square(values).sum(0)
            pixels += len(values)
        sums = [
            sums[0] + added,
            sums[1] + squares,
            np.minimum(sums[2], values.min(0)),
            np.maximum(sums[3], values.max(0)),
        ]
    if not pixels:
        return None
    mean = sums[0] / pixels
    std = np.sqrt(np.maximum(sums[1] / pixels - np.square(mean), 0))
    statistics = {"mean": mean, "std": std, "min": sums[2], "max": sums[3]}
    return SampledImages(count, max(count, total), nonfinite, statistics)


def spread(count: int, most: int) -> list[int]:
    """Return up to ``most`` indices below ``count``, evenly spaced."""
    return sorted({int((index + 0.5) * count / most) for index in range(most)}) if count else []


def video_frames(folder: Path, key: str) -> Iterator[Array]:
    """Decode frames of the videos of a LeRobot dataset."""
    try:
        import av
    except ImportError as error:
        raise MissingPackageError("PyAV is not installed", hint=install_extra("video")) from error
    listed = [name for name in list_files(folder, "videos", ".mp4") if key in name.split("/")]
    files = [listed[index] for index in spread(len(listed), MAX_FILES)]
    with Container.open(folder) as container:
        for name in files:
            where = f"{name} of {folder}"
            try:
                # The format is given: what FFmpeg takes for a playlist may name other files.
                with (
                    container.open_file(name) as file,
                    av.open(file, mode="r", format="mp4") as video,
                ):
                    stream = video.streams.video[0]
                    _check_pixels(stream.width, stream.height, where)
                    start, duration = stream.start_time or 0, stream.duration or 0
                    for place in spread(duration, MAX_FRAMES // len(files)) or [0]:
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


def table_images(folder: Path, key: str) -> Iterator[Array]:
    """Decode images in the tables of a LeRobot dataset."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        hint = install_extra("datasets")
        raise MissingPackageError("pyarrow is not installed", hint=hint) from error
    listed = list_files(folder, "data", ".parquet")
    files = [listed[index] for index in spread(len(listed), MAX_FILES)]
    with Container.open(folder) as container:
        for name in files:
            where = f"{key!r} in {name} of {folder}"
            try:
                with container.open_file(name) as file:
                    table = pq.ParquetFile(file, pre_buffer=False)
                    if key not in table.schema_arrow.names:
                        raise StorageError(f"{name} of {folder} has no column {key!r}")
                    groups = spread(table.num_row_groups, MAX_FRAMES // len(files))
                    for group in groups:
                        count = table.metadata.row_group(group).num_rows
                        chosen = set(spread(count, MAX_FRAMES // len(files) // len(groups)))
                        rows = table.iter_batches(_BATCH_ROWS, row_groups=[group], columns=[key])
                        for start, batch in zip(itertools.count(step=_BATCH_ROWS), rows):
                            for index in chosen & set(range(start, start + len(batch))):
                                yield _decode(batch.column(0)[index - start].as_py(), where)
            except StorageError:
                raise
            except (pa.ArrowException, OSError) as error:
                raise StorageError(f"{where} cannot be read: {error}") from error


def _decode(value: object, where: str) -> Array:
    data = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(data, bytes):
        raise StorageError(f"{where} has no PNG or JPEG files")
    return decode_image(data, where, mode="RGB")


def decode_image(data: bytes, where: str, mode: str | None = None) -> Array:
    """Decode a PNG or JPEG file.

    ``mode`` is the one of Pillow to convert it to. ``None``: that of the file.

    Raises:
        MissingPackageError: Pillow is not installed.
        StorageError: It is too large, or cannot be decoded.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingPackageError("Pillow is not installed", hint=install_extra("video")) from error
    if len(data) > MAX_IMAGE_BYTES:
        raise StorageError(f"{where} has an image of {len(data):,} bytes")
    try:
        with warnings.catch_warnings():
            # Of large images, whose size is checked here.
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
                _check_pixels(*image.size, where)
                return np.asarray(image.convert(mode or image.mode))
    except StorageError:
        raise
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise StorageError(f"{where} has an image that cannot be decoded: {error}") from error


def _check_pixels(width: int, height: int, where: str) -> None:
    if width * height > MAX_PIXELS:
        raise StorageError(f"{where} has an image of {width:,} x {height:,} pixels")
