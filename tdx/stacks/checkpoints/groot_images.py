"""What the processor of GR00T does to camera images when it does not train.

References:
    ``image_augmentations.py`` of N1.6 and N1.7 in https://github.com/NVIDIA/Isaac-GR00T. Rotations,
    colors and noise are of the training only. It resizes by torchvision, or by OpenCV's
    ``INTER_AREA``, which :func:`resize_by_area` follows to the gray level.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tdx.foundation.array_files import Array
from tdx.foundation.errors import ArgumentError
from tdx.foundation.untrusted import MAX_SIZE
from tdx.specs.leaf import LeafSpec
from tdx.stacks.checkpoints.model import Json, SampleEntries, Step

_COEFFICIENT = 2048
"""OpenCV interpolates bytes with weights in units of 1/2048."""


def image_settings(settings: Mapping[str, Json], *, has_exact_resize: bool) -> dict[str, Json]:
    """Return the arguments of the image step; empty if the configuration has no sizes.

    Without a shortest edge, ``has_exact_resize`` gives images both target sizes (N1.7) instead of
    the first one as their shortest edge (N1.6).
    """
    target, crop = (settings.get(f"image_{name}_size") for name in ("target", "crop"))
    edge, fraction = settings.get("shortest_image_edge"), settings.get("crop_fraction")
    result: dict[str, Json] = {"letter_box": settings.get("letter_box_transform") is True}
    if settings.get("use_albumentations") is not True:
        return {**result, "resize": target, "crop": crop} if target and crop else {}
    if fraction is None and isinstance(target, list) and isinstance(crop, list) and target and crop:
        fraction = _number(crop[0]) / max(_number(target[0]), 1)
    if edge is None and isinstance(target, list) and target:
        edge = target if has_exact_resize else target[0]
    if edge is None or fraction is None:
        return {}
    return {**result, "resize": edge, "crop_fraction": fraction, "kernel": "area"}


def _number(value: Json) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def transform_images(step: Step, sample: SampleEntries) -> SampleEntries:
    """Resize, crop and resize images ``[..., H, W, 3]`` of bytes, and put the channels first."""
    result = dict(sample)
    for key in _keys(step):
        value = sample.get(key)
        if not isinstance(value, np.ndarray):
            continue
        if value.dtype != np.uint8 or value.ndim < 3 or value.shape[-1] != 3:
            raise ArgumentError(
                f"{key!r} is {value.dtype} {list(value.shape)}, not uint8 [..., height, width, 3]"
            )
        images = value.reshape(-1, *value.shape[-3:])
        for height, width, is_crop in _sizes(step, *images.shape[1:3]):
            images = _resized(step, images, height, width, is_crop=is_crop)
        first = np.ascontiguousarray(np.moveaxis(images, -1, -3))
        result[key] = first.reshape(*value.shape[:-3], *first.shape[1:])
    return result


def image_specs(step: Step, leaves: Mapping[str, LeafSpec]) -> Mapping[str, LeafSpec]:
    """Return the specs after the image step."""
    result = dict(leaves)
    for key in _keys(step):
        leaf = leaves.get(key)
        if leaf is not None and len(leaf.shape) >= 3:
            *lead, height, width, channels = leaf.shape
            for new_height, new_width, _ in _sizes(step, height, width):
                height, width = new_height, new_width
            result[key] = replace(leaf, shape=(*lead, channels, height, width))
    return result


def _keys(step: Step) -> list[str]:
    keys = step.config.get("keys")
    return [str(key) for key in keys] if isinstance(keys, list) else []


def _sizes(step: Step, height: int, width: int) -> list[tuple[int, int, bool]]:
    """Return height and width after each operation, and whether it is a crop or padding."""
    sizes: list[tuple[int, int, bool]] = []
    if step.config.get("letter_box") is True and height != width:
        height = width = max(height, width)
        sizes.append((height, width, True))
    for is_crop in (False, True, False):
        if not is_crop:
            height, width = _target(step, height, width)
        elif "crop" in step.config:
            height, width = _pair(step.config["crop"], "image_crop_size")
        else:
            fraction = _number(step.config.get("crop_fraction"))
            if not 0 < fraction <= 1:
                raise ArgumentError(f"crop_fraction is {fraction:g}, not a part of the image")
            height, width = (max(int(size * fraction), 1) for size in (height, width))
        sizes.append((height, width, is_crop))
    return sizes


def _target(step: Step, height: int, width: int) -> tuple[int, int]:
    size = step.config.get("resize")
    if isinstance(size, list) and len(size) != 1:
        return _pair(size, "image_target_size")
    edge, _ = _pair([size[0] if isinstance(size, list) else size] * 2, "the shortest edge")
    if step.config.get("kernel") == "area":
        scale = edge / min(height, width)
        return round(height * scale), round(width * scale)
    longest = int(edge * max(height, width) / min(height, width))
    return (edge, longest) if height <= width else (longest, edge)


def _pair(value: Json, what: str) -> tuple[int, int]:
    sizes = value if isinstance(value, list) else [value]
    numbers = [size for size in sizes if isinstance(size, int) and 0 < size <= MAX_SIZE]
    if len(numbers) != 2 or len(sizes) != 2:
        raise ArgumentError(f"{what} is {value!r}, not two sizes up to {MAX_SIZE}")
    return numbers[0], numbers[1]


def _resized(step: Step, images: Array, height: int, width: int, *, is_crop: bool) -> Array:
    if images.shape[1:3] == (height, width):
        return images
    if step.config.get("kernel") == "area" and not is_crop:
        return np.stack([resize_by_area(image, height, width) for image in images])
    if is_crop and height <= images.shape[1] and width <= images.shape[2]:
        # A half pixel: torchvision rounds to even, the other one down.
        gaps = [(a - b) / 2 for a, b in zip(images.shape[1:3], (height, width), strict=True)]
        top, left = (round(gap) if "crop" in step.config else int(gap) for gap in gaps)
        return images[:, top : top + height, left : left + width]
    if is_crop:
        down, right = (
            max(a - b, 0) for a, b in zip((height, width), images.shape[1:3], strict=True)
        )
        edges = ((0, 0), (down // 2, down - down // 2), (right // 2, right - right // 2), (0, 0))
        padded = np.pad(images, edges)
        return _resized(step, padded, height, width, is_crop=True)
    import torch

    from tdx.core.transforms.images import resize_image

    channels_first = torch.from_numpy(np.ascontiguousarray(np.moveaxis(images, -1, 1)))
    resized: Array = resize_image(channels_first, height, width).numpy()
    return np.moveaxis(resized, 1, -1)


def resize_by_area(image: Array, height: int, width: int) -> Array:
    """Resize an image ``[H, W, C]`` of bytes as OpenCV does with ``INTER_AREA``.

    Example:
        >>> image = np.arange(12, dtype=np.uint8).reshape(2, 6, 1)
        >>> resize_by_area(image, 1, 3)[..., 0].tolist()
        [[4, 6, 8]]
    """
    if image.shape[0] >= height and image.shape[1] >= width:
        rows, columns = (
            _area_weights(*pair) for pair in ((image.shape[0], height), (image.shape[1], width))
        )
        narrow = _weighted_sums(columns, image.swapaxes(0, 1)).swapaxes(0, 1)
        mean = _weighted_sums(rows, narrow)
        # OpenCV adds the four numbers of a half size in integers.
        is_half = image.shape[0] == 2 * height and image.shape[1] == 2 * width
        rounded: Array = np.floor(mean + 0.5) if is_half else np.rint(mean)
        return rounded.astype(np.uint8)
    top, below, row_weights = _linear_weights(image.shape[0], height)
    left, right, column_weights = _linear_weights(image.shape[1], width)
    wide = image.astype(np.int64)
    one, other = (part[:, None] for part in column_weights)
    mixed = (wide[:, left] * one + wide[:, right] * other) >> 4
    one, other = (part[:, None, None] for part in row_weights)
    total: Array = (((mixed[top] * one) >> 16) + ((mixed[below] * other) >> 16) + 2) >> 2
    return np.clip(total, 0, 255).astype(np.uint8)


def _area_weights(size: int, target: int) -> Array:
    """Return how much of each source cell a target cell covers, ``[target, size]``."""
    edges = np.arange(target + 1) * (size / target)
    cells = np.arange(size)
    low = np.maximum(edges[:-1, None], cells)
    high = np.minimum(edges[1:, None], cells + 1)
    covered = np.maximum(high - low, 0)
    return covered / covered.sum(1, keepdims=True)


def _weighted_sums(weights: Array, cells: Array) -> Array:
    """Return the sums ``[target, ...]`` of cells ``[source, ...]``.

    Unlike a matrix product, it adds in the order of the cells, so that a mean halfway between two
    bytes is rounded the same way on every machine; and it skips cells that are not covered.
    """
    sums = np.zeros((len(weights), *cells.shape[1:]))
    for target, source in np.argwhere(weights):
        sums[target] += weights[target, source] * cells[source]
    return sums


def _linear_weights(size: int, target: int) -> tuple[Array, Array, tuple[Array, Array]]:
    """Return the two source cells of each target cell, and their weights in 1/2048."""
    scale = size / target
    cells = np.arange(target)
    first = np.floor(cells * scale).astype(np.int64)
    part = (cells + 1) - (first + 1) / scale
    part = np.where(part <= 0, 0, part - np.floor(part)).astype(np.float32)
    part = np.where(first >= size - 1, 0, part)
    first = np.minimum(first, size - 1)
    weights = (
        np.rint((1 - part) * _COEFFICIENT).astype(np.int64),
        np.rint(part * _COEFFICIENT).astype(np.int64),
    )
    return first, np.minimum(first + 1, size - 1), weights
