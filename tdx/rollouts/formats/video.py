"""Videos of the pixels in a dump: H.264 in ``.mp4``, and ``.gif``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tdx.foundation.errors import ArgumentError, MissingPackageError, install_extra
from tdx.foundation.files import atomic_path
from tdx.foundation.keys import format_key, normalize_key
from tdx.rollouts.dump.entries import Parts
from tdx.rollouts.dump.episodes import Episode
from tdx.rollouts.dump.folder import DATA
from tdx.rollouts.formats.export_source import ExportSource
from tdx.rollouts.formats.files import Array
from tdx.rollouts.formats.interface import ExportColumn, ExportOptions, ExportPlan

if TYPE_CHECKING:
    from PIL import Image

_MIN_SIZE = 8
_FROM_PIXELS = "tdx rollout --from-pixels stores what the env renders"
_LOSSLESS_CODEC, _LOSSY_CODEC = "libx264rgb", "libx264"
_GIF_COLORS = 256
_ROUNDING = 1e-4
"""A resized image of floats exceeds 0 to 1 by rounding."""


@dataclass(frozen=True, slots=True)
class PixelFormat:
    """How an entry is converted to an image.

    Args:
        channels_first: Whether its shape is ``[C, H, W]``.
        channels: Number of channels; ``None`` if its shape is ``[H, W]``.
    """

    channels_first: bool
    channels: int | None

    @classmethod
    def of(cls, shape: Sequence[int], dtype: torch.dtype) -> PixelFormat | None:
        """Return the format of an entry; ``None`` if it is not an image."""
        if dtype is not torch.uint8 and not dtype.is_floating_point:
            return None
        if len(shape) == 2 and min(shape) >= _MIN_SIZE:
            return cls(False, None)
        if len(shape) != 3:
            return None
        first = shape[0] < shape[2]
        height, width = shape[1:] if first else shape[:2]
        if min(height, width) < _MIN_SIZE:
            return None
        return cls(first, shape[0] if first else shape[2])

    @property
    def shown(self) -> int:
        """Number of channels in the video."""
        channels = self.channels or 1
        if self._has_alpha:
            return 3
        return 3 if channels % 3 == 0 else 1

    @property
    def _has_alpha(self) -> bool:
        return self.channels == 4 and not self.channels_first

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks about channels that are not in the video."""
        channels = self.channels or 1
        if channels == self.shown:
            return ()
        if self._has_alpha:
            return ("the alpha channel is left out",)
        return (f"of {channels // self.shown} stacked frames the newest is shown",)

    def convert(self, values: Tensor, step: int, path: Parts) -> Array:
        """Convert an entry to an image of bytes, ``[H, W, 3]``.

        Raises:
            ArgumentError: Its floats are not within 0 to 1.
        """
        if self.channels is None:
            values = values[..., None]
        elif self.channels_first:
            values = values.movedim(0, -1)
        if self._has_alpha:
            values = values[..., :3]
        values = values[..., -self.shown :]
        if values.dtype is not torch.uint8:
            values = values.to(torch.float64)
            if not bool(((values >= -_ROUNDING) & (values <= 1 + _ROUNDING)).all()):
                raise ArgumentError(
                    f"{format_key(normalize_key(path))!r} is not within 0 … 1 at step {step}",
                    hint="roll out without the stage that scales the pixels",
                )
            values = (values.clamp(0, 1) * 255).round().to(torch.uint8)
        image: Array = np.ascontiguousarray(values.expand(*values.shape[:2], 3).numpy())
        return image


