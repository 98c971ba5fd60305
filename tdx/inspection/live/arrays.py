"""Values of a trace as NumPy arrays: summaries, texts and downsampled RGB images."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tdx.inspection.live.views import TRACED_NUMBERS, ImageView, StageNumbers

if TYPE_CHECKING:
    import numpy as np

    from tdx.core.tracing import StepTrace


BINS = 8
_MAX_SHOWN = 6
_MAX_BINNED = 65_536


@dataclass(frozen=True, slots=True)
class RowSelector:
    """Selects a row of a batch, counted through all batch dims; ``None`` selects all rows."""

    batch: tuple[int, ...]
    row: int | None

    def of(self, value: Any) -> Any:
        """Return the row of a value; the whole value if it has no such batch dims."""
        if self.row is None or not self.batch:
            return value
        if isinstance(value, list):
            return value[self.row] if self.row < len(value) else value
        dims = len(self.batch)
        if tuple(getattr(value, "shape", ())[:dims]) != self.batch:
            return value
        return value[unravel_row(self.row, self.batch)]


def unravel_row(row: int, batch: tuple[int, ...]) -> tuple[int, ...]:
    """Return the indices of a row in a batch of several dims."""
    found = []
    for size in reversed(batch):
        row, at = divmod(row, size)
        found.append(at)
    return tuple(reversed(found))


def as_array(value: Any) -> np.ndarray[Any, Any] | None:
    """Convert a tensor of real numbers; ``None`` for other data and ``meta`` tensors."""
    import torch

    if not isinstance(value, torch.Tensor) or value.is_complex() or value.device.type == "meta":
        return None
    plain = value.detach().cpu()
    array: np.ndarray[Any, Any] = (
        plain.float() if plain.dtype is torch.bfloat16 else plain
    ).numpy()
    return array


def count_bins(
    numbers: np.ndarray[Any, Any], low: float | None, high: float | None
) -> tuple[int, ...]:
    """Count the numbers in equal bins; large arrays are subsampled."""
    import numpy as np

    if numbers.size < 3 or low is None or high is None:
        return ()
    if not (math.isfinite(low) and math.isfinite(high)) or low == high:
        return ()
    flat = numbers.reshape(-1)
    flat = flat[:: max(1, flat.size // _MAX_BINNED)]
    if flat.dtype.kind == "f":
        flat = flat[np.isfinite(flat)]
    places = (flat.astype(np.float64) - low) * (BINS / (high - low))
    counts = np.bincount(np.clip(places.astype(np.int64), 0, BINS - 1), minlength=BINS)
    return tuple(counts.tolist())


def format_array(numbers: np.ndarray[Any, Any]) -> str:
    """Format the first numbers on one line."""
    flat = numbers.reshape(-1)
    shown = [_format_number(each) for each in flat[:_MAX_SHOWN].tolist()]
    if flat.size == 1:
        return shown[0]
    return f"[{' '.join(shown)}{' …' if flat.size > _MAX_SHOWN else ''}]"


def _format_number(value: float | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else f"{value:.4g}"


_MIN_SIZE = 8
_MAX_FRAMES = 16


def is_image_shape(shape: tuple[int, ...], kind: str) -> bool:
    """Return True if an array of this shape and kind (``"u"``, ``"f"``, …) can be shown."""
    return kind in "uif" and _layout(shape) is not None


def _layout(shape: tuple[int, ...]) -> str | None:
    """Return the position of the channels: ``last``, ``first`` or ``none``."""
    if len(shape) < 2 or math.prod(shape[:-3]) > _MAX_FRAMES:
        return None
    sides = shape[-3:]
    is_last = len(sides) == 3 and sides[2] <= _MAX_FRAMES and min(sides[:2]) >= _MIN_SIZE
    if is_last and sides[2] in (1, 3, 4):
        return "last"
    if len(sides) == 3 and sides[0] <= _MAX_FRAMES and min(sides[1:]) >= _MIN_SIZE:
        return "first"
    if is_last:
        return "last"
    plain = len(shape) == 2 and min(shape) >= 2 * _MIN_SIZE
    return "none" if plain else None


def find_images(
    trace: StepTrace,
    *,
    row: int | None = None,
    zoom: float = 1.0,
    numbers: StageNumbers = TRACED_NUMBERS,
) -> Iterator[ImageView]:
    """Yield every image that a stage wrote, in order.

    Of a batch, the first row is the default. Images are not enlarged.
    """
    batch = tuple(trace.tensordict.batch_size)
    rows = RowSelector(batch, 0 if row is None and batch else row)
    for stage in trace.stages:
        if stage.kind in ("given", "policy") or stage.direction == "inverse":
            continue
        for version in stage.written.values():
            image = as_array(rows.of(version.value))
            if image is not None and is_image_shape(tuple(image.shape), image.dtype.kind):
                is_stage = stage.kind == "stage"
                layout = _layout(tuple(image.shape))
                down = -3 if layout == "last" else -2
                height, width = image.shape[down], image.shape[down + 1]
                scaled = (max(1, round(side * min(zoom, 1.0))) for side in (width, height))
                frames = to_frames(_subsample(image, zoom, layout), layout)
                strip = make_strip(frames, *scaled)
                yield ImageView(
                    version=version.name,
                    name=stage.name if is_stage else numbers.name(stage.kind, stage.name),
                    stage=numbers.number(stage.index) if is_stage else -1,
                    shape=tuple(image.shape),
                    width=strip.shape[1],
                    height=strip.shape[0],
                    rgb=strip.tobytes(),
                    frame_size=(width, height),
                    frames=len(frames),
                )


def _subsample(
    numbers: np.ndarray[Any, Any], zoom: float, layout: str | None
) -> np.ndarray[Any, Any]:
    """Take every n-th pixel of an image that is several times too large."""
    step = int(1 / zoom / 2)
    if step < 2:
        return numbers
    every = slice(None, None, step)
    return numbers[(..., every, every, slice(None)) if layout == "last" else (..., every, every)]


def to_frames(
    numbers: np.ndarray[Any, Any], layout: str | None = None
) -> list[np.ndarray[Any, Any]]:
    """Convert to frames of bytes ``[H, W, 3]``, one unless frames are stacked; gray is repeated.

    The layout of a subsampled image is that of the image: its own sides may be too small to tell.
    """
    import numpy as np

    layout = layout or _layout(tuple(numbers.shape))
    image = _to_bytes(numbers)
    if layout == "none":
        image = image[..., None]
    elif layout == "first":
        image = np.moveaxis(image, -3, -1)
    # Frames are stacked along the channels, or along a dim before those of the image.
    channels = 3 if image.shape[-1] % 3 == 0 else 1
    frames = [
        stacked[..., at : at + channels]
        for stacked in image.reshape(-1, *image.shape[-3:])
        for at in range(0, image.shape[-1], channels)
    ]
    return [np.repeat(frame, 3 // channels, axis=2) for frame in frames]


def make_strip(
    frames: list[np.ndarray[Any, Any]], width: int, height: int, space: int = 1
) -> np.ndarray[Any, Any]:
    """Scale frames to a size, and put them side by side with some columns between two of them."""
    import numpy as np

    small = [_downsample(frame, width, height) for frame in frames]
    gap = np.zeros((height, space, 3), np.uint8)
    parts = [part for frame in small for part in (gap, frame)]
    strip: np.ndarray[Any, Any] = np.ascontiguousarray(np.concatenate(parts[1:], 1))
    return strip


def _to_bytes(image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Clip integers to bytes; scale floats from 0 … 1, or from minimum to maximum."""
    import numpy as np

    if image.dtype == np.uint8:
        return image
    if image.dtype.kind in "ui":
        return np.clip(image, 0, 255).astype(np.uint8)
    shown = np.nan_to_num(image.astype(np.float32), posinf=1.0, neginf=0.0)
    low, high = float(shown.min()), float(shown.max())
    if low < 0 or high > 1:
        shown = (shown - low) / max(high - low, 1e-12)
    return (shown * 255).astype(np.uint8)


def _downsample(image: np.ndarray[Any, Any], width: int, height: int) -> np.ndarray[Any, Any]:
    """Average pixels so that the image has this size."""
    import numpy as np

    tall, wide = image.shape[:2]
    if (wide, tall) == (width, height):
        return image
    rows = (np.arange(height) * tall) // height
    columns = (np.arange(width) * wide) // width
    sums = np.add.reduceat(image.astype(np.float32), rows, axis=0)
    sums = np.add.reduceat(sums, columns, axis=1)
    heights = np.diff(np.append(rows, tall))[:, None, None]
    widths = np.diff(np.append(columns, wide))[None, :, None]
    shrunk: np.ndarray[Any, Any] = (sums / (heights * widths)).astype(np.uint8)
    return shrunk
