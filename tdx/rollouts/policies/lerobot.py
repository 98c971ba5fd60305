"""Run policies of LeRobot, with the processors of their checkpoints, on envs of tdx."""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.envs import EnvBase
from tdx.foundation.errors import (
    ArgumentError,
    MissingPackageError,
    get_first_line,
    summarize_error,
)
from tdx.foundation.generators import preserved_generators
from tdx.foundation.keys import NestedKey, format_key, normalize_key
from tdx.pipeline.values import Value
from tdx.specs import Bounded, TensorSpec, Unbounded
from tdx.stacks.checkpoints import Checkpoint, Feature, read_checkpoint

_INIT = "is_init"
_ACTION = "action"
_GYM_KEYS: Mapping[str, NestedKey] = {
    "observation.image": "pixels",
    "observation.state": "agent_pos",
    "observation.environment_state": "environment_state",
}
"""Observations of Gymnasium envs that LeRobot passes to a policy, by the policy's name."""
_IMAGES = "observation.images."
_INPUT_HINT = "run it on the env that it was trained on; `tdx inspect spec` shows what this one has"


class _Resettable(Protocol):
    def reset(self) -> None: ...


class _Policy(_Resettable, Protocol):
    def select_action(self, batch: dict[str, Tensor]) -> Tensor: ...


class _Preprocessor(_Resettable, Protocol):
    def __call__(self, batch: dict[str, Tensor]) -> dict[str, Tensor]: ...


class _Postprocessor(_Resettable, Protocol):
    def __call__(self, action: Tensor) -> Tensor: ...


