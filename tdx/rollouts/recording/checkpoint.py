"""State of a rollout between two chunks, from which it is resumed: plain values, without pickle.

The state of an env is known for Gymnasium envs written in Python (their attributes are numbers,
arrays and random number generators), alone, in ``SyncVectorEnv`` or in ``SerialEnv``, and for tdx's
native envs. An env that keeps anything else, such as a simulator in C or a process, is unknown: a
rollout of it is resumed by running it again.
"""

from __future__ import annotations

import functools
import logging
import random
import re
import sys
import types
from collections import deque
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from tdx import transforms
from tdx.core import TransformedEnv
from tdx.data.layout import Layout
from tdx.envs import CartPoleEnv, EnvBase, GymEnv, GymWrapper, PendulumEnv, SerialEnv
from tdx.envs.gym.vector import SyncRows, VectorEnvRows
from tdx.errors import ArgumentError
from tdx.rollouts.dump.entries import flatten_tensors, unflatten_tensors
from tdx.rollouts.recording.raw_envs import RecordingEnv
from tdx.serialization import to_plain

STATE_FIELDS = frozenset(
    ("steps", "rng", "device_rng", "chain", "memory", "env", "root", "groups", "raw_root")
)
"""Fields of a saved state, unless its env is unknown."""
_MAX_DESCRIBED = 10_000
"""Size of the largest tensor that a manifest describes; weights of an encoder are larger."""
_RUNS_USER_CODE = (transforms.CallableTransform, transforms.BurnInTransform)
_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
Memory = dict[str, dict[str, Any]]
"""Tensors of the stages by stage and attribute."""
_CONSTANT_TYPES = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    functools.partial,
    re.Pattern,
    Enum,
    logging.Logger,
    EnvSpec,
    np.dtype,
)


def read_chain_state(env: EnvBase) -> dict[str, Tensor]:
    """Return parameters and buffers of the stages of an env's chain, by stage and name."""
    found = env.transform.state_dict() if isinstance(env, TransformedEnv) else {}
    return {name: value.detach() for name, value in found.items() if isinstance(value, Tensor)}


