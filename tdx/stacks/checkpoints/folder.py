"""Find and read the folder of a policy checkpoint, whatever library saved it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from tdx.foundation.container import Container
from tdx.foundation.errors import StorageError
from tdx.foundation.files import report_read_errors
from tdx.stacks.checkpoints.groot import GROOT
from tdx.stacks.checkpoints.lerobot import LEROBOT
from tdx.stacks.checkpoints.model import HUB_PREFIX, Checkpoint
from tdx.stacks.checkpoints.openpi import OPENPI


class CheckpointFormat(Protocol):
    """How a library saves the preprocessing of a policy."""

    title: str

    def names(self, file: str) -> bool:
        """Return True for the name of a file by which a checkpoint may be named."""
        ...

    def find(self, folder: Path) -> Sequence[str]:
        """Return the files of the format in a folder, by their names in it; none is opened."""
        ...

    def read(self, container: Container, files: Sequence[str]) -> Checkpoint:
        """Read a checkpoint.

        ``files`` are those of :meth:`find`, or the one that the user named.
        """
        ...


FORMATS: tuple[CheckpointFormat, ...] = (LEROBOT, OPENPI, GROOT)


def is_checkpoint(path: str | Path) -> bool:
    """Return True for a checkpoint folder, a processor file in it, or ``lerobot:org/name``."""
    return str(path).startswith(HUB_PREFIX) or _find(Path(path)) is not None


def _find(path: Path) -> tuple[CheckpointFormat, Path, Sequence[str]] | None:
    """Return the format of a checkpoint, its folder, and the files in it."""
    try:
        if path.suffix == ".json" and path.is_file():
            form = next((f for f in FORMATS if f.names(path.name)), None)
            return None if form is None else (form, path.parent, (path.name,))
        if not path.is_dir():
            return None
        for form in FORMATS:
            if files := form.find(path):
                return form, path, files
    except OSError:
        pass
    return None


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read the processors and the configuration of a checkpoint; no code of it runs.

    Args:
        path: Folder of the checkpoint, one of its processor files, or ``lerobot:org/name`` for a
            snapshot in the local cache of the Hugging Face Hub.

    Raises:
        StorageError: A file is missing, malformed, or claims sizes that it does not have.
    """
    is_on_hub = str(path).startswith(HUB_PREFIX)
    folder = _find_snapshot(str(path)) if is_on_hub else Path(path)
    name = str(path) if is_on_hub else str(folder)
    found = _find(folder)
    if found is None:
        raise StorageError(
            f"{name} is no policy checkpoint: it has none of "
            f"{', '.join(form.title for form in FORMATS)}",
            hint="pass the folder that LeRobot 0.4 or newer saved; older checkpoints keep "
            "statistics in model.safetensors: convert them with "
            "lerobot/processor/migrate_policy_normalization.py",
        )
    form, folder, files = found
    try:
        with report_read_errors(name), Container.open(folder) as container:
            checkpoint = form.read(container, files)
    except StorageError as error:
        if not is_on_hub:
            raise
        message = error.message.replace(str(folder), name)
        raise StorageError(message, hint=error.hint, where=error.where) from error
    return replace(checkpoint, target=name)


def _find_snapshot(target: str) -> Path:
    """Return the folder of ``lerobot:org/name`` in the local cache of the Hub."""
    name = target.removeprefix(HUB_PREFIX)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or ".." in name:
        raise StorageError(f"{target!r} is not lerobot:ORGANIZATION/NAME")
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "huggingface"
    )
    cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
    repository = cache / f"models--{name.replace('/', '--')}"
    try:
        revision = (repository / "refs" / "main").read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise StorageError(
            f"{target} is not in the cache of the Hub, {cache}",
            hint=f"download it: hf download {name} --include '*.json' '*processor*.safetensors'",
        ) from None
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise StorageError(f"the cache of {target} names no revision", hint="download it again")
    return repository / "snapshots" / revision
