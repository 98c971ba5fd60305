"""Images among the values, made as small as they are to be shown."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tdx.inspection.live.numbering import TRACED, StageNumbers
from tdx.inspection.live.views import Picture

if TYPE_CHECKING:
    import numpy as np

    from tdx.core.tracing import StepTrace

_LEAST = 8
_CHANNELS = (1, 3, 4)
_MOST_STACKED = 16


def is_picture(shape: tuple[int, ...], kind: str) -> bool:
    """Whether an array of this shape and kind (``"u"``, ``"f"``, …) can be drawn."""
    return kind in "uif" and _layout(shape) is not None


def _layout(shape: tuple[int, ...]) -> str | None:
    """Whether the channels come last or first, or there are none."""
    if len(shape) < 2 or any(size != 1 for size in shape[:-3]):
        return None
    sides = shape[-3:]
    if len(sides) == 3 and sides[2] in _CHANNELS and min(sides[:2]) >= _LEAST:
        return "last"
    if len(sides) == 3 and sides[0] <= _MOST_STACKED and min(sides[1:]) >= _LEAST:
        return "first"
    plain = len(shape) == 2 and min(shape) >= 2 * _LEAST
    return "none" if plain else None


def pictures(
    trace: StepTrace,
    *,
    row: int | None = None,
    width: int = 64,
    height: int = 64,
    numbers: StageNumbers = TRACED,
) -> Iterator[Picture]:
    """Every image that a stage wrote, in order.

    Args:
        trace: the trace.
        row: the env of a batch to show; the first where it is none.
        width: the most pixels from left to right.
        height: the most from top to bottom.
        numbers: Shown numbers of the stages.
    """
    from tdx.inspection.live.numbers import Rows, as_numbers

    batch = tuple(trace.tensordict.batch_size)
    rows = Rows(batch, 0 if row is None and batch else row)
    for stage in trace.stages:
        if stage.kind in ("given", "policy") or stage.direction == "inverse":
            continue
        is_stage = stage.kind == "stage"
        for version in stage.written.values():
            image = as_numbers(rows.of(version.value))
            if image is not None and is_picture(tuple(image.shape), image.dtype.kind):
                small = _small(_rgb(_thinned(image, width, height)), width, height)
                yield Picture(
                    version=version.name,
                    place=numbers.title(stage.index, stage.name) if is_stage else stage.name,
                    stage=numbers.number(stage.index) if is_stage else -1,
                    shape=tuple(image.shape),
                    width=small.shape[1],
                    height=small.shape[0],
                    rgb=small.tobytes(),
                )


def _thinned(numbers: np.ndarray[Any, Any], width: int, height: int) -> np.ndarray[Any, Any]:
    """Every n-th pixel of an image that is several times too large."""
    layout = _layout(tuple(numbers.shape))
    down = -3 if layout == "last" else -2
    step = int(min(numbers.shape[down] / height, numbers.shape[down + 1] / width) / 2)
    if step < 2:
        return numbers
    every = slice(None, None, step)
    return numbers[(..., every, every, slice(None)) if layout == "last" else (..., every, every)]


def _rgb(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An image of bytes ``[H, W, 3]``; other channels are grey, stacked frames row by row."""
    import numpy as np

    layout = _layout(tuple(numbers.shape))
    image = numbers.reshape(numbers.shape[-3:]) if numbers.ndim > 3 else numbers
    if layout == "none":
        image = image[..., None]
    elif layout == "first" and image.shape[0] in _CHANNELS[:2]:
        image = np.moveaxis(image, 0, -1)
    elif layout == "first":
        image = _tiled(list(_frames(image)))
    image = _bytes(image)
    return np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image[:, :, :3]


def _tiled(frames: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Frames in rows, the oldest first, about as many beside each other as below."""
    import numpy as np

    columns = math.ceil(math.sqrt(len(frames)))
    frames += [np.zeros_like(frames[0])] * (-len(frames) % columns)
    rows = [frames[at : at + columns] for at in range(0, len(frames), columns)]
    tiled: np.ndarray[Any, Any] = np.concatenate([np.concatenate(row, 1) for row in rows], 0)
    return tiled


def _frames(stacked: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    """The frames ``[H, W, C]`` in a stack ``[N * C, H, W]``."""
    import numpy as np

    count = stacked.shape[0]
    channels = 3 if count % 3 == 0 and count > 3 else 1
    for at in range(0, count, channels):
        yield np.moveaxis(stacked[at : at + channels], 0, -1)


def _bytes(image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Whole numbers are taken as bytes; others from 0 to 1, or from smallest to largest."""
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


def _small(image: np.ndarray[Any, Any], width: int, height: int) -> np.ndarray[Any, Any]:
    """The image in its own proportions within so many pixels, each a mean of those it covers."""
    import numpy as np

    tall, wide = image.shape[:2]
    scale = min(width / wide, height / tall, 1.0)
    if scale == 1.0:
        return np.ascontiguousarray(image)
    new_wide, new_tall = max(1, round(wide * scale)), max(1, round(tall * scale))
    rows = (np.arange(new_tall) * tall) // new_tall
    columns = (np.arange(new_wide) * wide) // new_wide
    sums = np.add.reduceat(image.astype(np.float32), rows, axis=0)
    sums = np.add.reduceat(sums, columns, axis=1)
    heights = np.diff(np.append(rows, tall))[:, None, None]
    widths = np.diff(np.append(columns, wide))[None, :, None]
    shrunk: np.ndarray[Any, Any] = (sums / (heights * widths)).astype(np.uint8)
    return shrunk
