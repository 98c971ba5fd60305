"""Maps of images that are linear, as data: what neighbours compose and an engine runs as one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

Matrix = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, eq=False)
class LinearImage:
    """A linear map of one image to another: ``out[c] = rows @ (Σ mix[c, k] image[k]) @ cols.T``.

    Both images have channels, rows and columns; the result is ``[C', H', W']`` of float32. A
    matrix that is left out is the identity.

    Args:
        shape: the image's, without any batch dims.
        dtype: the image's.
        channels_last: the image is ``[H, W, C]``, else ``[C, H, W]``.
        mix: ``[C', C]``; scaling is part of it.
        rows: ``[H', H]``.
        cols: ``[W', W]``.

    Example:
        >>> halve = LinearImage((2, 4, 4), torch.float32, mix=0.5 * np.eye(2))
        >>> middle = LinearImage((2, 4, 4), torch.float32, rows=np.eye(4)[1:3])
        >>> both = halve.then(middle)
        >>> both.out_shape, both.mix.max()
        ((2, 2, 4), np.float64(0.5))
    """

    shape: tuple[int, int, int]
    dtype: torch.dtype
    channels_last: bool = False
    mix: Matrix | None = None
    rows: Matrix | None = None
    cols: Matrix | None = None

    out_dtype: ClassVar[torch.dtype] = torch.float32

    @property
    def planes(self) -> tuple[int, int, int]:
        """The image's channels, rows and columns."""
        first, second, third = self.shape
        return (third, first, second) if self.channels_last else (first, second, third)

    @property
    def out_shape(self) -> tuple[int, int, int]:
        """The result's channels, rows and columns."""
        channels, height, width = self.planes
        return (
            channels if self.mix is None else len(self.mix),
            height if self.rows is None else len(self.rows),
            width if self.cols is None else len(self.cols),
        )

    def then(self, other: LinearImage) -> LinearImage | None:
        """This map and another after it as one.

        Args:
            other: a map of this one's results.

        Returns:
            their composition, or ``None`` where the other one takes no such images.
        """
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
    """What keeps ``kept`` of ``size`` rows, from the one numbered ``first``."""
    return None if kept == size else np.eye(size)[first : first + kept]
