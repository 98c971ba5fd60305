"""gif: a video of the pixels in 256 colors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tdx.foundation.array_files import Array
from tdx.rollouts.formats.export_source import ExportSource
from tdx.rollouts.formats.interface import ExportOptions, ExportPlan, Format
from tdx.rollouts.formats.video import Video

if TYPE_CHECKING:
    from PIL import Image

format = Format(
    name="gif",
    title="a video of the pixels in 256 colors",
    suffixes=(".gif",),
    packages=("PIL",),
    extra="video",
    can_import=False,
    has_frames=True,
)
_COLORS = 256


def plan(source: ExportSource, options: ExportOptions) -> ExportPlan:
    """Return the entries and episodes of a video."""
    return Video.of(source, options).plan()


def write(source: ExportSource, target: Path, options: ExportOptions) -> tuple[str, ...]:
    """Write one video, or one per episode."""
    video = Video.of(source, options)
    # A GIF counts hundredths of a second, and players slow down frames of less than two.
    hundredths = max(2, round(100 / options.fps))
    quantized = 0
    for path, frames in video.files(target, ".gif", options.split):
        images = _Frames(frames)
        first = next(images)
        with path.open("wb") as file:
            first.save(
                file,
                format="GIF",
                save_all=True,
                append_images=images,
                duration=hundredths * 10,
                loop=0,
                optimize=False,
            )
        quantized += images.quantized
    if quantized:
        count = f"{quantized:,} frame{'' if quantized == 1 else 's'}"
        notes = [f"lossy: {count} had more than {_COLORS} colors, the limit of a gif"]
    else:
        notes = [f"lossless: no frame has more than {_COLORS} colors"]
    if hundredths * options.fps != 100:
        notes.append(f"{100 / hundredths:.4g} frames per second: a gif counts hundredths")
    return tuple(notes)


class _Frames(Iterator["Image.Image"]):
    """Frames with their own palettes; counts frames with too many colors for one."""

    def __init__(self, frames: Iterator[Array]) -> None:
        self._frames = frames
        self.quantized = 0

    def __next__(self) -> Image.Image:
        from PIL import Image

        frame = next(self._frames)
        packed = frame.astype(np.uint32) @ np.array([65536, 256, 1], np.uint32)
        colors, indices = np.unique(packed, return_inverse=True)
        if len(colors) > _COLORS:
            self.quantized += 1
            return Image.fromarray(frame).quantize(_COLORS, dither=Image.Dither.NONE)
        image = Image.fromarray(indices.reshape(frame.shape[:2]).astype(np.uint8))
        channels = np.stack([colors >> 16, (colors >> 8) & 255, colors & 255], 1)
        image.putpalette(channels.astype(np.uint8).reshape(-1).tolist())
        return image
