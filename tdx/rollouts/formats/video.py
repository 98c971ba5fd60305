"""Videos of the pixels in a dump: H.264 in ``.mp4``, and ``.gif``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tdx.errors import ArgumentError
from tdx.keys import format_key, normal_key
from tdx.rollouts.dump.entries import Parts
from tdx.rollouts.dump.episodes import Episode
from tdx.rollouts.dump.folder import DATA
from tdx.rollouts.formats.arrays import Array
from tdx.rollouts.formats.interface import ExportColumn, ExportOptions, ExportPlan
from tdx.rollouts.formats.stored import ExportSource

if TYPE_CHECKING:
    from PIL import Image


_SMALLEST = 8
_GET_PIXELS = "tdx rollout --from-pixels stores what the env renders"


@dataclass(frozen=True, slots=True)
class Video:
    """What is to be seen.

    Args:
        stored: the dump.
        path: the key of the pixels, without ``next``.
        sides: the entries they are in: at the root, below ``next``, or both.
        episodes: which ones, by their numbers.
        picture: how an entry becomes a picture.
    """

    stored: ExportSource
    path: Parts
    sides: tuple[Parts, ...]
    episodes: dict[int, Episode]
    picture: PixelFormat

    @classmethod
    def of(cls, stored: ExportSource, options: ExportOptions) -> Video:
        """The film of a dump.

        Raises:
            ArgumentError: there are no pixels, or several kinds of them, or no such episode.
        """
        path, picture = _find_pixels(stored)
        sides = tuple(each for each in (path, ("next", *path)) if each in stored.data.leaves)
        known = stored.episodes
        chosen = range(len(known)) if options.episodes is None else options.episodes
        for number in chosen:
            if not 0 <= number < len(known):
                raise ArgumentError(
                    f"there is no episode {number}", hint=f"0 to {len(known) - 1} are there"
                )
        return cls(stored, path, sides, {number: known[number] for number in chosen}, picture)

    def frames(self, episode: Episode) -> Iterator[Array]:
        """The frames of an episode, ``[H, W, 3]`` bytes each; the last is what it came to."""
        start, stop = episode.start, episode.start + episode.length
        for step in range(start, stop):
            yield self._frame(self.sides[0], episode.row, step)
        if len(self.sides) > 1:
            yield self._frame(self.sides[1], episode.row, stop - 1)

    def _frame(self, path: Parts, row: int, step: int) -> Array:
        return self.picture.read(self.stored.span(path, row, step, step + 1)[0], step, self.path)

    def all_frames(self) -> Iterator[Array]:
        """The frames of one episode after the other."""
        for episode in self.episodes.values():
            yield from self.frames(episode)

    def files(
        self, target: Path, suffix: str, split: bool
    ) -> Iterator[tuple[Path, Iterator[Array]]]:
        """Each file to write, and its frames."""
        self.stored.check(self.sides)
        if not split:
            yield target, self.all_frames()
            return
        for number, episode in self.episodes.items():
            yield target / f"episode_{number:04}{suffix}", self.frames(episode)

    @property
    def plan(self) -> ExportPlan:
        """What is going to be written."""
        columns = [ExportColumn(DATA, side, "frames") for side in self.sides]
        entries = self.stored.entries(columns)
        return ExportPlan(entries, len(self.episodes), None, self.picture.notes)


@dataclass(frozen=True, slots=True)
class PixelFormat:
    """How an entry becomes a picture.

    Args:
        channels_first: whether its shape is ``[C, H, W]``.
        channels: how many it has; none where its shape is ``[H, W]``.
    """

    channels_first: bool
    channels: int | None

    @classmethod
    def of(cls, shape: Sequence[int], dtype: torch.dtype) -> PixelFormat | None:
        """How an entry of this shape becomes one, if it can be one."""
        if dtype is not torch.uint8 and not dtype.is_floating_point:
            return None
        if len(shape) == 2 and min(shape) >= _SMALLEST:
            return cls(False, None)
        if len(shape) != 3:
            return None
        first = shape[0] < shape[2]
        height, width = shape[1:] if first else shape[:2]
        if min(height, width) < _SMALLEST:
            return None
        return cls(first, shape[0] if first else shape[2])

    @property
    def shown(self) -> int:
        """How many channels are seen."""
        channels = self.channels or 1
        if channels == 4 and not self.channels_first:
            return 3
        return 3 if channels % 3 == 0 else 1

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not seen."""
        channels = self.channels or 1
        if channels == self.shown:
            return ()
        if channels == 4 and not self.channels_first:
            return ("the alpha channel is left out",)
        return (f"of {channels // self.shown} stacked frames the newest is shown",)

    def read(self, values: Tensor, step: int, path: Parts) -> Array:
        """The picture ``[H, W, 3]`` of bytes that an entry holds.

        Raises:
            ArgumentError: its floats are not within 0 … 1.
        """
        if self.channels is None:
            values = values[..., None]
        elif self.channels_first:
            values = values.movedim(0, -1)
        if self.channels == 4 and not self.channels_first:
            values = values[..., :3]
        values = values[..., -self.shown :]
        if values.dtype is not torch.uint8:
            values = values.to(torch.float64)
            if not bool(((values >= 0) & (values <= 1)).all()):
                raise ArgumentError(
                    f"{format_key(normal_key(path))!r} is not within 0 … 1 at step {step}",
                    hint="roll out without the stage that scales the pixels",
                )
            values = (values * 255).round().to(torch.uint8)
        array: Array = np.ascontiguousarray(values.expand(*values.shape[:2], 3).numpy())
        return array


