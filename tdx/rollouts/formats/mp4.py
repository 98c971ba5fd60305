"""mp4: a video of the pixels, as H.264."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from tdx.foundation.array_files import Array
from tdx.foundation.errors import ArgumentError, MissingPackageError, install_extra
from tdx.foundation.files import atomic_path
from tdx.rollouts.formats.export_source import ExportSource
from tdx.rollouts.formats.interface import ExportOptions, ExportPlan, Format
from tdx.rollouts.formats.video import Video

format = Format(
    name="mp4",
    title="a video of the pixels, lossless H.264",
    suffixes=(".mp4",),
    packages=("av",),
    extra="video",
    can_import=False,
    has_frames=True,
    has_lossy=True,
)
_LOSSLESS_CODEC, _LOSSY_CODEC = "libx264rgb", "libx264"


def plan(source: ExportSource, options: ExportOptions) -> ExportPlan:
    """Return the entries and episodes of a video."""
    return Video.of(source, options).plan()


def write(source: ExportSource, target: Path, options: ExportOptions) -> tuple[str, ...]:
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
            height, width = frame.shape[:2]
            # yuv420p requires an even number of rows and columns.
            pads = ((0, height % 2), (0, width % 2), (0, 0))
            image = frame if lossless else np.pad(frame, pads, mode="edge")
            if not number:
                stream.height, stream.width = image.shape[:2]
            for packet in stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)


def check(path: Path) -> None:
    """Read back the packets of a video, or of all videos in a folder.

    Raises:
        OSError: The end of a video is missing.
    """
    import av

    for file in path.rglob("*.mp4") if path.is_dir() else (path,):
        with av.open(str(file)) as container:
            for _ in container.demux():
                pass


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
