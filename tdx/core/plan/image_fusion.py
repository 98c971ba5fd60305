"""Neighboring image stages as one operator, applied to each image as it arrives.

A resize takes each row of its result from a few neighboring rows, so its matrix is a narrow band.
The band is cut into blocks of equal size at equal distances; then all blocks are one batched
product of small matrices with overlapping windows of the image, which are views. If the ratio of
the sizes is not a simple one, slightly wider windows make up for it.

Without fusion a rollout of Pong takes 1.9 times as long, env and a stack of frames included, and
one of a vector env of four 1.5 times (``python -m tests.benchmarks.forms``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided

from tdx.core.chain import StageForms
from tdx.core.envs.env_base import EnvBase
from tdx.core.meter import Part
from tdx.core.transforms import Transform
from tdx.core.transforms.images import LinearImage, Matrix
from tdx.core.transforms.kernels import implements_together
from tdx.foundation.array_files import Array
from tdx.foundation.keys import NestedKey, normalize_key

Real = np.float32

# What a block costs beyond its products, counted in products; measured with OpenBLAS.
BLOCK_COST = 6_000
MOST_ROWS = 48


@cache
def has_linear_image(kind: type) -> bool:
    """Return True if no subclass overrides a hook that the linear form stands for."""
    hooks = ("_apply_transform", "_call", "_step", "_reset")
    return implements_together(kind, "linear_image", hooks)


def linear_form(
    stages: Iterable[Transform], shape: tuple[int, int, int], dtype: torch.dtype
) -> LinearImage | None:
    """Return neighboring stages as one linear map, or ``None`` if they are not linear.

    ``shape`` is that of the first input image, without batch dims.
    """
    whole: LinearImage | None = None
    for stage in stages:
        kind: type = type(stage)
        form = stage.linear_image(shape, dtype) if has_linear_image(kind) else None
        if form is None:
            return None
        whole = form if whole is None else whole.then(form)
        if whole is None:
            return None
        shape, dtype = whole.out_shape, whole.out_dtype
    return whole


class Band(NamedTuple):
    """A matrix ``[M, K]`` as blocks along its diagonal, which may reach beyond its ends.

    The blocks ``[count, height, width]`` start at the column ``first`` (at most 0), ``stride``
    columns apart, and reach ``over`` columns beyond the last one. Rows after the last one are
    zeros.
    """

    blocks: Array
    first: int
    stride: int
    over: int


def banded(matrix: Matrix, lanes: int) -> Band:
    """Return the cheapest blocks for a matrix ``[M, K]`` times ``lanes`` vectors."""
    count, size = matrix.shape
    used = matrix != 0
    begins = np.where(used.any(1), used.argmax(1), size)
    ends = np.where(used.any(1), size - used[:, ::-1].argmax(1), 0)
    best: tuple[float, int, int, int, int] | None = None
    for height in range(1, min(count, MOST_ROWS) + 1):
        starts = np.arange(0, count, height)
        begin, end = np.minimum.reduceat(begins, starts), np.maximum.reduceat(ends, starts)
        slope = height * size / count
        for stride in {int(slope), int(slope) + 1}:
            offsets = stride * np.arange(len(starts))
            first = min(0, int((begin - offsets).min()))
            width = max(1, int((end - offsets).max()) - first)
            cost = len(starts) * (height * width * lanes + BLOCK_COST)
            cost += 0 if count % height == 0 else 8 * count * lanes
            if best is None or cost < best[0]:
                best = (cost, height, stride, first, width)
    assert best is not None  # a matrix has a row
    _, height, stride, first, width = best
    return _cut(matrix, height, stride, first, width)


def _cut(matrix: Matrix, height: int, stride: int, first: int, width: int) -> Band:
    count, size = matrix.shape
    starts = range(0, count, height)
    blocks = np.zeros((len(starts), height, width), Real)
    for block, start in enumerate(starts):
        rows = matrix[start : start + height]
        left = first + block * stride
        low, high = max(left, 0), min(left + width, size)
        if low < high:
            blocks[block, : len(rows), low - left : high - left] = rows[:, low:high]
    over = max(0, first + (len(blocks) - 1) * stride + width - size)
    return Band(blocks, first, stride, over)


class ImageKernel:
    """A linear map of images, applied to one frame after another.

    It owns its work memory, so one kernel serves one thread; results do not share memory with it.
    Values have to be finite, because windows contain columns that are multiplied by zero.

    Example:
        >>> from tdx import GrayScale, Resize, ToTensorImage
        >>> stages = ToTensorImage(), GrayScale(), Resize(84, 84)
        >>> form = linear_form(stages, (210, 160, 3), torch.uint8)
        >>> ImageKernel(form)(np.zeros((210, 160, 3), np.uint8)).shape
        (1, 84, 84)
    """

    def __init__(self, form: LinearImage) -> None:
        self.form = form
        channels, height, width = form.planes
        self._last, self._out_shape = form.channels_last, form.out_shape
        top, rows = _trimmed(form.rows, height)
        left, cols = _trimmed(form.cols, width)
        height, width = top.stop - top.start, left.stop - left.start
        self._taken = (top, left) if self._last else (slice(None), top, left)
        self._scale, mix = _scale_of(form.mix)
        if self._scale != 1 and rows is not None:
            rows, self._scale = rows * self._scale, 1.0
        elif self._scale != 1 and cols is not None:
            cols, self._scale = cols * self._scale, 1.0
        self._mix = None if mix is None else mix.astype(Real)
        col_band = None if cols is None else banded(cols, form.out_shape[0] * form.out_shape[1])
        row_band = None if rows is None else banded(rows, channels * width)
        image = self._start(channels, height, width, row_band, col_band)
        image = self._plan_rows(image, row_band)
        self._plan_cols(self._plan_planes(image, col_band is not None), col_band)

    def _start(
        self, channels: int, height: int, width: int, rows: Band | None, cols: Band | None
    ) -> Array:
        """Return memory for the image as floats, with the zeros around it that windows reach."""
        above, below = (0, 0) if rows is None else (-rows.first, rows.over)
        before, after = (0, 0) if cols is None else (-cols.first, cols.over)
        size = above + height + below, before + width + after
        inner = slice(above, above + height), slice(before, before + width)
        if self._last:
            image = np.zeros((*size, channels), Real)
            self._inner = image[inner]
        else:
            image = np.zeros((channels, *size), Real)
            self._inner = image[:, *inner]
        return image

    def _plan_rows(self, image: Array, band: Band | None) -> Array:
        """Return memory for the product with the row matrix, in whole blocks."""
        self._row_product: tuple[Array, Array, Array] | None = None
        if band is None:
            return image
        count, rows, size = band.blocks.shape
        lead = () if self._last else image.shape[:1]
        lanes = image.shape[1] * image.shape[2] if self._last else image.shape[2]
        item = image.itemsize
        windows = as_strided(
            image,
            (*lead, count, size, lanes),
            (*image.strides[: len(lead)], band.stride * lanes * item, lanes * item, item),
        )
        product = np.empty((*lead, count * rows, *image.shape[len(lead) + 1 :]), Real)
        self._row_product = band.blocks, windows, product.reshape(*lead, count, rows, lanes)
        return product

    def _plan_planes(self, image: Array, in_windows: bool) -> Array:
        """Return memory for the mixed channels, channels first: ``[C', H'.., W..]``."""
        row_count = self._out_shape[1]
        self._mix_product: tuple[Array, Array, Array] | None = None
        self._split: tuple[Array, Array] | None = None
        if self._last:
            image = image[:row_count]
            planes = image.transpose(2, 0, 1)
            pixels = image.reshape(-1, image.shape[2]).T
        else:
            planes, pixels = image, image.reshape(image.shape[0], -1)
        if self._mix is not None:
            mixed = np.empty((len(self._mix), *planes.shape[1:]), Real)
            self._mix_product = self._mix, pixels, mixed.reshape(len(mixed), -1)
            return mixed
        if not self._last or not in_windows:
            return planes
        split = np.empty(planes.shape, Real)
        self._split = split, planes
        return split

    def _plan_cols(self, planes: Array, band: Band | None) -> None:
        """Prepare the product with the column matrix, in whole blocks."""
        channels, rows, width = self._out_shape
        self._planes = planes[:, :rows]
        self._col_product: tuple[Array, Array] | None = None
        self._wide: Array | None = None
        if band is None:
            return
        count, cols, size = band.blocks.shape
        channel, row, item = planes.strides
        windows = as_strided(
            planes, (channels, count, rows, size), (channel, band.stride * item, row, item)
        )
        self._col_product = windows, np.ascontiguousarray(band.blocks.transpose(0, 2, 1))
        self._blocks = channels, rows, count, cols
        if count * cols != width:
            self._wide = np.empty((channels, rows, count * cols), Real)

    def __call__(self, frame: Array, out: Array | None = None) -> Array:
        """Map one image to ``out`` or a new array, ``[C', H', W']`` of float32."""
        inner = self._inner
        np.copyto(inner, frame[self._taken], casting="unsafe")
        if self._scale != 1:
            np.multiply(inner, self._scale, out=inner)
        if self._row_product is not None:
            blocks, windows, product = self._row_product
            np.matmul(blocks, windows, out=product)
        if self._mix_product is not None:
            mix, pixels, mixed = self._mix_product
            np.matmul(mix, pixels, out=mixed)
        elif self._split is not None:
            np.copyto(*self._split)
        if out is None:
            out = np.empty(self._out_shape, Real)
        if self._col_product is None:
            np.copyto(out, self._planes)
            return out
        target = self._wide
        if target is None:
            target = out if out.flags.c_contiguous else np.empty(self._out_shape, Real)
        np.matmul(*self._col_product, out=target.reshape(self._blocks).transpose(0, 2, 1, 3))
        if target is not out:
            np.copyto(out, target[..., : self._out_shape[2]])
        return out


def compile_image(form: LinearImage) -> ImageKernel | None:
    """Return a kernel for a linear map, or ``None`` if its stages are as fast or safer.

    They are as fast if they are views and one copy. Floats may be infinite or NaN, which the
    zeros in a window would spread.
    """
    if form.dtype.is_floating_point:
        return None
    resizes = any(_trimmed(matrix, 0)[1] is not None for matrix in (form.rows, form.cols))
    interleaved = form.channels_last and form.mix is not None
    return ImageKernel(form) if resizes or interleaved else None


def _trimmed(matrix: Matrix | None, size: int) -> tuple[slice, Matrix | None]:
    """Return the rows of an image that a matrix reads, and the matrix without the others."""
    if matrix is None:
        return slice(0, size), None
    used = np.flatnonzero(matrix.any(0))
    if not len(used):
        return slice(0, matrix.shape[1]), matrix
    taken = slice(int(used[0]), int(used[-1]) + 1)
    kept = matrix[:, taken]
    square = kept.shape[0] == kept.shape[1]
    return taken, None if square and np.array_equal(kept, np.eye(len(kept))) else kept


def _scale_of(mix: Matrix | None) -> tuple[float, Matrix | None]:
    """Return a mix that only scales as a factor, and any other one unchanged."""
    if mix is None:
        return 1.0, None
    factor = float(mix.flat[0])
    same = mix.shape[0] == mix.shape[1] and np.array_equal(mix, factor * np.eye(len(mix)))
    return (factor, None) if same else (1.0, mix)


@dataclass(frozen=True, slots=True)
class FusedImages:
    """Neighboring stages that are one linear map of the images that the env observes."""

    key: NestedKey  # of the images, before and after
    indices: tuple[int, ...]  # of the stages
    kernel: ImageKernel
    part: Part  # the part that the map is measured as


def fuse_images(base: EnvBase, stages: Sequence[StageForms]) -> FusedImages | None:
    """Return the stages to run on each image as it arrives, or ``None`` if it gains nothing.

    Everything that reads the images has to read the output of the last of these stages.
    """
    leaves = list(base.full_observation_spec.items(True, True))
    if len(leaves) != 1:
        return None
    key, spec = normalize_key(leaves[0][0]), leaves[0][1]
    shape = tuple(spec.shape[base.ndim :])
    if len(shape) != 3 or spec.dtype is None:
        return None
    indices: list[int] = []
    transforms: list[Transform] = []
    whole: LinearImage | None = None
    for forms in stages:
        touched = (*(forms.reads or ()), *(forms.writes or ()), *forms.drops, *forms.root)
        if not forms.is_opaque and forms.reads is not None and key not in touched:
            continue
        if forms.reads != (key,) or forms.writes != (key,) or forms.chunk_kernel is None:
            break
        longer = linear_form([*transforms, forms.stage], (shape[0], shape[1], shape[2]), spec.dtype)
        if longer is None:
            break
        transforms.append(forms.stage)
        indices.append(forms.index)
        whole = longer
    kernel = None if whole is None else compile_image(whole)
    if kernel is None:
        return None
    name = " + ".join(type(stage).__name__ for stage in transforms)
    part = Part("stage", indices[0], name, "forward", indices[-1])
    return FusedImages(key, tuple(indices), kernel, part)
