"""Find, download and read the checkpoint of a residual network; its content is not trusted."""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import sys
import urllib.request
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tdx.foundation.errors import ArgumentError, EnvError, TdxError, UnknownNameError, did_you_mean
from tdx.foundation.files import atomic_path
from tdx.foundation.untrusted import MAX_POLICY_BYTES
from tdx.transforms.encoders.resnet import ResNetName, empty_resnet, resnet_of

R3M_URL = "https://pytorch.s3.amazonaws.com/models/rl/r3m/{file}"
FILE_ENDINGS = (".pt", ".pth")
_TIMEOUT = 60.0
_BLOCK_BYTES = 2**20
_HASH = re.compile(r"-([0-9a-f]{8,})\.")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A published checkpoint.

    Args:
        url: Where it is published.
        places: Possible file names inside a folder; a download gets the first one.
        folders: Further folders to search.
    """

    url: str
    places: tuple[str, ...]
    folders: tuple[Path, ...] = ()


def r3m_checkpoint(name: ResNetName) -> Checkpoint:
    """Return R3M's own weights, which its package stores in ``~/.r3m/r3m_50/model.pt``."""
    stem = f"r3m_{name.removeprefix('resnet')}"
    places = (f"{stem}.pt", f"{stem}/model.pt")
    return Checkpoint(R3M_URL.format(file=places[0]), places, (Path.home() / ".r3m",))


def torchvision_checkpoint(name: ResNetName, weights: Any) -> Checkpoint:
    """Return torchvision weights by enum or name."""
    from torchvision.models import get_model_weights

    kind = get_model_weights(name)
    if isinstance(weights, str):
        known = list(kind.__members__)
        wanted = weights.removeprefix(f"{kind.__name__}.")
        if wanted not in known:
            raise UnknownNameError(
                f"torchvision has no weights {weights!r} for {name}",
                hint=did_you_mean(wanted, known, f"one of {', '.join(known)}"),
            )
        weights = kind[wanted]
    if not isinstance(weights, kind):
        raise ArgumentError(
            f"download={weights} does not fit the network {name}",
            hint=f"use one of {kind.__name__}, True or False",
        )
    return Checkpoint(weights.url, (weights.url.rpartition("/")[2],))


def checkpoint_file(download_path: str | os.PathLike[str] | None) -> Path | None:
    """Return ``download_path`` if it is a file; ``None`` if it is a folder or not given."""
    if download_path is None:
        return None
    path = Path(download_path).expanduser()
    if path.is_file():
        return path
    if path.suffix in FILE_ENDINGS and not path.is_dir():
        raise ArgumentError(
            f"checkpoint {path} does not exist",
            hint="to download one, give a folder as download_path",
        )
    return None


def fetch_checkpoint(checkpoint: Checkpoint, download_path: str | os.PathLike[str] | None) -> Path:
    """Return the file of a checkpoint in a folder (torch.hub's by default), or download it."""
    if download_path is None:
        folders = (Path(torch.hub.get_dir()) / "checkpoints", *checkpoint.folders)
    else:
        folders = (Path(download_path).expanduser(),)
    for folder in folders:
        for place in checkpoint.places:
            if (folder / place).is_file():
                return folder / place
    return _download(checkpoint.url, folders[0] / checkpoint.places[0])


def _download(url: str, target: Path) -> Path:
    published = _HASH.search(target.name)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(target) as part:
            digest = _fetch(url, part)
            if published and not digest.startswith(published[1]):
                raise ValueError(f"its SHA-256 begins with {digest[:8]}, not {published[1]}")
    except TdxError:
        raise
    except (OSError, HTTPException, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise EnvError(
            f"cannot download {url}: {reason}",
            hint=f"put the file at {target}, or pass a copy of it as download_path",
        ) from None
    return target


def _fetch(url: str, target: Path) -> str:
    """Download a file and return its SHA-256.

    Raises:
        OSError: It cannot be read or written.
        ValueError: It has more than :data:`MAX_POLICY_BYTES`, or is incomplete.
    """
    too_long = f"it has more than {MAX_POLICY_BYTES:,} bytes"
    digest, size = hashlib.sha256(), 0
    with urllib.request.urlopen(url, timeout=_TIMEOUT) as reply, target.open("wb") as file:
        if not reply.url.startswith(url.partition(":")[0] + ":"):
            raise ValueError(f"it is redirected to {reply.url}")
        declared = int(reply.headers.get("Content-Length") or 0)
        if declared > MAX_POLICY_BYTES:
            raise ValueError(too_long)
        with _show_progress(reply, declared, url) as data:
            while block := data.read(_BLOCK_BYTES):
                size += len(block)
                if size > MAX_POLICY_BYTES:
                    raise ValueError(too_long)
                digest.update(block)
                file.write(block)
    if size < declared:
        raise ValueError(f"{size:,} of {declared:,} bytes arrived")
    return digest.hexdigest()


def _show_progress(reply: Any, size: int, url: str) -> AbstractContextManager[Any]:
    if not size or not sys.stderr.isatty():
        return nullcontext(reply)
    from rich.console import Console
    from rich.progress import wrap_file

    return wrap_file(reply, size, description=url.rpartition("/")[2], console=Console(stderr=True))


# Content

# R3M publishes the state dict of a data-parallel model under "r3m"; its image encoder is
# `convnet`. https://github.com/facebookresearch/r3m, r3m/__init__.py
PREFIXES = ("module.convnet.", "convnet.", "module.", "")
LANGUAGE_PARTS = ("lang_enc", "lang_rew")
# Missing in old files, and not used by a network that is not trained.
COUNTER = "num_batches_tracked"
SHOWN = 3


def read_resnet(path: Path, name: ResNetName) -> dict[str, Tensor]:
    """Return the state dict of a residual network, from R3M's or torchvision's layout."""
    expected = empty_resnet(name).state_dict()
    entries = _network_entries(_load(path), path, expected)
    kind = resnet_of(entries)
    if kind not in (None, name):
        raise ArgumentError(
            f"{path} contains a {kind}, not a {name}",
            hint=f'use R3MTransform("{kind}")'
            if kind != "deeper resnet"
            else "use a checkpoint of resnet18, resnet34 or resnet50",
        )
    missing = [key for key in expected if key not in entries and not key.endswith(COUNTER)]
    _refuse(path, missing, f"lacks {{}} of a {name}")
    _refuse(path, [key for key in entries if key not in expected], f"has {{}} that no {name} has")
    return {key: _checked(path, key, entries.get(key), like) for key, like in expected.items()}


def _load(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            is_pickle = file.read(1) == pickle.PROTO
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise ArgumentError(
            f"cannot read {path}: {error.strerror or error}",
            hint="check the path and its permissions",
        ) from None
    if size > MAX_POLICY_BYTES:
        raise ArgumentError(
            f"{path} has more than {MAX_POLICY_BYTES:,} bytes",
            hint="use the file that R3M or torchvision publishes for this network",
        )
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
