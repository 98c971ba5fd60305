"""Load policies from files: fixed actions, an MLP, or a saved module."""

from __future__ import annotations

import io
import math
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from tdx.envs import EnvBase
from tdx.foundation.errors import (
    ArgumentError,
    StorageError,
    TdxError,
    did_you_mean,
    get_first_line,
)
from tdx.foundation.keys import NestedKey, format_key, normalize_key, split_key
from tdx.foundation.untrusted import check_claimed_bytes, parse_json
from tdx.pipeline.values import Value
from tdx.rollouts.dump.reading import open_dump
from tdx.rollouts.formats.files import read_array_header
from tdx.rollouts.policies.mlp_files import ACTIVATION_MODULES, Mlp, read_mlp
from tdx.specs import (
    Binary,
    BoundedContinuous,
    Categorical,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    TensorSpec,
    UnboundedContinuous,
)

_SAVE_AS = "save an array [T, ...] or [*B, T, ...]"
_ENDLESS = 1 << 40
Head = Callable[[Tensor], Tensor]
"""Turns the last layer's values ``[*B, n]`` into an action ``[*B, ...]``."""


def read_actions(file: Path, data: bytes) -> Tensor:
    """Read the actions in a file. A ``.pt`` file is unpickled: the caller checks that it may be."""
    readers = {".npy": _npy, ".json": _json, ".pt": _pickled, ".pth": _pickled}
    reader = readers.get(file.suffix)
    if reader is None:
        raise ArgumentError(
            f"{file.name} has an unknown format",
            hint="actions are read from .npy, .json, .pt (with --allow-code), or a dump",
        )
    try:
        return reader(file, data)
    except TdxError:
        raise
    except Exception as error:
        raise ArgumentError(
            f"{file} has no actions: {get_first_line(error)}", hint=_SAVE_AS
        ) from None


def _npy(file: Path, data: bytes) -> Tensor:
    """Read an array, comparing its header with the file before anything is allocated."""
    stream = io.BytesIO(data)
    shape, in_columns, dtype = read_array_header(stream, f"the array in {file}")
    if dtype.hasobject:
        raise ValueError("it has Python objects")
    start, count = stream.tell(), math.prod(shape)
    if count * dtype.itemsize > len(data) - start:
        check_claimed_bytes(count * dtype.itemsize, file, f"the header of {file}")
        raise StorageError(f"{file} is shorter than its header declares", hint="save it again")
    flat = np.frombuffer(data, dtype, count, start)
    array = flat.reshape(shape[::-1]).T if in_columns else flat.reshape(shape)
    return torch.from_numpy(array.astype(dtype.newbyteorder("="), order="C"))


def _json(file: Path, data: bytes) -> Tensor:
    return torch.tensor(parse_json(data, file))


def _pickled(file: Path, data: bytes) -> Tensor:
    loaded = torch.load(io.BytesIO(data), weights_only=True)
    if isinstance(loaded, Tensor):
        return loaded
    raise TypeError(f"it is a {type(loaded).__name__}, not a tensor")


def expand_to_batch(actions: Tensor, env: EnvBase, file: Path) -> Tensor:
    """Expand actions ``[T, ...]`` or ``[*B, T, ...]`` to ``[*B, T, ...]``, and check their spec."""
    if len(env.action_keys) != 1:
        raise ArgumentError(
            f"the env takes {len(env.action_keys)} actions per step, {file.name} has one array",
            hint="name a dump of the same env: sequence:DUMP",
        )
    spec, batch = env.full_action_spec[env.action_keys[0]], tuple(env.batch_size)
    single = tuple(spec.shape[len(batch) :])
    if single == (1,) and actions.shape[1:] != single and actions.ndim in (1, len(batch) + 1):
        actions = actions.unsqueeze(-1)
    if actions.shape[1:] == single and batch:
        actions = actions.expand(*batch, *actions.shape)
    whole = actions.ndim == len(spec.shape) + 1
    if not whole or actions.shape[: len(batch)] + actions.shape[len(batch) + 1 :] != spec.shape:
        raise ArgumentError(
            f"the actions in {file} have shape {list(actions.shape)}, "
            f"the env takes {list(spec.shape)} in a step",
            hint="save them as [T, ...] or [*B, T, ...]",
        )
    if actions.is_floating_point() != spec.dtype.is_floating_point:
        raise ArgumentError(
            f"the actions in {file} are {actions.dtype}, the env takes {spec.dtype}",
            hint=f"save them as {spec.dtype}",
        )
    return actions.to(spec.dtype)