@dataclass(frozen=True, slots=True)
class Video:
    """Frames of a dump.

    Args:
        source: The dump.
        path: Key of the pixels, without ``next``.
        entries: Keys of the pixels in the dump: at the root, below ``next``, or both.
        episodes: Episodes by index.
        pixels: Format of the pixels.
    """

    source: ExportSource
    path: Parts
    entries: tuple[Parts, ...]
    episodes: dict[int, Episode]
    pixels: PixelFormat

    @classmethod
    def of(cls, source: ExportSource, options: ExportOptions) -> Video:
        """Return the video of a dump.

        Raises:
            ArgumentError: The dump has no pixels, several entries of pixels, or lacks an episode.
        """
        path, pixels = _find_pixels(source)
        entries = tuple(each for each in (path, ("next", *path)) if each in source.data.leaves)
        episodes = source.episodes
        chosen = range(len(episodes)) if options.episodes is None else options.episodes
        for number in chosen:
            if not 0 <= number < len(episodes):
                raise ArgumentError(
                    f"unknown episode {number}", hint=f"the dump has 0 to {len(episodes) - 1}"
                )
        return cls(source, path, entries, {number: episodes[number] for number in chosen}, pixels)

    def frames(self, episode: Episode) -> Iterator[Array]:
        """Yield the frames of an episode and its final frame, ``[H, W, 3]`` bytes each."""
        start, stop = episode.start, episode.start + episode.length
        for step in range(start, stop):
            yield self._frame(self.entries[0], episode.row, step)
        if len(self.entries) > 1:
            yield self._frame(self.entries[1], episode.row, stop - 1)

    def _frame(self, path: Parts, row: int, step: int) -> Array:
        values = self.source.span(path, row, step, step + 1)[0]
        return self.pixels.convert(values, step, self.path)

    def _all_frames(self) -> Iterator[Array]:
        for episode in self.episodes.values():
            yield from self.frames(episode)

    def files(
        self, target: Path, suffix: str, split: bool
    ) -> Iterator[tuple[Path, Iterator[Array]]]:
        """Yield each file to write, and its frames."""
        self.source.check(self.entries)
        if not split:
            yield target, self._all_frames()
            return
        for number, episode in self.episodes.items():
            yield target / f"episode_{number:04}{suffix}", self.frames(episode)


def plan(source: ExportSource, options: ExportOptions) -> ExportPlan:
    """Return the entries and episodes of a video."""
    video = Video.of(source, options)
    columns = [ExportColumn(DATA, path, "frames") for path in video.entries]
    return ExportPlan(source.entries(columns), len(video.episodes), None, video.pixels.notes)


def _find_pixels(source: ExportSource) -> tuple[Parts, PixelFormat]:
    found: dict[Parts, PixelFormat] = {}
    shapes: dict[Parts, list[int]] = {}
    dims = len(source.batch_size)
    for path, (dtype, shape) in source.data.leaves.items():
        key = path[1:] if path[0] == "next" and path[1:] else path
        shapes.setdefault(key, list(shape[dims:]))
        pixels = PixelFormat.of(shape[dims:], dtype)
        if pixels is not None:
            found[key] = pixels
    if not found:
        listed = ", ".join(
            f"{format_key(normalize_key(key))} {size}" for key, size in shapes.items()
        )
        raise ArgumentError(f"{source.folder} has no pixels, only {listed}", hint=_FROM_PIXELS)
    if len(found) > 1:
        names = [format_key(normalize_key(key)) for key in found]
        raise ArgumentError(
            f"{source.folder} has several entries of pixels: {', '.join(names)}",
            hint=f"--keys {names[0]} selects one of them",
        )
    return next(iter(found.items()))


def write_mp4(source: ExportSource, target: Path, options: ExportOptions) -> tuple[str, ...]:
    """Write one video, or one per episode: lossless, or small and for every player."""
    import av

    video = Video.of(source, options)
    lossless = not options.lossy and _LOSSLESS_CODEC in av.codecs_available
    for path, frames in video.files(target, ".mp4", options.split):
        encode_mp4(path, frames, options.fps, lossless)
    if lossless:
        return ("lossless: mpv, VLC and ffmpeg play it; for a browser add --lossy",)
    if not options.lossy:
        return (f"not lossless: this build of FFmpeg has no {_LOSSLESS_CODEC}",)
    return ("lossy: colors are rounded",)


def encode_mp4(path: Path, frames: Iterator[Array], fps: int, lossless: bool) -> None:
    """Write frames, ``[H, W, 3]`` bytes each, as one video."""
    import av

    with av.open(str(path), "w", format="mp4") as container:
        codec, options = (
            (_LOSSLESS_CODEC, {"crf": "0"}) if lossless else (_LOSSY_CODEC, {"crf": "18"})
        )
        stream: Any = container.add_stream(codec, rate=fps, options=options)
        stream.pix_fmt = "rgb24" if lossless else "yuv420p"
        for number, frame in enumerate(frames):
            image = frame if lossless else _pad_to_even(frame)
            if not number:
                stream.height, stream.width = image.shape[:2]
            for packet in stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)