def _find_pixels(stored: ExportSource) -> tuple[Parts, PixelFormat]:
    found: dict[Parts, PixelFormat] = {}
    dims = len(stored.batch_size)
    for path, (dtype, shape) in stored.data.leaves.items():
        key = path[1:] if path[0] == "next" and path[1:] else path
        picture = PixelFormat.of(shape[dims:], dtype)
        if picture is not None:
            found[key] = picture
    if not found:
        held = ", ".join(_list_entries(stored))
        raise ArgumentError(f"{stored.folder} holds no pixels, but {held}", hint=_GET_PIXELS)
    if len(found) > 1:
        names = [format_key(normal_key(key)) for key in found]
        raise ArgumentError(
            f"{stored.folder} holds several pixels: {', '.join(names)}",
            hint=f"--keys {names[0]} takes one of them",
        )
    return next(iter(found.items()))


def _list_entries(stored: ExportSource) -> Iterator[str]:
    dims = len(stored.batch_size)
    seen: set[Parts] = set()
    for path, (_, shape) in stored.data.leaves.items():
        key = path[1:] if path[0] == "next" and path[1:] else path
        if key not in seen:
            seen.add(key)
            yield f"{format_key(normal_key(key))} {list(shape[dims:])}"


def plan(stored: ExportSource, options: ExportOptions) -> ExportPlan:
    """What a film of a dump is going to be."""
    return Video.of(stored, options).plan


_EXACT, _SMALL = "libx264rgb", "libx264"


def write_mp4(stored: ExportSource, target: Path, options: ExportOptions) -> tuple[str, ...]:
    """Write one film, or one for each episode."""
    import av

    film = Video.of(stored, options)
    exact = not options.lossy and _EXACT in av.codecs_available
    for path, frames in film.files(target, ".mp4", options.split):
        _encode_mp4(path, frames, options.fps, exact)
    if exact:
        return ("lossless: mpv, VLC and ffmpeg play it; for a browser add --lossy",)
    if not options.lossy:
        return (f"not lossless: this build of FFmpeg has no {_EXACT}",)
    return ("lossy: colours are rounded",)


def _encode_mp4(path: Path, frames: Iterator[Array], fps: int, exact: bool) -> None:
    import av

    with av.open(str(path), "w", format="mp4") as container:
        codec, options = (_EXACT, {"crf": "0"}) if exact else (_SMALL, {"crf": "18"})
        stream: Any = container.add_stream(codec, rate=fps, options=options)
        stream.pix_fmt = "rgb24" if exact else "yuv420p"
        for number, frame in enumerate(frames):
            shown = frame if exact else _even(frame)
            if not number:
                stream.height, stream.width = shown.shape[:2]
            for packet in stream.encode(av.VideoFrame.from_ndarray(shown, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)


def _even(frame: Array) -> Array:
    """The frame with an even number of rows and columns, which the usual colours need."""
    height, width = frame.shape[:2]
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")


_COLOURS = 256


def write_gif(stored: ExportSource, target: Path, options: ExportOptions) -> tuple[str, ...]:
    """Write one film, or one for each episode."""
    film = Video.of(stored, options)
    # A GIF counts hundredths of a second, and players slow down what has less than two.
    hundredths = max(2, round(100 / options.fps))
    rounded = 0
    for path, frames in film.files(target, ".gif", options.split):
        pictures = _GifFrames(frames)
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
    notes = [_describe_loss(rounded)]
    if hundredths * options.fps != 100:
        notes.append(f"{100 / hundredths:.4g} frames a second: a gif counts hundredths")
    return tuple(notes)


def _describe_loss(rounded: int) -> str:
    if not rounded:
        return f"lossless: no frame has more than {_COLOURS} colours"
    frames = f"{rounded:,} frame{'' if rounded == 1 else 's'}"
    return f"lossy: {frames} had more than {_COLOURS} colours, the most that a gif can have"


class _GifFrames(Iterator["Image.Image"]):
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