def build_zero_actions(env: EnvBase) -> TensorDictBase:
    """Return zeros, or the valid action closest to zero, for any number of steps."""
    spec = env.full_action_spec
    action = spec.zero()
    for key, leaf in spec.items(True, True):
        if isinstance(leaf, OneHot):
            action.get(key)[..., 0] = 1
        elif not leaf.is_in(action.get(key)):
            action.set(key, leaf.project(action.get(key)))
    dim = len(env.batch_size)
    return action.unsqueeze(dim).expand(*env.batch_size, _ENDLESS)


def read_dump_actions(folder: Path, env: EnvBase) -> TensorDictBase:
    """Return the actions in a dump, ``[*B, T]``."""
    actions: TensorDictBase = open_dump(folder).data.select(*env.action_keys)
    dim = len(env.batch_size)
    for key, spec in env.full_action_spec.items(True, True):
        found = actions.get(key)
        if found.shape[:dim] + found.shape[dim + 1 :] != spec.shape or found.dtype != spec.dtype:
            raise ArgumentError(
                f"the actions in {folder} are {found.dtype} {list(found.shape)}, "
                f"the env takes {spec.dtype} {list(spec.shape)} in a step",
                hint="name a dump of the same env and number of envs",
            )
    return actions


class MlpPolicy(nn.Module):
    """Flattens and concatenates observations, applies the layers, and forms an action."""

    def __init__(self, layers: nn.Sequential, head: Head, batch_dims: int) -> None:
        super().__init__()
        self.layers = layers
        self._head = head
        self._batch_dims = batch_dims
        self._dtype = next(layers.parameters()).dtype

    def forward(self, *observations: Tensor) -> Tensor:
        """Return the action for observations ``[*B, ...]``."""
        dims = self._batch_dims
        flat = [
            observation.reshape(*observation.shape[:dims], -1).to(self._dtype)
            for observation in observations
        ]
        return self._head(self.layers(flat[0] if len(flat) == 1 else torch.cat(flat, -1)))


def load_mlp(file: Path, data: bytes, settings: Mapping[str, Value], env: EnvBase) -> Any:
    """Load the MLP in a safetensors file as a policy.

    ``settings`` are those in the policy's name: they take precedence over those in the file.
    """
    mlp = read_mlp(file, data)
    chosen = {**mlp.settings, **settings}
    if len(env.action_keys) != 1:
        raise ArgumentError(
            f"the env takes {len(env.action_keys)} actions per step, an mlp gives one",
            hint="use module:FILE, or Python code with --allow-code",
        )
    in_keys = _in_keys(chosen, env)
    _check_inputs(file, mlp, in_keys, env)
    head, size = _build_head(env.full_action_spec[env.action_keys[0]], chosen.get("output"), env)
    if mlp.layers[-1][0].shape[0] != size:
        raise ArgumentError(
            f"{file} gives {mlp.layers[-1][0].shape[0]} numbers, the action needs {size}",
            hint="`tdx inspect spec` shows the action; train the policy for this env",
        )
    policy = MlpPolicy(_sequential(file, mlp, chosen.get("activation")), head, env.batch_dims)
    module = TensorDictModule(policy, in_keys=in_keys, out_keys=list(env.action_keys))
    return module.to(env.device).requires_grad_(False).eval()


