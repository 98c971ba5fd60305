"""A folder of videos, as a logger for ``VideoRecorder``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch import Tensor

from tdx.errors import ArgumentError, MissingPackageError
from tdx.files import atomic_path
from tdx.rollouts.formats.video import encode_mp4


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
                "videos need the package av", hint="pip install 'tdx[video]'"
            ) from error
        images = video.flatten(0, -4).movedim(-3, -1)
        images = images.expand(*images.shape[:-1], 3).contiguous()
        self.folder.mkdir(parents=True, exist_ok=True)
        file = f"{name}.mp4" if step is None else f"{name}_{step}.mp4"
        with atomic_path(self.folder / file) as path:
            encode_mp4(path, iter(images.numpy()), fps or self.fps, lossless=False)

    def __repr__(self) -> str:
        return f"VideoFolder({str(self.folder)!r}, fps={self.fps})"
