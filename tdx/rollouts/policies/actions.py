"""Fixed actions as a policy: from a file, from a dump, or zeros."""

from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.envs import EnvBase
from tdx.errors import ArgumentError, StorageError, TdxError, get_first_line
from tdx.rollouts.dump.reading import open_dump
from tdx.specs import OneHot
from tdx.untrusted import check_claimed_bytes, parse_json, validate_shape

_MAX_HEADER_BYTES = 10_000
_SAVE_AS = "save an array [T, ...] or [*B, T, ...]"


def read_actions(file: Path, data: bytes) -> Tensor:
    """Read the actions in a file.

    Args:
        file: Name of the file, for its format and for error messages.
        data: Content of the file. A ``.pt`` file is unpickled: the caller checks that it may be.

    Raises:
        ArgumentError: The file has another format, or no numbers.
        StorageError: The header does not fit the size of the file.
    """
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
    version = np.lib.format.read_magic(stream)
    read_header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read_header is None:
        raise ValueError(f"its format version {version} is unknown")
    sizes, in_columns, dtype = read_header(stream, max_header_size=_MAX_HEADER_BYTES)
    if dtype.hasobject:
        raise ValueError("it has Python objects")
    shape = validate_shape(sizes, f"the array in {file}")
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
    """Return actions in the shape that the env takes, ``[*B, T, ...]``.

    Args:
        actions: ``[T, ...]`` for every env of a batch, or ``[*B, T, ...]``.
        env: The env.
        file: Name of their file, for error messages.

    Raises:
        ArgumentError: They do not fit the action spec of the env.
    """
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


_ENDLESS = 1 << 40


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
    """Return the actions in a dump, ``[*B, T]``.

    Raises:
        TdxError: It cannot be read, or its actions do not fit the env.
    """
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
