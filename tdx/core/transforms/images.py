"""Images: linear maps as data, which can be composed and run as one; resize, crop, layout checks.

The kernels give the values of torchvision's functions without importing it: with its models and
torch's compiler, that takes 170 MB and more time than torch itself.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from tdx.core.transforms.validation import check_integer
from tdx.foundation.errors import ArgumentError

Matrix = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, eq=False)
class LinearImage:
    """A linear map of one image to another: ``out[c] = rows @ (Σ mix[c, k] image[k]) @ cols.T``.

    The result has shape ``[C', H', W']`` and dtype float32. A matrix that is ``None`` is the
    identity.

    Example:
        >>> halve = LinearImage((2, 4, 4), torch.float32, mix=0.5 * np.eye(2))
        >>> middle = LinearImage((2, 4, 4), torch.float32, rows=np.eye(4)[1:3])
        >>> both = halve.then(middle)
        >>> both.out_shape, both.mix.max()
        ((2, 2, 4), np.float64(0.5))
    """

    shape: tuple[int, int, int]  # of one image, without batch dims
    dtype: torch.dtype
    channels_last: bool = False  # True: [H, W, C], False: [C, H, W]
    mix: Matrix | None = None  # [C', C] over channels, including any scaling
    rows: Matrix | None = None  # [H', H]
    cols: Matrix | None = None  # [W', W]

    out_dtype: ClassVar[torch.dtype] = torch.float32

    @property
    def planes(self) -> tuple[int, int, int]:
        """Number of channels, rows and columns of the image."""
        first, second, third = self.shape
        return (third, first, second) if self.channels_last else (first, second, third)

    @property
    def out_shape(self) -> tuple[int, int, int]:
        """Number of channels, rows and columns of the result."""
        channels, height, width = self.planes
        return (
            channels if self.mix is None else len(self.mix),
            height if self.rows is None else len(self.rows),
            width if self.cols is None else len(self.cols),
        )

    def then(self, other: LinearImage) -> LinearImage | None:
        """Compose this map with one of its results; ``None`` if that one takes other images."""
        if other.channels_last or other.shape != self.out_shape or other.dtype != self.out_dtype:
            return None
        return replace(
            self,
            mix=_product(other.mix, self.mix),
            rows=_product(other.rows, self.rows),
            cols=_product(other.cols, self.cols),
        )


def _product(after: Matrix | None, before: Matrix | None) -> Matrix | None:
    if after is None or before is None:
        return before if after is None else after
    return after @ before


def crop_matrix(size: int, first: int, kept: int) -> Matrix | None:
    """Return the matrix that keeps ``kept`` of ``size`` rows, starting at row ``first``."""
    return None if kept == size else np.eye(size)[first : first + kept]


# Kernels

Interpolation = Literal["nearest", "nearest-exact", "bilinear", "bicubic"]
INTERPOLATIONS: tuple[Interpolation, ...] = get_args(Interpolation)
_SMOOTH = ("bilinear", "bicubic")


def resize_image(
    image: Tensor, height: int, width: int, interpolation: Interpolation = "bilinear"
) -> Tensor:
    """Resize images ``[*B, C, H, W]``, with antialiasing where the interpolation is smooth.

    Integers are rounded. An image of that size is returned as it is.
    """
    shape, dtype = image.shape, image.dtype
    if shape[-2:] == (height, width):
        return image
    out_shape = (*shape[:-2], height, width)
    if not image.numel():
        return image.new_empty(out_shape)
    image = image.reshape(-1, *shape[-3:])
    is_smooth = interpolation in _SMOOTH
    has_kernel = dtype in (torch.float32, torch.float64) or (
        dtype is torch.uint8
        and (not is_smooth or (image.device.type == "cpu" and _resizes_bytes(interpolation)))
    )
    resized = interpolate(
        image if has_kernel else image.float(),
        (height, width),
        mode=interpolation,
        align_corners=False if is_smooth else None,
        antialias=is_smooth,
    )
    if not has_kernel:
        if dtype is torch.uint8 and interpolation == "bicubic":  # cubic weights overshoot
            resized = resized.clamp_(0, 255)
        if not dtype.is_floating_point and dtype is not torch.bool:
            resized = resized.round_()
        resized = resized.to(dtype)
    return resized.reshape(out_shape)


@cache
def _resizes_bytes(interpolation: Interpolation) -> bool:
    """Return whether torch's kernel for bytes on the CPU is as exact as the one for floats."""
    vectorized = ("AVX2", "AVX512")
    if interpolation == "bicubic" or torch.backends.cpu.get_cpu_capability() in vectorized:
        return True
    return platform.machine() in ("aarch64", "arm64")


def center_crop_image(image: Tensor, height: int, width: int) -> Tensor:
    """Crop the center of images ``[*B, C, H, W]``; a smaller image is padded with zeros."""
    below, right = (
        max(0, new - old) for new, old in zip((height, width), image.shape[-2:], strict=True)
    )
    if below or right:
        image = pad(image, (right // 2, right - right // 2, below // 2, below - below // 2))
    top, left = (
        center_crop_start(old, new)
        for old, new in zip(image.shape[-2:], (height, width), strict=True)
    )
    return image[..., top : top + height, left : left + width]


def center_crop_start(size: int, kept: int) -> int:
    """Return the first row of the center; half rows are rounded to even, as by torchvision."""
    return round((size - kept) / 2)


# Layout

LIKELY_CHANNELS = (1, 3, 4)


def check_channels_first(shape: torch.Size, name: str) -> None:
    """Check that a shape can be that of images ``[*B, C, H, W]``."""
    if len(shape) < 3:
        raise ArgumentError(
            f"{name} takes images [*B, C, H, W], got shape {tuple(shape)}",
            hint="name the images by in_keys",
        )
    if shape[-1] in LIKELY_CHANNELS and shape[-2] > 4 and shape[-3] > 4:
        raise channels_last(shape, name)


def channels_last(shape: torch.Size, name: str) -> ArgumentError:
    """Return the error for images whose channels are last."""
    return ArgumentError(
        f"{name} takes images [*B, C, H, W], but shape {tuple(shape)} has its channels last",
        hint="put ToTensorImage() before it",
    )


def image_size(value: object, name: str) -> int:
    """Return a height or a width: an integer of at least 1."""
    return check_integer(value, name, 1, "for example 84")
