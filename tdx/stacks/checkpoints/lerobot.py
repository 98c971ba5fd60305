"""Read a checkpoint folder of LeRobot 0.4 and newer.

The format: ``policy_preprocessor.json`` and ``policy_postprocessor.json`` list steps, each with a
registered name or a class, its arguments, and the safetensors file of its state; ``config.json``
declares the features of the policy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeGuard

from tdx.foundation.array_files import Array
from tdx.foundation.container import Container
from tdx.foundation.errors import StorageError
from tdx.foundation.untrusted import MAX_STAGES
from tdx.stacks.checkpoints.files import read_json, read_part
from tdx.stacks.checkpoints.model import (
    ROLES,
    Checkpoint,
    Json,
    PolicyConfig,
    Processor,
    Role,
    Step,
    parse_features,
    parse_fps,
)

CONFIG = "config.json"
TRAINING = "train_config.json"
"""The options of the training, with those of the env that the policy was evaluated in."""
MAX_STATE_BYTES = 256 * 2**20
"""Size of the state of one step: statistics, not weights."""


class LeRobotFormat:
    """The processors that LeRobot 0.4 and newer saves; see :class:`CheckpointFormat`."""

    title = "policy_preprocessor.json (LeRobot)"

    def names(self, file: str) -> bool:
        return _role(file) is not None

    def find(self, folder: Path) -> Sequence[str]:
        return [name for name in sorted(os.listdir(folder)) if _role(name) is not None]

    def read(self, container: Container, files: Sequence[str]) -> Checkpoint:
        """Read the processors, ``config.json``, and the fps of ``train_config.json``."""
        config = _read_config(container) if CONFIG in container.names() else None
        processors = tuple(
            _read_processor(container, name, role)
            for role in ROLES
            for name in files
            if _role(name) == role
        )
        notes = () if config is not None else (f"there is no {CONFIG}: specs are not known",)
        fps = None if config is None else parse_fps(config.values.get("fps"))
        if fps is None and TRAINING in container.names():
            env = read_json(container, TRAINING).get("env")
            fps = parse_fps(env.get("fps")) if isinstance(env, dict) else None
        return Checkpoint(container.path, config, processors, notes, fps=fps)


LEROBOT = LeRobotFormat()


def _role(name: str) -> Role | None:
    return next((role for role in ROLES if name.endswith(f"{role}.json")), None)


def _read_config(container: Container) -> PolicyConfig:
    document = read_json(container, CONFIG)

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
    listed = read_json(container, name).get("steps")
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
        state = _parse_state(read_part(container, file, MAX_STATE_BYTES), file)
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