def check_mp4(path: Path) -> None:
    """Read back the packets of a video, or of all videos in a folder.

    Raises:
        OSError: The end of a video is missing.
    """
    import av

    for file in path.rglob("*.mp4") if path.is_dir() else (path,):
        with av.open(str(file)) as container:
            for _ in container.demux():
                pass


def _pad_to_even(frame: Array) -> Array:
    """Pad a frame to an even number of rows and columns, which yuv420p requires."""
    height, width = frame.shape[:2]
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")


def write_gif(source: ExportSource, target: Path, options: ExportOptions) -> tuple[str, ...]:
    """Write one video, or one per episode."""
    video = Video.of(source, options)
    # A GIF counts hundredths of a second, and players slow down frames of less than two.
    hundredths = max(2, round(100 / options.fps))
    quantized = 0
    for path, frames in video.files(target, ".gif", options.split):
        images = _GifFrames(frames)
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
        notes = [f"lossy: {count} had more than {_GIF_COLORS} colors, the limit of a gif"]
    else:
        notes = [f"lossless: no frame has more than {_GIF_COLORS} colors"]
    if hundredths * options.fps != 100:
        notes.append(f"{100 / hundredths:.4g} frames per second: a gif counts hundredths")
    return tuple(notes)


class _GifFrames(Iterator["Image.Image"]):
    """Frames with their own palettes; counts frames with too many colors for one."""

    def __init__(self, frames: Iterator[Array]) -> None:
        self._frames = frames
        self.quantized = 0

    def __next__(self) -> Image.Image:
        from PIL import Image

        frame = next(self._frames)
        packed = frame.astype(np.uint32) @ np.array([65536, 256, 1], np.uint32)
        colors, indices = np.unique(packed, return_inverse=True)
        if len(colors) > _GIF_COLORS:
            self.quantized += 1
            return Image.fromarray(frame).quantize(_GIF_COLORS, dither=Image.Dither.NONE)
        image = Image.fromarray(indices.reshape(frame.shape[:2]).astype(np.uint8))
        channels = np.stack([colors >> 16, (colors >> 8) & 255, colors & 255], 1)
        image.putpalette(channels.astype(np.uint8).reshape(-1).tolist())
        return image


class VideoFolder:
    """Writes each video into a folder, as ``NAME_STEP.mp4``.

    Args:
        folder: Folder, which is created if it is missing.
        fps: Frames per second, unless the recorder has its own.

    Raises:
        ArgumentError: A name is not that of a file in the folder.
        MissingPackageError: The extra ``video`` is not installed (in :meth:`log_video`).

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tempfile import mkdtemp
        >>> from tdx import VideoFolder, VideoRecorder
        >>> recorder = VideoRecorder(VideoFolder(mkdtemp()), "run")
        >>> images = recorder(TensorDict(pixels=torch.zeros(5, 16, 16, 3, dtype=torch.uint8)))
        >>> recorder.dump()
    """

    def __init__(self, folder: str | os.PathLike[str], fps: int = 30) -> None:
        self.folder, self.fps = Path(folder), fps

    def log_video(
        self, name: str, video: Tensor, step: int | None = None, fps: int | None = None, **_: Any
    ) -> None:
        """Write a video; one of the same name and step is replaced.

        Args:
            name: Name of the file, without the step.
            video: Frames, uint8 ``[1, T, C, H, W]`` with 1 or 3 channels.
            step: Number of the video. ``None``: no number in the name of the file.
            fps: Frames per second. ``None``: those of the folder.
        """
        if not name or Path(name).name != name:
            raise ArgumentError(
                f"{name!r} is not the name of a file", hint="choose a tag without slashes"
            )
        try:
            import av  # noqa: F401
        except ImportError as error:
            raise MissingPackageError(
                "videos need the package av", hint=install_extra("video")
            ) from error
        images = video.flatten(0, -4).movedim(-3, -1)
        images = images.expand(*images.shape[:-1], 3).contiguous()
        self.folder.mkdir(parents=True, exist_ok=True)
        file = f"{name}.mp4" if step is None else f"{name}_{step}.mp4"
        with atomic_path(self.folder / file) as path:
            encode_mp4(path, iter(images.numpy()), fps or self.fps, lossless=False)

    def __repr__(self) -> str:
        return f"VideoFolder({str(self.folder)!r}, fps={self.fps})"
