"""Images: linear maps as data, which can be composed and run as one, and checks of the layout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

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
