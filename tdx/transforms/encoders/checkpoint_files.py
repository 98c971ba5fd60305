"""Find a checkpoint on disk, or download it."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

import torch

from tdx.errors import ArgumentError, EnvError, TdxError, UnknownNameError, did_you_mean
from tdx.files import atomic_path
from tdx.transforms.encoders.resnet import ResNetName

R3M_URL = "https://pytorch.s3.amazonaws.com/models/rl/r3m/{file}"
FILE_ENDINGS = (".pt", ".pth")
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
    """Return torchvision weights by enum or name.

    Raises:
        UnknownNameError: torchvision has no weights of that name for this network.
        ArgumentError: The weights are for another network.
    """
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
    """Return ``download_path`` if it is a file; ``None`` if it is a folder or not given.

    Raises:
        ArgumentError: It has the extension of a checkpoint and does not exist.
    """
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
    """Return the file of a checkpoint; download it if it does not exist.

    Args:
        checkpoint: Checkpoint to find.
        download_path: Folder. ``None``: that of torch.hub.

    Raises:
        EnvError: It does not exist and cannot be downloaded.
    """
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
    digest = _HASH.search(target.name)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(target) as part:
            torch.hub.download_url_to_file(
                url, str(part), hash_prefix=digest and digest[1], progress=sys.stderr.isatty()
            )
    except TdxError:
        raise
    except (OSError, HTTPException, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise EnvError(
            f"cannot download {url}: {reason}",
            hint=f"put the file at {target}, or pass a copy of it as download_path",
        ) from None
    return target
