"""What operations on images want: channels first, and sizes that are sizes."""

from __future__ import annotations

import torch

from tdx.errors import ArgumentError

LIKELY_CHANNELS = (1, 3, 4)


def check_channels_first(shape: torch.Size, name: str) -> None:
    """Raise where a shape is not that of images ``[*B, C, H, W]``.

    Args:
        shape: the images' shape.
        name: the transform's, for the message.

    Raises:
        ArgumentError: it has fewer than 3 dims, or plainly its channels last.
    """
    if len(shape) < 3:
        raise ArgumentError(
            f"{name} takes images [*B, C, H, W], got shape {tuple(shape)}",
            hint="name the images by in_keys",
        )
    if shape[-1] in LIKELY_CHANNELS and shape[-2] > 4 and shape[-3] > 4:
        raise channels_last(shape, name)


def channels_last(shape: torch.Size, name: str) -> ArgumentError:
    """The error for images whose channels are last."""
    return ArgumentError(
        f"{name} takes images [*B, C, H, W], but shape {tuple(shape)} has its channels last",
        hint="put ToTensorImage() before it",
    )


def image_size(value: object, name: str) -> int:
    """A height or a width.

    Args:
        value: the argument.
        name: its name, for the message.

    Raises:
        ArgumentError: it is no integer of at least 1.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ArgumentError(
            f"{name} must be an integer of at least 1, got {value!r}", hint="for example 84"
        )
    return value
