"""Check the layout and the sizes of images."""

from __future__ import annotations

import torch

from tdx.core.transforms.validation import check_integer
from tdx.errors import ArgumentError

LIKELY_CHANNELS = (1, 3, 4)


def check_channels_first(shape: torch.Size, name: str) -> None:
    """Check that a shape can be that of images ``[*B, C, H, W]``.

    Args:
        shape: Shape of the images.
        name: Class name of the transform, for the message.

    Raises:
        ArgumentError: It has fewer than 3 dims, or its channels are clearly last.
    """
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
    """Return a height or a width.

    Args:
        value: Argument.
        name: Name of the argument, for the message.

    Raises:
        ArgumentError: The value is not an integer of at least 1.
    """
    return check_integer(value, name, 1, "for example 84")
