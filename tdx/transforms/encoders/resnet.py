"""Residual networks of torchvision without their last layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args

import torch
from torch import nn

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
