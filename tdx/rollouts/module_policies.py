"""A policy in a file: TorchScript, ``torch.export``, or a saved ``TensorDictModule``."""

from __future__ import annotations

import importlib
import inspect
import io
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from tdx.envs import EnvBase
from tdx.errors import ArgumentError, CodeNotAllowedError, first_line
from tdx.keys import NestedKey, format_key, key_parts

_PLAIN_MODULES = ("torch.nn.modules.", "tensordict.nn.")


def load_module(file: Path, data: bytes, env: EnvBase, allow_code: bool) -> Any:
    """The policy that a file holds.

    A saved ``TensorDictModule`` made of torch's own modules is read without running code; one with
    classes of anybody else needs ``allow_code``.

    Args:
        file: its name, for messages.
        data: what is in it.
        env: whose observations and actions these are, for a module over tensors.
        allow_code: whether classes that it names may be imported.

    Raises:
        ArgumentError: it is no such file, or its arguments are none of the observations.
        CodeNotAllowedError: it needs Python code, and that is not allowed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _loaded(data, env, allow_code)
    except (ArgumentError, CodeNotAllowedError):
        raise
    except Exception as error:
        if isinstance(error, pickle.UnpicklingError) and "GLOBAL" in str(error):
            raise CodeNotAllowedError(
                f"{file} holds Python classes, which are not imported unless you allow it",
                hint="add --allow-code if you trust it, or save it with torch.export",
            ) from error
        told = first_line(error)
        raise ArgumentError(
            f"{file} holds no policy: {told}",
            hint="save a TensorDictModule with torch.save, or use torch.export.save",
        ) from error


def _loaded(data: bytes, env: EnvBase, allow_code: bool) -> Any:
    names = _names(data)
    if any(name.endswith("constants.pkl") for name in names):
        script = torch.jit.load(io.BytesIO(data), map_location=env.device)
        arguments = [each.name for each in script.forward.schema.arguments[1:]]
        return _over_tensors(script, arguments, env)
    if any("models/" in name or "serialized_exported_program" in name for name in names):
        program = torch.export.load(io.BytesIO(data))
        arguments = list(program.graph_signature.user_inputs)
        return _over_tensors(program.module(), [str(each) for each in arguments], env)
    with torch.serialization.safe_globals(_plain_classes()):
        buffer = io.BytesIO(data)
        module = torch.load(buffer, map_location=env.device, weights_only=not allow_code)
    if isinstance(module, nn.Module):
        module.eval()
        return module
    raise ArgumentError(
        f"the file holds {type(module).__name__}, no module",
        hint="save the whole module: torch.save(policy, FILE)",
    )


def _names(data: bytes) -> list[str]:
    if not zipfile.is_zipfile(io.BytesIO(data)):
        return []
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return archive.namelist()


def _plain_classes() -> list[Any]:
    """The classes that a module of torch's own parts is saved with."""
    found: list[Any] = [set, TensorDictModule, TensorDictSequential]
    for module in ("torch.nn.modules", "tensordict.nn"):
        for _, kind in inspect.getmembers(importlib.import_module(module), inspect.isclass):
            if issubclass(kind, nn.Module) and kind.__module__.startswith(_PLAIN_MODULES):
                found.append(kind)
    return found


def _over_tensors(module: Any, arguments: list[str], env: EnvBase) -> Any:
    """A module over tensors whose arguments are named after observations, or stand in order."""
    by_name = {key_parts(key)[-1]: key for key in env.observation_keys}
    keys: list[NestedKey]
    if all(name in by_name for name in arguments):
        keys = [by_name[name] for name in arguments]
    elif len(arguments) == 1:
        whole = [key for key in env.observation_keys if key_parts(key)[-1] == "observation"]
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