def _in_keys(settings: Mapping[str, Value], env: EnvBase) -> list[NestedKey]:
    known = [normalize_key(key) for key in env.observation_keys]
    listed = ", ".join(map(format_key, known)) or "no observations"
    given = settings.get("in_keys")
    if not isinstance(given, tuple):
        if "observation" in known or len(known) == 1:
            return ["observation"] if "observation" in known else known
        raise ArgumentError(
            "the mlp has no in_keys, and the env has several observations",
            hint=f'add in_keys, such as mlp("FILE", in_keys=["{listed.split(",")[0]}"]); '
            f"the env has {listed}",
        )
    keys = [normalize_key(key) for key in given]
    for key in keys:
        if key not in known:
            names = [format_key(known_key) for known_key in known]
            hint = did_you_mean(format_key(key), names, f"the env has {listed}")
            raise ArgumentError(f"the env has no observation {format_key(key)!r}", hint=hint)
    return keys


def _check_inputs(file: Path, mlp: Mlp, in_keys: Sequence[NestedKey], env: EnvBase) -> None:
    size = 0
    for key in in_keys:
        spec = env.full_observation_spec[key]
        if spec.dtype is None or spec.dtype.is_complex:
            raise ArgumentError(
                f"an mlp cannot read {format_key(key)!r}", hint="name a tensor with in_keys"
            )
        size += math.prod(spec.shape[env.batch_dims :])
    taken = mlp.layers[0][0].shape[1]
    if taken != size:
        names = ", ".join(map(format_key, in_keys))
        raise ArgumentError(
            f"{file} takes {taken} numbers, the env gives {size} in {names}",
            hint="name what it reads with in_keys; `tdx inspect spec` shows the observations",
        )


def _sequential(file: Path, mlp: Mlp, activation: Value) -> nn.Sequential:
    if len(mlp.layers) > 1 and activation not in ACTIVATION_MODULES:
        raise ArgumentError(
            f"{file} has no activation for its layers",
            hint=f'write mlp("{file}", activation="tanh")',
        )
    layers = []
    for weight, bias in mlp.layers:
        size_out, size_in = weight.shape
        layer = nn.Linear(size_in, size_out, bias is not None, device="meta")
        layer.weight = nn.Parameter(weight)
        if bias is not None:
            layer.bias = nn.Parameter(bias)
        layers.append(layer)
    between = [ACTIVATION_MODULES[str(activation)]() for _ in layers[1:]]
    return nn.Sequential(*chain.from_iterable(zip(layers, between, strict=False)), layers[-1])


def _build_head(spec: TensorSpec, output: Value, env: EnvBase) -> tuple[Head, int]:
    """Return the head for an action spec, and the number of values that it needs."""
    single = spec.shape[env.batch_dims :]
    if isinstance(spec, (BoundedContinuous, UnboundedContinuous)):
        if output == "argmax":
            raise _wrong_output(output, "numbers", "clamp or tanh")
        return _continuous_head(spec, output, single), math.prod(single)
    if output not in (None, "argmax"):
        raise _wrong_output(output, "categories", "argmax")
    head = _categorical_head(spec, single)
    if head is None:
        raise ArgumentError(
            f"an mlp cannot give actions of {type(spec).__name__} {list(single)}",
            hint="use module:FILE, or Python code with --allow-code",
        )
    return head


def _wrong_output(output: Value, what: str, wanted: str) -> ArgumentError:
    return ArgumentError(
        f"output={output!r} does not go with an action of {what}", hint=f"write output={wanted!r}"
    )


def _continuous_head(spec: TensorSpec, output: Value, single: torch.Size) -> Head:
    dtype = spec.dtype
    if not isinstance(spec, BoundedContinuous):
        if output == "tanh":
            raise ArgumentError(
                "output='tanh' needs an action with bounds", hint="leave it out: output='clamp'"
            )
        return lambda values: values.reshape(*values.shape[:-1], *single).to(dtype)
    low, high = spec.low, spec.high
    if output != "tanh":
        return lambda values: values.reshape(*values.shape[:-1], *single).to(dtype).clamp(low, high)
    middle, half = low / 2 + high / 2, high / 2 - low / 2
    if not bool(middle.isfinite().all() and half.isfinite().all()):
        raise ArgumentError(
            "output='tanh' needs an action with finite bounds", hint="write output='clamp'"
        )
    return lambda values: (
        (values.reshape(*values.shape[:-1], *single).tanh() * half + middle)
        .to(dtype)
        .clamp(low, high)
    )


