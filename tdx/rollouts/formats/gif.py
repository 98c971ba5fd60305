"""``.gif``: frames of at most 256 colours each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tdx.rollouts.formats.frames import Film, plan
from tdx.rollouts.formats.options import Options
from tdx.rollouts.formats.stored import Stored
from tdx.rollouts.formats.wire import Array

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["plan", "write"]

_COLOURS = 256


def write(stored: Stored, target: Path, options: Options) -> tuple[str, ...]:
    """Write one film, or one for each episode."""
    film = Film.of(stored, options)
    # A GIF counts hundredths of a second, and players slow down what has less than two.
    hundredths = max(2, round(100 / options.fps))
    rounded = 0
    for path, frames in film.files(target, ".gif", options.split):
        pictures = _Pictures(frames)
        first = next(pictures)
        with path.open("wb") as file:
            first.save(
                file,
                format="GIF",
                save_all=True,
                append_images=pictures,
                duration=hundredths * 10,
                loop=0,
                optimize=False,
            )
        rounded += pictures.rounded
    notes = [_told(rounded)]
    if hundredths * options.fps != 100:
        notes.append(f"{100 / hundredths:.4g} frames a second: a gif counts hundredths")
    return tuple(notes)


def _told(rounded: int) -> str:
    if not rounded:
        return f"lossless: no frame has more than {_COLOURS} colours"
    frames = f"{rounded:,} frame{'' if rounded == 1 else 's'}"
    return f"lossy: {frames} had more than {_COLOURS} colours, the most that a gif can have"


class _Pictures(Iterator["Image.Image"]):
    """Frames with a palette each; counts those that have too many colours for one."""

    def __init__(self, frames: Iterator[Array]) -> None:
        self._frames = frames
        self.rounded = 0

    def __next__(self) -> Image.Image:
        from PIL import Image

        frame = next(self._frames)
        packed = frame.astype(np.uint32) @ np.array([65536, 256, 1], np.uint32)
        colours, places = np.unique(packed, return_inverse=True)
        if len(colours) > _COLOURS:
            self.rounded += 1
            return Image.fromarray(frame).quantize(_COLOURS, dither=Image.Dither.NONE)
        picture = Image.fromarray(places.reshape(frame.shape[:2]).astype(np.uint8))
        channels = np.stack([colours >> 16, (colours >> 8) & 255, colours & 255], 1)
        picture.putpalette(channels.astype(np.uint8).reshape(-1).tolist())
        return picture
