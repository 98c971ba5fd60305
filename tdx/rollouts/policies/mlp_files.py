"""Save an MLP in a safetensors file, and read it without running code."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from tdx.foundation.errors import ArgumentError, PipelineError, StorageError
from tdx.foundation.files import check_replaceable, report_write_errors, write_atomically
from tdx.foundation.keys import Keys, normalize_key
from tdx.foundation.untrusted import MAX_HEADER_BYTES, parse_json, validate_shape
from tdx.pipeline.policies import OutputActivation, make_policy
from tdx.pipeline.values import Value
from tdx.rollouts.formats.safetensors import encode_header

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
_DTYPES = {
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
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
        tensors[f"{index}.weight"] = layer.weight
        if layer.bias is not None:
            tensors[f"{index}.bias"] = layer.bias
    metadata = {f"{_PREFIX}{name}": json.dumps(value) for name, value in settings.items()}
    header: dict[str, Any] = {"__metadata__": {_KIND: _MLP, **metadata}}
    blocks, end = [], 0
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        if plain.dtype not in _NAMES:
            raise ArgumentError(f"{name} is {plain.dtype}", hint="convert it with .float()")
        begin, end = end, end + plain.numel() * plain.itemsize
        place = {"dtype": _NAMES[plain.dtype], "shape": list(plain.shape)}
        header[name] = {**place, "data_offsets": [begin, end]}
        blocks.append(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return b"".join([encode_header(header), *blocks])


def read_mlp(file: Path, data: bytes) -> Mlp:
    """Read the MLP in a safetensors file."""
    header, start = _header(file, data)
    metadata = header.pop("__metadata__", {})
    if len(header) > 2 * MAX_LAYERS:
        raise ArgumentError(f"{file} has more than {MAX_LAYERS} layers", hint=_SAVE_AGAIN)
    tensors: dict[str, Tensor] = {}
    numbers, end = memoryview(data)[start:], 0
    for name, place in sorted(header.items(), key=_first_byte):
        tensors[name] = _tensor(file, name, place, numbers, end)
        end += tensors[name].numel() * _DTYPES[place["dtype"]].itemsize
    if end != len(numbers):
        raise StorageError(f"{file} is longer than its header declares", hint=_SAVE_AGAIN)
    return Mlp(_layers(file, tensors), _settings(file, metadata))


def _header(file: Path, data: bytes) -> tuple[dict[str, Any], int]:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(len(data) - 8, MAX_HEADER_BYTES):
        raise StorageError(
            f"{file} is not a safetensors file, or is cut short", hint="use tdx.save_mlp_policy"
        )
    header = parse_json(data[8 : 8 + length], f"the header of {file}")
    if not isinstance(header, dict) or not all(
        isinstance(tensor, dict) for tensor in header.values()
    ):
        raise StorageError(f"the header of {file} is not a map of tensors", hint=_SAVE_AGAIN)
    return header, 8 + length


def _first_byte(item: tuple[str, dict[str, Any]]) -> int:
    offsets = item[1].get("data_offsets")
    first = offsets[0] if isinstance(offsets, list) and offsets else None
    return first if isinstance(first, int) else -1


def _tensor(
    file: Path, name: str, place: Mapping[str, Any], data: memoryview, begin: int
) -> Tensor:
    """Return one tensor, which must start where the previous one ends."""
    dtype = _DTYPES.get(str(place.get("dtype")))
    if dtype is None:
        raise ArgumentError(
            f"{name} in {file} has the dtype {place.get('dtype')!r}",
            hint=f"weights are {', '.join(_DTYPES)}",
        )
    shape = validate_shape(place.get("shape"), f"{name} in {file}")  # type: ignore[arg-type]
    count = math.prod(shape)
    end = begin + count * dtype.itemsize
    if place.get("data_offsets") != [begin, end] or end > len(data):
        raise StorageError(
            f"the offsets of {name} in {file} do not fit its shape and the file", hint=_SAVE_AGAIN
        )
    if not count:
        raise ArgumentError(f"{name} in {file} is empty", hint=_SAVE_AGAIN)
    block = bytearray(data[begin:end])
    tensor = torch.frombuffer(block, dtype=dtype).reshape(shape)
    if not bool(tensor.isfinite().all()):
        raise ArgumentError(f"{name} in {file} has NaN or infinite values", hint="train it again")
    return tensor if dtype is torch.float64 else tensor.float()


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