def describe_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return tensors as plain data, without very large ones."""
    return {
        name: {
            "dtype": str(value.dtype).removeprefix("torch."),
            "shape": list(value.shape),
            "values": to_plain(value.cpu().flatten().tolist(), strict=True),
        }
        for name, value in tensors.items()
        if value.numel() <= _MAX_DESCRIBED
    }


class Checkpointer:
    """Saves and restores the state from which a rollout continues.

    Args:
        env: Env with its chain, as built.
        has_code: True for a policy in Python code, which may have a state that cannot be saved.
    """

    def __init__(self, env: TransformedEnv, has_code: bool = False) -> None:
        self._env, self._has_code = env, has_code
        self._built = {name: value.clone() for name, value in read_chain_state(env).items()}

    def _changes(self) -> dict[str, Tensor]:
        """Return the tensors of the chain that changed since it was built."""
        return {
            name: value.clone()
            for name, value in read_chain_state(self._env).items()
            if name not in self._built or not torch.equal(value, self._built[name])
        }

    def describe_changes(self) -> dict[str, Any]:
        """Return the tensors of the chain that changed as plain data, by stage and name."""
        return describe_tensors(self._changes())

    def save(self, chunk: TensorDictBase, steps: int) -> dict[str, Any]:
        """Return the state after a chunk, as plain values and tensors.

        Args:
            chunk: The chunk, ``[*B, T]``, with every entry.
            steps: Number of steps of the rollout up to the end of the chunk.
        """
        env, base = self._env, self._env.base_env
        root = self._next_root(chunk)
        try:
            leaves = dict(flatten_tensors(root))
        except ArgumentError:
            # Entries that are not tensors cannot be saved: the steps have to be run again.
            return {"steps": steps, "env": None}
        is_known = not self._has_code and has_known_state(env.transform)
        return {
            "steps": steps,
            "rng": torch.get_rng_state(),
            "device_rng": _get_device_rng(env.device),
            "chain": self._changes(),
            "memory": save_memory(env.transform),
            "env": save_env_state(env) if is_known else None,
            "root": leaves,
            "groups": _find_groups(root),
            "raw_root": dict(base.root) if isinstance(base, RecordingEnv) else None,
        }

    def _next_root(self, chunk: TensorDictBase) -> TensorDictBase:
        last = chunk[(*[slice(None)] * len(self._env.batch_size), -1)]
        return self._env.step_mdp(last.clone())

    def start_after(self, chunk: TensorDictBase) -> TensorDictBase:
        """Return the root of the step after a chunk that this env has just run, ``[*B]``."""
        return self._env.maybe_reset(self._next_root(chunk))

    def restore(self, state: dict[str, Any]) -> TensorDictBase:
        """Put the env into a state that :meth:`save` returned.

        Returns:
            The root of the next step, ``[*B]``.
        """
        env = self._env
        env.reset()
        restore_env_state(env, state["env"])
        if isinstance(env.base_env, RecordingEnv):
            env.base_env.resume_from(state["raw_root"])
        if state["chain"]:
            chain = env.transform.state_dict()
            chain.update({name: value.to(env.device) for name, value in state["chain"].items()})
            env.transform.load_state_dict(chain)
        restore_memory(env.transform, state["memory"], env.device)
        torch.set_rng_state(state["rng"])
        if state["device_rng"] is not None:
            torch.cuda.set_rng_state(state["device_rng"], env.device)
        root = unflatten_tensors(state["root"], env.batch_size, state["groups"]).to(env.device)
        return env.maybe_reset(root)


def _find_groups(root: TensorDictBase) -> dict[tuple[str, ...], tuple[int, ...]]:
    layout = Layout.of(root, flatten_tensors(root), root.ndim)
    return {path: tuple(size) for path, size in layout.groups.items() if path}


def _get_device_rng(device: torch.device) -> Tensor | None:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def has_known_state(chain: nn.Module) -> bool:
    """Return True if every stage is a transform of tdx, which keeps its state in tensors.

    Transforms of other packages, and those that run functions or modules of the user, may keep a
    state that :func:`save_memory` does not see.
    """
    return all(
        getattr(transforms, type(stage).__name__, None) is type(stage)
        and not isinstance(stage, _RUNS_USER_CODE)
        for stage in chain.modules()
        if isinstance(stage, transforms.Transform)
    )


def save_memory(chain: nn.Module) -> Memory:
    """Return the tensors of the running episodes that the stages keep as plain attributes."""
    found = {
        name: {attribute: _copy(value) for attribute, value in _find_memory(module)}
        for name, module in chain.named_modules()
    }
    return {name: memory for name, memory in found.items() if memory}


def restore_memory(chain: nn.Module, memory: Memory, device: torch.device) -> None:
    """Put the result of :func:`save_memory` into the stages.

    Args:
        chain: The stages.
        memory: Tensors by stage and attribute.
        device: Device of the env's tensors.

    Raises:
        ValueError: An attribute cannot hold state.
    """
    modules = dict(chain.named_modules())
    for name, module in modules.items():
        for _, value in _find_memory(module):
            if isinstance(value, dict):
                # Other objects may refer to this very dict.
                value.clear()
        for attribute, saved in memory.get(name, {}).items():
            if attribute in _MODULE_ATTRIBUTES or callable(getattr(type(module), attribute, None)):
                raise ValueError(f"{attribute!r} is not an attribute that holds state")
            current, value = vars(module).get(attribute), _copy(saved, device)
            if isinstance(current, dict) and isinstance(value, dict):
                current.update(value)
            else:
                setattr(module, attribute, value)


def _find_memory(module: nn.Module) -> list[tuple[str, Any]]:
    return [
        (name, value)
        for name, value in vars(module).items()
        if name not in _MODULE_ATTRIBUTES and _is_memory(value)
    ]


def _is_memory(value: Any) -> bool:
    if isinstance(value, dict):
        return bool(value) and all(map(_is_memory, value.values()))
    if isinstance(value, list):
        return bool(value) and all(isinstance(each, Tensor) for each in value)
    return isinstance(value, Tensor)


def _copy(value: Any, device: torch.device | None = None) -> Any:
    if isinstance(value, dict):
        return {key: _copy(each, device) for key, each in value.items()}
    if isinstance(value, list):
        return [_copy(each, device) for each in value]
    return value.clone() if device is None else value.to(device)


class _UnknownStateError(Exception):
    """An env has a part whose state cannot be saved."""


def save_env_state(env: EnvBase) -> dict[str, Any] | None:
    """Return the state of an env; ``None`` if it has more than plain values.

    Args:
        env: The env, with or without a chain.
    """
    try:
        return {name: _save(part) for name, part in _parts(env)}
    except _UnknownStateError:
        return None


def restore_env_state(env: EnvBase, state: dict[str, Any]) -> None:
    """Put an env into a state that :func:`save_env_state` returned.

    Args:
        env: An env that was built in the same way, and reset.
        state: The state.

    Raises:
        ValueError, TypeError: The state is of another env.
    """
    parts = dict(_parts(env))
    if parts.keys() != state.keys():
        raise ValueError("the env has other parts")
    for name, part in parts.items():
        _restore(part, state[name])


def _parts(env: EnvBase, name: str = "env") -> Iterator[tuple[str, Any]]:
    """Yield every part with a state, by a name that is the same in every copy of the env."""
    if isinstance(env, TransformedEnv):
        yield from _parts(env.base_env, name)
    elif isinstance(env, RecordingEnv):
        yield from _parts(env.inner, name)
    elif type(env) is SerialEnv:
        for index, each in enumerate(env._envs):
            yield from _parts(each, f"{name}/{index}")
    elif type(env) in (GymEnv, GymWrapper):
        yield f"{name}/seed", env._seed
        if isinstance(env._stepper, VectorEnvRows):
            yield f"{name}/rows", env._stepper
        yield from _gym_parts(env._env, f"{name}/gym")
    elif type(env) in (PendulumEnv, CartPoleEnv):
        yield f"{name}/native", env
    else:
        raise _UnknownStateError


def _gym_parts(env: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(env, gymnasium.vector.VectorEnv):
        sync = gymnasium.vector.SyncVectorEnv
        if not isinstance(env, sync) or type(env) not in (sync, SyncRows):
            raise _UnknownStateError
        for index, each in enumerate(env.envs):
            yield from _gym_parts(each, f"{name}/{index}")
    else:
        while isinstance(env, gymnasium.Wrapper):
            yield name, env
            env, name = env.env, f"{name}/env"
    yield name, env
    for space in ("action_space", "observation_space"):
        yield f"{name}/{space}", getattr(env, space)


def _attributes(part: Any) -> dict[str, Any]:
    """Return the attributes of a part that may change while it runs."""
    if isinstance(part, gymnasium.Space):
        return {"_np_random": part._np_random}
    if isinstance(part, VectorEnvRows):
        names = ("_ended", "_over", "_last")
        return {name: getattr(part, name) for name in names}
    if isinstance(part, EnvBase):
        kinds = (Tensor, torch.Generator)
        return {name: each for name, each in vars(part).items() if isinstance(each, kinds)}
    if not hasattr(part, "__dict__"):
        return {"value": part.value}
    return dict(vars(part))


def _save(part: Any) -> dict[str, Any]:
    attributes = _attributes(part)
    return {name: _encode(value) for name, value in attributes.items() if not _is_shared(value)}


def _is_shared(value: Any) -> bool:
    """Return True if every copy of the env has this value, or saves it as another part."""
    if isinstance(value, (list, tuple)) and value:
        return all(_is_shared(each) for each in value)
    parts = (gymnasium.Env, gymnasium.vector.VectorEnv, gymnasium.Space, *_CONSTANT_TYPES)
    return isinstance(value, (*parts, *_rendering_types()))


def _rendering_types() -> tuple[type, ...]:
    """Return the classes that Gymnasium envs render with: every frame is rendered from scratch."""
    pygame = sys.modules.get("pygame")
    if pygame is None:
        return ()
    return (pygame.Surface, pygame.time.Clock, pygame.Rect)


def _encode(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str, np.generic)):
        return value
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject and not value.dtype.names:
        return value.copy()
    if isinstance(value, np.random.Generator):
        return {"$generator": _encode(value.bit_generator.state)}
    if isinstance(value, torch.Generator):
        return {"$torch": value.get_state()}
    if isinstance(value, random.Random):
        return {"$random": value.getstate()}
    if isinstance(value, TensorDictBase):
        entries = [(str(key), _encode(value.get(key))) for key in value.keys()]
        return {"$entries": (entries, list(value.batch_size))}
    if type(value) in (list, tuple, deque, set):
        kind = type(value).__name__
        return {"$" + kind: [_encode(each) for each in value]}
    if isinstance(value, dict):
        return {"$dict": [(_encode(key), _encode_value(each)) for key, each in value.items()]}
    raise _UnknownStateError


def _encode_value(value: Any) -> Any:
    return {"$same": None} if _is_shared(value) else _encode(value)


def _restore(part: Any, state: dict[str, Any]) -> None:
    now = _attributes(part)
    for name, value in state.items():
        if callable(getattr(type(part), str(name), None)):
            raise TypeError(f"{name!r} is not an attribute that holds state")
        restored = _decode(value, now.get(name))
        if isinstance(part, EnvBase):
            is_tensor = isinstance(restored, Tensor)
            part.__dict__[name] = restored.to(part.device) if is_tensor else restored
        else:
            setattr(part, name, restored)


def _decode(value: Any, now: Any) -> Any:
    """Return the value that :func:`_encode` encoded.

    Args:
        value: The encoded value.
        now: The current value, which replaces what cannot be encoded.
    """
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "$same":
        return now
    if kind == "$generator":
        generator: Any = now if isinstance(now, np.random.Generator) else np.random.default_rng()
        generator.bit_generator.state = _decode(content, None)
        return generator
    if kind == "$torch":
        now.set_state(content)
        return now
    if kind == "$random":
        now = now if isinstance(now, random.Random) else random.Random()
        now.setstate(content)
        return now
    if kind == "$entries":
        entries, batch = content
        return TensorDict({key: _decode(each, None) for key, each in entries}, batch)
    if kind == "$dict":
        known = now if isinstance(now, dict) else {}
        pairs = ((_decode(key, None), each) for key, each in content)
        return {key: _decode(each, known.get(key)) for key, each in pairs}
    makers = {"$list": list, "$tuple": tuple, "$deque": deque, "$set": set}
    before = list(now) if isinstance(now, (list, tuple)) else []
    rows = [*before, *[None] * (len(content) - len(before))]
    return makers[kind](_decode(each, row) for each, row in zip(content, rows, strict=False))