class LeRobotPolicy:
    """A checkpoint as a policy over the TensorDicts of an env of tdx, or of a batch of one.

    It is reset where an episode starts, as the flag ``is_init`` of the chain says: actions that it
    planned in one episode are not played in the next one. The classes of the checkpoint are code:
    the caller checks that it may run.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Value], env: EnvBase) -> None:
        checkpoint = read_checkpoint(folder)
        if checkpoint.config is None or checkpoint.config.policy is None:
            raise ArgumentError(
                f"{folder} does not name the type of its policy",
                hint="copy the config.json that LeRobot saved beside the processors",
            )
        if math.prod(env.batch_size) != 1:
            raise ArgumentError(
                f"{folder} keeps one queue of actions, which cannot be reset for one of "
                f"{math.prod(env.batch_size)} envs",
                hint="use one env: --num-envs 1",
            )
        if len(env.action_keys) != 1:
            raise ArgumentError(
                f"the env takes {len(env.action_keys)} actions per step, {folder} gives one"
            )
        known = [normalize_key(key) for key in env.observation_keys]
        if _INIT not in known:
            raise ArgumentError(
                f"{folder} has to be reset where an episode starts, which no entry of the env says",
                hint="add the transform InitTracker: -t InitTracker",
            )
        known.remove(_INIT)
        inputs = checkpoint.config.inputs
        self._keys = _find_keys(folder, inputs, settings.get("in_keys"), known)
        self.in_keys: list[NestedKey] = [*self._keys.values(), _INIT]
        self.out_keys = list(env.action_keys)
        lead = len(env.batch_size)
        self._convert = {
            name: _check_input(folder, inputs[name], env.full_observation_spec[key], key, lead)
            for name, key in self._keys.items()
        }
        self._action = env.full_action_spec[self.out_keys[0]]
        taken = self._action.shape[lead:]
        given = checkpoint.config.outputs.get(_ACTION)
        is_box = isinstance(self._action, Bounded | Unbounded) and self._is_float(self._action)
        if given is None or not is_box or given.shape != tuple(taken):
            gives = "no action" if given is None else f"float {list(given.shape)}"
            takes = f"float {list(taken)}" if is_box else type(self._action).__name__
            raise ArgumentError(
                f"{folder} gives {gives}, the env takes {takes} in {_ACTION!r}", hint=_INPUT_HINT
            )
        self._device = env.device or torch.device("cpu")
        self._policy, self._preprocess, self._postprocess = _load(folder, checkpoint, self._device)

    @staticmethod
    def _is_float(spec: TensorSpec) -> bool:
        return spec.dtype is not None and spec.dtype.is_floating_point

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        if bool(tensordict.get(_INIT).any()):
            for part in (self._preprocess, self._policy, self._postprocess):
                part.reset()
        batch = {
            name: self._convert[name](tensordict.get(key)).to(self._device)
            for name, key in self._keys.items()
        }
        with torch.no_grad():
            action = self._postprocess(self._policy.select_action(self._preprocess(batch)))
        return tensordict.set(
            self.out_keys[0],
            action.reshape(self._action.shape).to(self._device, self._action.dtype),
        )


def hash_folder(folder: Path) -> str:
    """Return the SHA-256 of the names and contents of all files in a folder."""
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        with file.open("rb") as opened:
            content = hashlib.file_digest(opened, "sha256").hexdigest()
        digest.update(f"{file.relative_to(folder).as_posix()}\0{content}\n".encode())
    return digest.hexdigest()


def _find_keys(
    folder: Path, inputs: Mapping[str, Feature], in_keys: Value, known: list[NestedKey]
) -> dict[str, NestedKey]:
    """Return the entry of the env for each input of the policy."""
    listed = ", ".join(map(format_key, known)) or "no observations"
    if isinstance(in_keys, tuple):
        keys = [normalize_key(key) for key in in_keys]
        if len(keys) != len(inputs):
            raise ArgumentError(
                f"{folder} reads {len(inputs)} observations ({', '.join(inputs)}), in_keys names "
                f"{len(keys)}",
                hint=f"the env has {listed}",
            )
        named = dict(zip(inputs, keys, strict=True))
    else:
        named = {}
        for name in inputs:
            usual = _GYM_KEYS.get(name)
            if name.startswith(_IMAGES):
                usual = ("pixels", name.removeprefix(_IMAGES))
            choices = [tuple(name.split(".")), name, *([] if usual is None else [usual])]
            only = known[0] if len(inputs) == len(known) == 1 else name
            named[name] = next((key for key in choices if key in known), only)
    for name, key in named.items():
        if key not in known:
            raise ArgumentError(
                f"{folder} reads {name if in_keys is None else format_key(key)!r}, "
                f"the env has {listed}",
                hint=f"name the entry for each of {', '.join(inputs)}: "
                f'lerobot("{folder}", in_keys=["{listed.split(",")[0]}"])',
            )
    return named


def _check_input(
    folder: Path, feature: Feature, spec: TensorSpec, key: NestedKey, lead: int
) -> Callable[[Tensor], Tensor]:
    """Compare an input of the policy with an entry, and return the conversion of its values."""
    shape, dtype = tuple(spec.shape[lead:]), spec.dtype
    if feature.kind == "VISUAL" and dtype is torch.uint8 and len(shape) == 3:
        if (shape[2], *shape[:2]) == feature.shape:
            return lambda image: _with_batch(image, shape).movedim(-1, 1).float() / 255
        if shape == feature.shape:
            return lambda image: _with_batch(image, shape).float() / 255
    elif dtype is not None and shape == feature.shape:
        is_image = feature.kind == "VISUAL"
        if dtype.is_floating_point or (not is_image and dtype is not torch.uint8):
            return lambda value: _with_batch(value, shape).float()
    kind = "float" if dtype is None or dtype.is_floating_point else str(dtype).split(".")[-1]
    raise ArgumentError(
        f"{folder} takes {feature}, the env gives {kind} {list(shape)} in {format_key(key)!r}",
        hint=_INPUT_HINT,
    )


def _with_batch(value: Tensor, shape: tuple[int, ...]) -> Tensor:
    return value.reshape(1, *shape)


def _load(
    folder: Path, checkpoint: Checkpoint, device: torch.device
) -> tuple[_Policy, _Preprocessor, _Postprocessor]:
    assert checkpoint.config is not None
    # Networks are initialized before their weights are loaded. LeRobot prints what it loads, which
    # would end up in the JSON of a command.
    with (
        preserved_generators(),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        try:
            from lerobot.configs.policies import PreTrainedConfig
            from lerobot.policies.factory import get_policy_class, make_pre_post_processors
        except ImportError as error:
            raise MissingPackageError(
                f"a policy lerobot:FOLDER needs the package {error.name or 'lerobot'}",
                hint="install LeRobot 0.4 into the environment of tdx: pip install lerobot",
            ) from error
        try:
            config = PreTrainedConfig.from_pretrained(folder, local_files_only=True)
            config.device = str(device)
            if hasattr(config, "pretrained_backbone_weights"):
                # They would be downloaded, only to be replaced by those of the checkpoint.
                config.pretrained_backbone_weights = None
            kind = get_policy_class(config.type)
            policy = kind.from_pretrained(folder, config=config, local_files_only=True)
            moved = {"device_processor": {"device": str(device)}}
            overrides = {
                f"{processor.role}_overrides": {
                    step.name: moved[step.name] for step in processor.steps if step.name in moved
                }
                for processor in checkpoint.processors
            }
            before, after = make_pre_post_processors(config, str(folder), **overrides)
        except ImportError as error:
            raise MissingPackageError(
                f"{folder} needs {error.name or get_first_line(error)}, which cannot be imported",
                hint="install LeRobot with the extra of this policy",
            ) from error
        except Exception as error:
            raise ArgumentError(
                f"{folder} cannot be loaded: {summarize_error(error)}",
                hint="load it with the version of LeRobot that it was saved with",
            ) from error
    return policy, before, after
