"""Images of either layout and dtype, as a network trained on ImageNet takes them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tdx.errors import ArgumentError, Where
from tdx.keys import NestedKey

CHANNELS = 3
LARGEST_BYTE = 255


def check_images(shape: Sequence[int], dtype: torch.dtype, key: NestedKey) -> None:
    """Raise unless images of this shape and dtype can be taken.

    Raises:
        ArgumentError: they have fewer than 3 dims, or other than 3 channels.
    """
    if len(shape) < 3 or CHANNELS not in (shape[-3], shape[-1]) or dtype is torch.bool:
        kind = "bools of " if dtype is torch.bool else ""
        raise ArgumentError(
            "images must be of shape [*B, H, W, 3], or [*B, 3, H, W] for floats, "
            f"got {kind}shape {tuple(shape)}",
            hint="name the images by in_keys",
            where=Where(key=key),
        )


def prepared(image: Tensor, size: int, mean: Tensor, std: Tensor) -> Tensor:
    """The images resized and normalised, ``[N, 3, size, size]``.

    Args:
        image: ``[*B, H, W, 3]`` or ``[*B, 3, H, W]``; integers up to 255, or floats up to 1.
        size: the new height and width.
        mean: of each channel, ``[3, 1, 1]``; its device and dtype are the result's.
        std: of each channel, likewise.
    """
    floating = image.is_floating_point()
    first, last = image.shape[-3] == CHANNELS, image.shape[-1] == CHANNELS
    if not first or (last and not floating):
        image = image.movedim(-1, -3)
    # Contiguous planes: what follows is faster on them, above all for a single image.
    image = image.to(mean.device).reshape(-1, *image.shape[-3:]).contiguous()
    # Halves are too coarse for what follows, and not every kernel takes them.
    image = image.to(torch.promote_types(mean.dtype, torch.float32))
    if not floating:
        image = image / LARGEST_BYTE
    if image.shape[-2:] != (size, size):
        image = _resized(image, size)
    return (image - mean.to(image)).div_(std.to(image)).to(mean.dtype)


def _resized(image: Tensor, size: int) -> Tensor:
    # Imported at the first call: torchvision takes longer to import than torch itself.
    from torchvision.transforms.v2.functional import resize_image

    result: Tensor = resize_image(image, [size, size], antialias=True)
    return result
