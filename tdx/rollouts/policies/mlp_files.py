"""Save an MLP in a safetensors file, and read it without running code."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from tdx.foundation.errors import ArgumentError, PipelineError, StorageError, get_first_line
from tdx.foundation.files import check_replaceable, report_write_errors, write_atomically
from tdx.foundation.keys import Keys, normalize_key
from tdx.foundation.text import dtype_name
from tdx.foundation.untrusted import parse_json
from tdx.pipeline.policies import OutputActivation, make_policy
from tdx.pipeline.values import Value

ACTIVATION_MODULES: Mapping[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "leaky_relu": nn.LeakyReLU,
    "softplus": nn.Softplus,
}
"""Activations by name, each with its default arguments."""
MAX_LAYERS = 64
_KIND, _MLP = "tdx.policy", "mlp"
_PREFIX = "tdx."
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_SAVE_AGAIN = "write it again with tdx.save_mlp_policy"
_SUPPORTED = "use an nn.Sequential of nn.Linear with one kind of activation between them: " + (
    ", ".join(kind.__name__ for kind in ACTIVATION_MODULES.values())
)


@dataclass(frozen=True, slots=True)
class Mlp:
    """Layers of an MLP, and its settings."""

    layers: tuple[tuple[Tensor, Tensor | None], ...]  # weight [out, in], bias [out]
    settings: Mapping[str, Value]  # activation, output and in_keys, if present


def save_mlp_policy(
    module: nn.Module,
    path: str | Path,
    *,
    in_keys: Keys | None = None,
    output: OutputActivation | None = None,
    force: bool = False,
) -> None:
    """Save an MLP as a policy that runs without ``--allow-code``: ``--policy mlp:FILE``.

    Args:
        module: ``nn.Sequential`` of ``nn.Linear`` layers with the same activation between them;
            a ``nn.Tanh`` at the end becomes ``output="tanh"``. A ``TensorDictModule`` around one
            gives ``in_keys`` too.
        path: File, usually ``*.safetensors``.
        in_keys: Observations that it reads, flattened and concatenated. ``None``: ``observation``,
            or the env's only one.
        output: Action from the last layer. ``clamp``: clipped to the bounds of the action;
            ``tanh``: squashed to the bounds; ``argmax``: the choice with the largest value.
            ``None``: ``argmax`` for categorical actions, else ``clamp``.
        force: Whether an existing file is replaced.

    Raises:
        ArgumentError: The module has other parts, or the file exists.
        StorageError: It cannot be written.

    Example:
        >>> import tempfile, tdx
        >>> from torch import nn
        >>> folder = tempfile.mkdtemp()
        >>> actor = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 1), nn.Tanh())
        >>> tdx.save_mlp_policy(actor, f"{folder}/actor.safetensors", in_keys=["observation"])
        >>> pipeline = tdx.Pipeline.of("Pendulum-v1")
        >>> policy = f"mlp:{folder}/actor.safetensors"
        >>> tdx.record_dump(pipeline, f"{folder}/dump", steps=10, policy=policy).steps
        10
    """
    if isinstance(module, TensorDictModule):
        in_keys = module.in_keys if in_keys is None else in_keys
        module = module.module
    layers, activation, squashes = _disassemble(module)
    settings: dict[str, Value] = {"weights": str(path)}
    if activation is not None:
        settings["activation"] = activation
    if output is not None or squashes:
        settings["output"] = output or "tanh"
    if in_keys is not None:
        keys = [in_keys] if isinstance(in_keys, str) else in_keys
        settings["in_keys"] = tuple(normalize_key(key) for key in keys)
    if squashes and settings["output"] != "tanh":
        raise ArgumentError(
            f"the module ends with Tanh, which does not go with output={output!r}",
            hint='leave the Tanh out, or write output="tanh"',
        )
    described = make_policy("mlp", settings).settings
    check_replaceable(path, force=force)
    with report_write_errors(path, "name another file", kind=StorageError):
        write_atomically(path, _encoded(layers, described))


def _disassemble(module: nn.Module) -> tuple[list[nn.Linear], str | None, bool]:
    """Return the layers of a module, its activation, and whether it ends with a tanh."""
    parts = _parts(module)
    squashes = bool(parts) and len(parts) % 2 == 0 and type(parts[-1]) is nn.Tanh
    parts = parts[:-1] if squashes else parts
    names = {kind: name for name, kind in ACTIVATION_MODULES.items()}
    layers = [part for part in parts[::2] if type(part) is nn.Linear]
    for index, part in enumerate(parts):
        kind = type(part)
        is_usual = kind in names and _arguments(part) == _arguments(kind())
        if not (is_usual if index % 2 else kind is nn.Linear):
            raise ArgumentError(
                f"an MLP policy cannot have {part} as part {index}", hint=_SUPPORTED
            )
    if len(parts) % 2 == 0:
        raise ArgumentError("an MLP policy must end with nn.Linear or nn.Tanh", hint=_SUPPORTED)
    activations = list(dict.fromkeys(names[type(part)] for part in parts[1::2]))
    if len(activations) > 1:
        mixed = " and ".join(activations)
        raise ArgumentError(f"the module mixes the activations {mixed}", hint=_SUPPORTED)
    return layers, activations[0] if activations else None, squashes


def _parts(module: nn.Module) -> list[nn.Module]:
    """Return the parts of nested ``nn.Sequential`` that have an effect in evaluation."""
    if isinstance(module, nn.Sequential):
        return [part for child in module for part in _parts(child)]
    return [] if isinstance(module, nn.Identity | nn.Dropout) else [module]


def _arguments(module: nn.Module) -> str:
    return re.sub(r"(, )?inplace=True", "", module.extra_repr())


def _encoded(layers: list[nn.Linear], settings: Mapping[str, Value]) -> bytes:
    tensors: dict[str, Tensor] = {}
    for index, layer in enumerate(layers):
        parts = {"weight": layer.weight, "bias": layer.bias}
        for name, tensor in parts.items():
            if tensor is not None and tensor.dtype not in _DTYPES:
                raise ArgumentError(
                    f"{index}.{name} is {tensor.dtype}", hint="convert it with .float()"
                )
            if tensor is not None:
                # A copy, since two layers may share their weights.
                tensors[f"{index}.{name}"] = tensor.detach().cpu().clone().contiguous()
    metadata = {f"{_PREFIX}{name}": json.dumps(value) for name, value in settings.items()}
    return save(tensors, {_KIND: _MLP, **metadata})


def read_mlp(file: Path, data: bytes) -> Mlp:
    """Read the MLP in a safetensors file."""
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, TypeError, RuntimeError, KeyError) as error:
        raise StorageError(
            f"{file} is not a safetensors file, or is damaged: {get_first_line(error)}",
            hint="use tdx.save_mlp_policy",
        ) from error
    if len(tensors) > 2 * MAX_LAYERS:
        raise ArgumentError(f"{file} has more than {MAX_LAYERS} layers", hint=_SAVE_AGAIN)
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES:
            known = ", ".join(dtype_name(dtype) for dtype in _DTYPES)
            raise ArgumentError(
                f"{name} in {file} has the dtype {tensor.dtype}", hint=f"weights are {known}"
            )
        if not tensor.numel():
            raise ArgumentError(f"{name} in {file} is empty", hint=_SAVE_AGAIN)
        if not bool(tensor.isfinite().all()):
            raise ArgumentError(
                f"{name} in {file} has NaN or infinite values", hint="train it again"
            )
        tensors[name] = tensor if tensor.dtype is torch.float64 else tensor.float()
    # The library returns the tensors, and the header has the settings.
    end = 8 + int.from_bytes(data[:8], "little")
    header = parse_json(data[8:end], f"the header of {file}")
    return Mlp(_layers(file, tensors), _settings(file, header.get("__metadata__", {})))


def _layers(file: Path, tensors: Mapping[str, Tensor]) -> tuple[tuple[Tensor, Tensor | None], ...]:
    """Pair weights with biases, in natural order of their names."""
    layers: list[tuple[Tensor, Tensor | None]] = []
    stems = []
    for name, tensor in tensors.items():
        stem, _, part = name.rpartition(".")
        if part not in ("weight", "bias") or tensor.ndim != (2 if part == "weight" else 1):
            raise ArgumentError(
                f"{file} has a tensor {name} {list(tensor.shape)}, which is not part of an MLP",
                hint="save the policy alone, as NAME.weight [out, in] and NAME.bias [out]",
            )
        if part == "weight":
            stems.append(stem)
        elif f"{stem}.weight" not in tensors:
            raise ArgumentError(f"{file} has {name} without {stem}.weight", hint=_SAVE_AGAIN)
    for stem in sorted(stems, key=_natural):
        weight, bias = tensors[f"{stem}.weight"], tensors.get(f"{stem}.bias")
        if bias is not None and (bias.shape[0] != weight.shape[0] or bias.dtype != weight.dtype):
            raise ArgumentError(f"{stem}.bias in {file} does not fit its weight", hint=_SAVE_AGAIN)
        layers.append((weight, bias))
    if not layers:
        raise ArgumentError(f"{file} has no layers", hint=_SAVE_AGAIN)
    for (one, _), (other, _) in pairwise(layers):
        if one.shape[0] != other.shape[1] or one.dtype != other.dtype:
            raise ArgumentError(
                f"the layers in {file} do not fit together: {list(one.shape)}, "
                f"then {list(other.shape)}",
                hint="name the layers in order: 0.weight, 1.weight, ...",
            )
    return tuple(layers)


def _natural(name: str) -> list[tuple[int, str]]:
    parts = re.split(r"(\d{1,9})", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _settings(file: Path, metadata: Mapping[str, Any]) -> dict[str, Value]:
    """Return the settings in the metadata, which files of other programs do not have."""
    found: dict[str, Value] = {}
    if metadata.get(_KIND) != _MLP:
        return found
    for name in ("activation", "output", "in_keys"):
        text = metadata.get(f"{_PREFIX}{name}")
        if isinstance(text, str):
            found[name] = _as_value(parse_json(text, f"{name} in the header of {file}"))
    try:
        return dict(make_policy("mlp", {"weights": str(file), **found}).settings)
    except PipelineError as error:
        raise ArgumentError(f"{file}: {error.message}", hint=error.hint) from None


def _as_value(value: Any) -> Value:
    return tuple(map(_as_value, value)) if isinstance(value, list) else value
