"""Record the images of an env as videos."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, Self

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.done_flags import all_done
from tdx.core.transforms import ObservationTransform, TimeBehavior
from tdx.core.transforms.images import center_crop_image
from tdx.core.transforms.validation import check_integer
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey


class VideoLogger(Protocol):
    """Takes videos, such as a logger of TorchRL or ``VideoFolder``."""

    def log_video(self, name: str, video: Tensor, step: int | None = None, **kwargs: Any) -> None:
        """Take a video.

        Args:
            name: Name of the video.
            video: Frames, uint8 ``[1, T, C, H, W]``.
            step: Number of the video.
            **kwargs: Options, such as ``fps``.
        """


class VideoRecorder(ObservationTransform):
    """Collect the images of resets and steps, and pass them to a logger in :meth:`dump`.

    Images ``[*B, H, W, 3]`` and ``[*B, C, H, W]`` with 1 or 3 channels are recorded, and returned
    unchanged. Stored data is recorded too.

    Args:
        logger: Object with a method ``log_video``, for example ``VideoFolder("videos")``.
            ``None``: videos are dropped.
        tag: Name of the videos.
        in_keys: Images to read; ``pixels`` by default.
        skip: Record every such image. Default: 2 in a single env, 1 in a batch or without an env.
        center_crop: Size of a square to crop from the center.
        make_grid: Show the images of a batch side by side. Default: in an env only; otherwise
            they follow one another.
        out_keys: Keys to write; the in-keys by default.
        fps: Frames per second. Default: that of the logger.
        max_frames: Number of frames to keep until the next dump; further ones are dropped.
        dump_on_done: Dump when all envs are done in a step.
        **kwargs: Further options for ``log_video``.

    Raises:
        ArgumentError: The logger has no ``log_video``, a number is not an integer of at least 1,
            or (in a step or a call) an entry is not an image.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import VideoRecorder
        >>> recorder = VideoRecorder(None, "run")
        >>> images = recorder(TensorDict(pixels=torch.zeros(5, 16, 16, 3, dtype=torch.uint8)))
        >>> len(recorder.obs)
        5
    """

    why_not_exported = "it records a video"
    _is_verified = True

    time_behavior = TimeBehavior.CONTROL
    default_in_keys = ("pixels",)

    def __init__(
        self,
        logger: VideoLogger | None,
        tag: str | None,
        in_keys: Sequence[NestedKey] | None = None,
        skip: int | None = None,
        center_crop: int | None = None,
        make_grid: bool | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        fps: int | None = None,
        max_frames: int | None = None,
        dump_on_done: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(in_keys, out_keys)
        client = getattr(logger, "client", None)
        if callable(client):
            logger = client()
        if logger is not None and not callable(getattr(logger, "log_video", None)):
            raise ArgumentError(
                f"a logger needs a method log_video, which {type(logger).__name__} lacks",
                hint='for example logger=tdx.VideoFolder("videos")',
            )
        numbers = {"skip": skip, "center_crop": center_crop, "max_frames": max_frames, "fps": fps}
        for name, value in numbers.items():
            if value is not None:
                check_integer(value, name, 1, f"for example {name}=30")
        self.logger, self.tag = logger, tag
        self.skip, self.center_crop, self.make_grid = skip, center_crop, make_grid
        self.max_frames, self.dump_on_done = max_frames, dump_on_done
        self.video_kwargs = kwargs if fps is None else {**kwargs, "fps": fps}
        self.obs: list[Tensor] = []
        """Frames since the last dump, uint8 ``[C, H, W]`` each."""
        self.count = 0
        """Number of images since the last dump, including skipped ones."""
        self.iter = 0
        """Number of dumps."""

    @property
    def written_keys(self) -> tuple[NestedKey, ...]:
        return tuple(out_key for in_key, out_key in self._pairs if in_key != out_key)

    def clone(self) -> Self:
        """Return a copy outside any chain that has no frames yet and shares the logger."""
        copied = super().clone()
        copied.obs, copied.count = [], 0
        return copied

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        self.count += 1
        env: Any = getattr(self.container, "base_env", None)
        skip = self.skip
        if skip is None:
            skip = 2 if env is not None and not env.batch_size else 1
        is_full = self.max_frames is not None and len(self.obs) >= self.max_frames
        if self.count % skip == 0 and not is_full:
            frames = _channels_first(tensor.detach())
            if self.center_crop is not None:
                frames = center_crop_image(frames, self.center_crop, self.center_crop)
            frames = frames.reshape(-1, *frames.shape[-3:]).to("cpu", torch.uint8, copy=True)
            if env is not None if self.make_grid is None else self.make_grid:
                frames = _grid(frames).unsqueeze(0)
            most = None if self.max_frames is None else self.max_frames - len(self.obs)
            self.obs += frames[:most].unbind(0)
        return tensor

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        next_tensordict = super()._step(tensordict, next_tensordict)
        if self.dump_on_done and all_done(next_tensordict, next_tensordict.keys(True, True)):
            self.dump()
        return next_tensordict

    def dump(self, suffix: str | None = None, step: int | None = None) -> None:
        """Pass the frames to the logger as a video, and begin the next one.

        Args:
            suffix: Added to the tag, after an underscore.
            step: Number of the video. ``None``: number of earlier dumps.
        """
        if self.obs and self.logger is not None:
            shapes = {tuple(frame.shape) for frame in self.obs}
            if len(shapes) > 1:
                raise ArgumentError(
                    f"the images have different shapes: {sorted(shapes)}",
                    hint="record each entry with a VideoRecorder of its own",
                )
            name = "_".join(part for part in (self.tag, suffix) if part is not None)
            video = torch.stack(self.obs).unsqueeze(0)
            step = self.iter if step is None else step
            self.logger.log_video(name=name, video=video, step=step, **self.video_kwargs)
        self.iter += 1
        self.count, self.obs = 0, []

    def __repr__(self) -> str:
        return f"VideoRecorder(tag={self.tag!r}, frames={len(self.obs)}, keys={self.in_keys})"


def _channels_first(images: Tensor) -> Tensor:
    """Return images as ``[*B, 3, H, W]``; those without channels as ``[1, H, W]``."""
    shape = images.shape
    if len(shape) == 2:
        return images.unsqueeze(0)
    if len(shape) >= 3 and shape[-3] in (1, 3) and min(shape[-2:]) > 3:
        images = images.movedim(-3, -1)
    if len(shape) < 3 or images.shape[-1] not in (1, 3):
        raise ArgumentError(
            f"VideoRecorder takes images [*B, H, W, 3] or [*B, C, H, W], got shape {tuple(shape)}",
            hint="name the images by in_keys",
        )
    return images.expand(*images.shape[:-1], 3).movedim(-1, -3)


def _grid(frames: Tensor) -> Tensor:
    """Tile frames ``[N, C, H, W]`` to one frame with as many columns as rows, or one more."""
    count, channels, height, width = frames.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    tiles = frames.new_zeros(rows * columns, channels, height, width)
    tiles[:count] = frames
    tiles = tiles.reshape(rows, columns, channels, height, width).permute(2, 0, 3, 1, 4)
    return tiles.reshape(channels, rows * height, columns * width)
