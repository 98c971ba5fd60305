"""A policy in a file: TorchScript, ``torch.export``, or a saved ``TensorDictModule``."""

from __future__ import annotations

import io
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import nn

from tdx.envs import EnvBase
from tdx.errors import ArgumentError, get_first_line
from tdx.keys import NestedKey, format_key, split_key


def load_module(file: Path, data: bytes, env: EnvBase) -> Any:
    """Load a saved module, which can execute any code: the caller has checked that it may.

    Args:
        file: Its name, for messages.
        data: Its content.
        env: The env whose observations and actions these are, for a module over tensors.

    Raises:
        ArgumentError: It holds no module, or the module takes other arguments than observations.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _loaded(data, env)
    except ArgumentError:
        raise
    except Exception as error:
        raise ArgumentError(
            f"{file} holds no policy: {get_first_line(error)}",
            hint="save a TensorDictModule with torch.save, or use torch.export.save",
        ) from error


def _loaded(data: bytes, env: EnvBase) -> Any:
    names = _names(data)
    if any(name.endswith("constants.pkl") for name in names):
        script = torch.jit.load(io.BytesIO(data), map_location=env.device)
        arguments = [each.name for each in script.forward.schema.arguments[1:]]
        return _over_tensors(script, arguments, env)
    if any("models/" in name or "serialized_exported_program" in name for name in names):
        program = torch.export.load(io.BytesIO(data))
        arguments = list(program.graph_signature.user_inputs)
        return _over_tensors(program.module(), [str(each) for each in arguments], env)
    module = torch.load(io.BytesIO(data), map_location=env.device, weights_only=False)
    if isinstance(module, nn.Module):
        module.eval()
        return module
    raise ArgumentError(
        f"the file holds {type(module).__name__}, not a module",
        hint="save the whole module: torch.save(policy, FILE)",
    )


def _names(data: bytes) -> list[str]:
    if not zipfile.is_zipfile(io.BytesIO(data)):
        return []
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return archive.namelist()


def _over_tensors(module: Any, arguments: list[str], env: EnvBase) -> Any:
    """A module over tensors whose arguments are named after observations, or stand in order."""
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
