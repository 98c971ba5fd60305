"""Find a checkpoint on this machine, or download it."""

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
        url: where it is published.
        places: what it is called inside a folder, the first name being that of a download.
        folders: where else it may be.
    """

    url: str
    places: tuple[str, ...]
    folders: tuple[Path, ...] = ()


def r3m_checkpoint(name: ResNetName) -> Checkpoint:
    """R3M's own weights; its package keeps them in ``~/.r3m/r3m_50/model.pt``."""
    stem = f"r3m_{name.removeprefix('resnet')}"
    places = (f"{stem}.pt", f"{stem}/model.pt")
    return Checkpoint(R3M_URL.format(file=places[0]), places, (Path.home() / ".r3m",))


def torchvision_checkpoint(name: ResNetName, weights: Any) -> Checkpoint:
    """Weights of torchvision, by its enum or a name in it.

    Raises:
        UnknownNameError: torchvision has no weights of that name for this network.
        ArgumentError: they are another network's.
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
            f"download is {weights}, and the network a {name}",
            hint=f"use one of {kind.__name__}, True or False",
        )
    return Checkpoint(weights.url, (weights.url.rpartition("/")[2],))


def named_file(download_path: str | os.PathLike[str] | None) -> Path | None:
    """The file that ``download_path`` names; ``None`` where it is a folder or not given.

    Raises:
        ArgumentError: it ends like a checkpoint's name, and there is no such file.
    """
    if download_path is None:
        return None
    path = Path(download_path).expanduser()
    if path.is_file():
        return path
    if path.suffix in FILE_ENDINGS and not path.is_dir():
        raise ArgumentError(
            f"there is no checkpoint {path}",
            hint="to download one, give a folder as download_path",
        )
    return None


def fetched(checkpoint: Checkpoint, download_path: str | os.PathLike[str] | None) -> Path:
    """The checkpoint's file: one that is there already, else downloaded.

    Args:
        checkpoint: which one.
        download_path: the folder; by default torch.hub's.

    Raises:
        EnvError: it is not there and cannot be downloaded.
    """
    if download_path is None:
        folders = (Path(torch.hub.get_dir()) / "checkpoints", *checkpoint.folders)
    else:
        folders = (Path(download_path).expanduser(),)
    for folder in folders:
        for place in checkpoint.places:
            if (folder / place).is_file():
                return folder / place
    return _downloaded(checkpoint.url, folders[0] / checkpoint.places[0])


def _downloaded(url: str, target: Path) -> Path:
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
            hint=f"put the file at {target}, or name a copy of it by download_path",
        ) from None
    return target
