"""Read the weights of a residual network from an untrusted checkpoint file."""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tdx.errors import ArgumentError
from tdx.transforms.encoders.resnet import ResNetName, empty_resnet, resnet_of

# R3M publishes the state dict of a data-parallel model under "r3m"; its image encoder is
# `convnet`. https://github.com/facebookresearch/r3m, r3m/__init__.py
PREFIXES = ("module.convnet.", "convnet.", "module.", "")
LANGUAGE_PARTS = ("lang_enc", "lang_rew")
# Missing in old files, and not used by a network that is not trained.
COUNTER = "num_batches_tracked"
SHOWN = 3


def read_resnet(path: Path, name: ResNetName) -> dict[str, Tensor]:
    """Return the state dict of a residual network, from R3M's or torchvision's layout.

    Args:
        path: Checkpoint file.
        name: Network that it must contain.

    Raises:
        ArgumentError: The file cannot be read, contains code, or does not contain this network.
    """
    expected = empty_resnet(name).state_dict()
    found = _network_entries(_load(path), path, expected)
    kind = resnet_of(found)
    if kind not in (None, name):
        raise ArgumentError(
            f"{path} contains a {kind}, not a {name}",
            hint=f'use R3MTransform("{kind}")'
            if kind != "deeper resnet"
            else "use a checkpoint of resnet18, resnet34 or resnet50",
        )
    missing = [key for key in expected if key not in found and not key.endswith(COUNTER)]
    _refuse(path, missing, f"lacks {{}} of a {name}")
    _refuse(path, [key for key in found if key not in expected], f"has {{}} that no {name} has")
    return {key: _checked(path, key, found.get(key), like) for key, like in expected.items()}


def _load(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            is_pickle = file.read(1) == pickle.PROTO
    except OSError as error:
        raise ArgumentError(
            f"cannot read {path}: {error.strerror or error}",
            hint="check the path and its permissions",
        ) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # The exception for a damaged file depends on the position of the damage.
        refused = isinstance(error, pickle.UnpicklingError)
        named = re.search(r"GLOBAL (\S+)", str(error)) if refused else None
        if named is None and not (is_pickle and "Unsupported" in str(error)):
            raise ArgumentError(
                f"{path} is truncated, damaged or not a PyTorch checkpoint",
                hint="delete it and download it again",
            ) from None
        what = "" if named is None else f" ({named[1]})"
        raise ArgumentError(
            f"{path} contains code{what}, which tdx never runs",
            hint="save only tensors: torch.save(model.state_dict(), path)",
        ) from None


def _network_entries(payload: Any, path: Path, expected: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the entries of the image encoder by their names in a bare network."""
    state = payload.get("r3m", payload) if isinstance(payload, Mapping) else None
    if not isinstance(state, Mapping) or not all(isinstance(key, str) for key in state):
        raise ArgumentError(
            f"{path} contains no state dict",
            hint='save {"r3m": model.state_dict()}, or only a state dict',
        )
    entries = {
        key: value for key, value in state.items() if not any(p in key for p in LANGUAGE_PARTS)
    }
    prefix = max(PREFIXES, key=lambda prefix: sum(prefix + key in entries for key in expected))
    named = {key.removeprefix(prefix): value for key, value in entries.items()}
    return {key: value for key, value in named.items() if not key.startswith("fc.")}


def _refuse(path: Path, keys: Sequence[str], message: str) -> None:
    if keys:
        number = f"{len(keys)} key" + ("s" if len(keys) > 1 else "")
        more = ", …" if len(keys) > SHOWN else ""
        raise ArgumentError(
            f"{path} {message.format(number)}: {', '.join(keys[:SHOWN])}{more}",
            hint="use the file that R3M or torchvision publishes for this network",
        )


def _checked(path: Path, key: str, value: Any, like: Tensor) -> Tensor:
    if value is None:
        return torch.zeros(like.shape, dtype=like.dtype)
    if not isinstance(value, Tensor):
        raise ArgumentError(
            f"{path}: {key} is {type(value).__name__} instead of a tensor",
            hint="save the model's state_dict, whose values are tensors",
        )
    if value.shape != like.shape:
        raise ArgumentError(
            f"{path}: {key} has shape {tuple(value.shape)}, not {tuple(like.shape)}",
            hint="use a checkpoint of the same model_name",
        )
    return value.to(like.dtype)
