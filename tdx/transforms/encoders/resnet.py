"""Residual networks of torchvision without their last layer, and the images they take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from tdx.core.transforms.images import resize_image
from tdx.foundation.errors import ArgumentError, Where
from tdx.foundation.keys import NestedKey

ResNetName = Literal["resnet18", "resnet34", "resnet50"]
RESNETS: tuple[ResNetName, ...] = get_args(ResNetName)
FEATURES: dict[ResNetName, int] = {"resnet18": 512, "resnet34": 512, "resnet50": 2048}


def empty_resnet(name: ResNetName) -> nn.Module:
    """Return the network without values, on the meta device; ``[N, 3, H, W]`` to ``[N, F]``."""
    with torch.device("meta"):
        return _build(name)


def untrained_resnet(name: ResNetName) -> nn.Module:
    """Return the network with reproducible initial weights; consumes no random numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return _build(name)


def _build(name: ResNetName) -> nn.Module:
    # Imported at the first call: torchvision takes longer to import than torch itself.
    from torchvision.models import get_model_builder

    build: Callable[[], Any] = get_model_builder(name)
    network = build()
    network.fc = nn.Identity()
    result: nn.Module = network
    return result


def resnet_of(keys: Iterable[str]) -> str | None:
    """Return which residual network has these keys in its state dict, or ``None`` if unknown."""
    known = set(keys)
    if "conv1.weight" not in known or "layer4.0.conv1.weight" not in known:
        return None
    if "layer1.0.conv3.weight" in known:
        return "resnet50" if "layer3.6.conv1.weight" not in known else "deeper resnet"
    return "resnet34" if "layer1.2.conv1.weight" in known else "resnet18"


# Images

CHANNELS = 3
LARGEST_BYTE = 255


def check_images(shape: Sequence[int], dtype: torch.dtype, key: NestedKey) -> None:
    """Check that images of this shape and dtype can be encoded."""
    if len(shape) < 3 or CHANNELS not in (shape[-3], shape[-1]) or dtype is torch.bool:
        kind = "bools of " if dtype is torch.bool else ""
        raise ArgumentError(
            "images must be of shape [*B, H, W, 3], or [*B, 3, H, W] for floats, "
            f"got {kind}shape {tuple(shape)}",
            hint="name the images by in_keys",
            where=Where(key=key),
        )


def prepare_images(image: Tensor, size: int, mean: Tensor, std: Tensor) -> Tensor:
    """Resize and normalize images to ``[N, 3, size, size]``, in the device and dtype of the mean.

    Images are ``[*B, H, W, 3]`` or ``[*B, 3, H, W]``; integers to 255, or floats to 1.
    """
    floating = image.is_floating_point()
    first, last = image.shape[-3] == CHANNELS, image.shape[-1] == CHANNELS
    if not first or (last and not floating):
        image = image.movedim(-1, -3)
    # Contiguous planes make the following operations faster, especially for a single image.
    image = image.to(mean.device).reshape(-1, *image.shape[-3:]).contiguous()
    # Half precision is too coarse here, and not supported by every kernel.
    image = image.to(torch.promote_types(mean.dtype, torch.float32))
    if not floating:
        image = image / LARGEST_BYTE
    image = resize_image(image, size, size)
    return (image - mean.to(image)).div_(std.to(image)).to(mean.dtype)