def _categorical_head(spec: TensorSpec, single: torch.Size) -> tuple[Head, int] | None:
    """Return a head that picks the largest values; ``None`` if the spec has no categories."""
    dtype = spec.dtype
    if isinstance(spec, (MultiOneHot, MultiCategorical)) and len(single) == 1:
        is_one_hot = isinstance(spec, MultiOneHot)
        sizes = _sizes(spec)

        def choose(values: Tensor) -> Tensor:
            choices = [block.argmax(-1) for block in values.split(sizes, -1)]
            if not is_one_hot:
                return torch.stack(choices, -1).to(dtype)
            pairs = zip(choices, sizes, strict=True)
            blocks = [nn.functional.one_hot(choice, size) for choice, size in pairs]
            return torch.cat(blocks, -1).to(dtype)

        return choose, sum(sizes)
    if isinstance(spec, OneHot) and len(single) == 1:
        size = single[0]
        return lambda values: nn.functional.one_hot(values.argmax(-1), size).to(dtype), size
    if isinstance(spec, Binary):
        count = math.prod(single)
        return lambda values: (values > 0).reshape(*values.shape[:-1], *single).to(dtype), count
    if type(spec) is Categorical and math.prod(single) == 1 and spec.n > 0:
        return (
            lambda values: values.argmax(-1).reshape(*values.shape[:-1], *single).to(dtype),
            spec.n,
        )
    return None


def _sizes(spec: MultiOneHot | MultiCategorical) -> list[int]:
    if isinstance(spec, MultiOneHot):
        return [int(size) for size in spec.nvec]
    nvec = spec.nvec.reshape(-1, spec.nvec.shape[-1])
    return [int(size) for size in nvec[0].tolist()]


def load_module(file: Path, data: bytes, env: EnvBase) -> Any:
    """Load a saved module, which can execute any code: the caller checks that it may."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _load(data, env)
    except ArgumentError:
        raise
    except Exception as error:
        raise ArgumentError(
            f"{file} contains no policy: {get_first_line(error)}",
            hint="save a TensorDictModule with torch.save, or use torch.export.save",
        ) from error


def _load(data: bytes, env: EnvBase) -> Any:
    names: list[str] = []
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
    if any(name.endswith("constants.pkl") for name in names):
        script = torch.jit.load(io.BytesIO(data), map_location=env.device)
        arguments = [argument.name for argument in script.forward.schema.arguments[1:]]
        return _wrap(script, arguments, env)
    if any("models/" in name or "serialized_exported_program" in name for name in names):
        program = torch.export.load(io.BytesIO(data))
        arguments = list(program.graph_signature.user_inputs)
        return _wrap(program.module(), [str(argument) for argument in arguments], env)
    module = torch.load(io.BytesIO(data), map_location=env.device, weights_only=False)
    if isinstance(module, nn.Module):
        module.eval()
        return module
    raise ArgumentError(
        f"the file contains a {type(module).__name__}, not a module",
        hint="save the whole module: torch.save(policy, FILE)",
    )


def _wrap(module: Any, arguments: list[str], env: EnvBase) -> Any:
    """Wrap a module over tensors: its arguments have names of observations, or their order."""
    by_name = {split_key(key)[-1]: key for key in env.observation_keys}
    keys: list[NestedKey]
    if all(name in by_name for name in arguments):
        keys = [by_name[name] for name in arguments]
    elif len(arguments) == 1:
        whole = [key for key in env.observation_keys if split_key(key)[-1] == "observation"]
        keys = whole or list(env.observation_keys)[:1]
    elif len(arguments) == len(env.observation_keys):
        keys = list(env.observation_keys)
    else:
        listed = ", ".join(map(format_key, env.observation_keys))
        raise ArgumentError(
            f"the policy takes {', '.join(arguments)}, the env has {listed}",
            hint="name its arguments after the observations that it reads",
        )
    return TensorDictModule(module, in_keys=keys, out_keys=list(env.action_keys))
