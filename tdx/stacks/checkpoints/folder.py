"""Read a checkpoint folder of LeRobot 0.4 and newer.

The format: ``policy_preprocessor.json`` and ``policy_postprocessor.json`` list steps, each with a
registered name or a class, its arguments, and the safetensors file of its state; ``config.json``
declares the features of the policy.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeGuard

from tdx.foundation.container import Container
from tdx.foundation.errors import StorageError
from tdx.foundation.untrusted import MAX_STAGES, parse_json
from tdx.stacks.checkpoints.model import (
    ROLES,
    Array,
    Checkpoint,
    Json,
    PolicyConfig,
    Processor,
    Role,
    Step,
    parse_features,
)

CONFIG = "config.json"
MAX_JSON_BYTES = 16 * 2**20
MAX_STATE_BYTES = 256 * 2**20
"""Size of the state of one step: statistics, not weights."""

_BLOB = re.compile(r"\.\./\.\./blobs/([0-9a-f]{40,64})\Z")
HUB_PREFIX = "lerobot:"


def is_checkpoint(path: str | Path) -> bool:
    """Return True for a checkpoint folder, a processor file in it, or ``lerobot:org/name``.

    Example:
        >>> is_checkpoint("pipeline.yaml")
        False
    """
    if str(path).startswith(HUB_PREFIX):
        return True
    path = Path(path)
    if path.suffix == ".json":
        return path.is_file() and _role(path.name) is not None
    try:
        return any(_role(name) is not None for name in os.listdir(path))
    except OSError:
        return False


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read the processors and the configuration of a checkpoint; no code of it runs.

    Args:
        path: Folder of the checkpoint, one of its processor files, or ``lerobot:org/name`` for a
            snapshot in the local cache of the Hugging Face Hub.

    Raises:
        StorageError: A file is missing, malformed, or claims sizes that it does not have.
    """
    folder = _find_snapshot(str(path)) if str(path).startswith(HUB_PREFIX) else Path(path)
    only: str | None = None
    if folder.suffix == ".json" and not folder.is_dir():
        folder, only = folder.parent, folder.name
    try:
        with Container.open(folder) as container:
            names = sorted(container.names())
            files = [name for name in names if _role(name) is not None and only in (None, name)]
            if not files:
                raise StorageError(
                    f"{folder} has no policy_preprocessor.json and no policy_postprocessor.json",
                    hint="pass the folder that LeRobot 0.4 or newer saved; older checkpoints keep "
                    "statistics in model.safetensors: convert them with "
                    "lerobot/processor/migrate_policy_normalization.py",
                )
            config = _read_config(container) if CONFIG in names else None
            processors = tuple(
                processor
                for role in ROLES
                for processor in (
                    _read_processor(container, name, role) for name in files if _role(name) == role
                )
            )
    except StorageError:
        raise
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise StorageError(f"{folder} cannot be read: {reason}") from error
    notes = () if config is not None else (f"there is no {CONFIG}: specs are not known",)
    return Checkpoint(folder, config, processors, notes)


def _role(name: str) -> Role | None:
    return next((role for role in ROLES if name.endswith(f"{role}.json")), None)


def _read_part(container: Container, name: str, limit: int) -> bytes:
    """Return the content of a file.

    A snapshot of the Hub's cache consists of links to ``../../blobs/<hash>``. These are followed,
    to exactly that folder; every other link is refused.
    """
    blob = _find_blob(container, name)
    if blob is None:
        return container.read(name, limit)
    with Container.open(container.path.resolve().parent.parent / "blobs") as blobs:
        return blobs.read(blob, limit)


def _find_blob(container: Container, name: str) -> str | None:
    try:
        match = _BLOB.match(os.readlink(name, dir_fd=container.descriptor))
    except (OSError, ValueError):
        return None
    in_cache = container.path.resolve().parent.name == "snapshots"
    return match[1] if match and in_cache and "/" not in name else None


def _read_json(container: Container, name: str) -> dict[str, Json]:
    document = parse_json(_read_part(container, name, MAX_JSON_BYTES), name)
    if not isinstance(document, dict):
        raise StorageError(f"{name} is not a JSON object", hint="save the checkpoint again")
    return document


def _read_config(container: Container) -> PolicyConfig:
    document = _read_json(container, CONFIG)

    def mapping(key: str) -> Mapping[str, Json]:
        value = document.get(key)
        return value if isinstance(value, dict) else {}

    kind = document.get("type")
    return PolicyConfig(
        kind if isinstance(kind, str) else None,
        parse_features(mapping("input_features")),
        parse_features(mapping("output_features")),
        {k: mode for k, mode in mapping("normalization_mapping").items() if isinstance(mode, str)},
        document,
    )


def _read_processor(container: Container, name: str, role: Role) -> Processor:
    listed = _read_json(container, name).get("steps")
    if not isinstance(listed, list):
        raise StorageError(f"{name} has no list of steps", hint="save the checkpoint again")
    if len(listed) > MAX_STAGES:
        raise StorageError(f"{name} has {len(listed):,} steps, more than {MAX_STAGES}")
    steps = tuple(
        _read_step(container, index, value, f"step {index} of {name}")
        for index, value in enumerate(listed)
    )
    return Processor(role, name, steps)


def _read_step(container: Container, index: int, value: Json, where: str) -> Step:
    if not isinstance(value, dict):
        raise StorageError(f"{where} is not a JSON object", hint="save the checkpoint again")
    registered, path = value.get("registry_name"), value.get("class")
    name = registered if _is_name(registered) else path
    if not _is_name(name):
        raise StorageError(f"{where} has neither a registry_name nor a class")
    config = value.get("config", {})
    if not isinstance(config, dict):
        raise StorageError(f"the config of {where} is not a JSON object")
    file = value.get("state_file")
    if file is None:
        return Step(index, name, not _is_name(registered), config)
    if not isinstance(file, str):
        raise StorageError(f"the state_file of {where} is not a name")
    try:
        state = _parse_state(_read_part(container, file, MAX_STATE_BYTES), file)
    except FileNotFoundError:
        raise StorageError(
            f"{where} ({name}) has the state file {file}, which is missing",
            hint="download or copy it too: without it, the step has no statistics",
        ) from None
    return Step(index, name, not _is_name(registered), config, state, file)


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= 200


def _parse_state(data: bytes, name: str) -> dict[str, Array]:
    """Return the tensors of a safetensors file, which has no code and no compression."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return dict(sorted(load(data).items()))
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise StorageError(
            f"{name} is not a valid safetensors file: {error}", hint="download it again"
        ) from error


def _find_snapshot(target: str) -> Path:
    """Return the folder of ``lerobot:org/name`` in the local cache of the Hub.

    Raises:
        StorageError: The name is not one of the Hub, or the cache does not have it.
    """
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
            f"{name} is not in the cache of the Hub, {cache}",
            hint=f"download it: hf download {name} --include '*.json' '*processor*.safetensors'",
        ) from None
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise StorageError(f"the cache of {name} names no revision", hint="download it again")
    return repository / "snapshots" / revision
