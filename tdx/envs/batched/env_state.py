"""State of an env, as plain values without pickle.

It is known for Gymnasium envs written in Python (their attributes are numbers, arrays and random
number generators), alone, in ``SyncVectorEnv`` or in ``SerialEnv``, and for tdx's native envs. An
env that keeps anything else, such as a simulator in C, is unknown.
"""

from __future__ import annotations

import functools
import logging
import random
import re
import sys
import types
from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from tdx.core import TransformedEnv
from tdx.core.envs import EnvBase
from tdx.envs.batched.serial import SerialEnv
from tdx.envs.gym import GymEnv, GymWrapper
from tdx.envs.gym.interface import AnyEnv, AnyVectorEnv
from tdx.envs.gym.vector import SyncRows, VectorEnvRows
from tdx.envs.native import CartPoleEnv, PendulumEnv
from tdx.foundation.gymnasium_internals import SPACE_GENERATOR

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

EnvState = dict[str, dict[str, object]]
"""Encoded attributes of each part of an env, by the name of the part."""


class _UnknownStateError(Exception):
    """An env has a part whose state cannot be saved."""


def save_env_state(env: EnvBase) -> EnvState | None:
    """Return the state of an env; ``None`` if it has more than plain values."""
    workers = _base_of(env).row_states
    if workers is not None:
        rows: list[EnvState | None] = workers.save_row_states()
        states = [row for row in rows if row is not None]
        if len(states) < len(rows):
            return None
        # The names that the envs have in a SerialEnv.
        return {
            f"env/{row}{name.removeprefix('env')}": part
            for row, state in enumerate(states)
            for name, part in state.items()
        }
    try:
        return {name: _save(part) for name, part in _parts(env)}
    except _UnknownStateError:
        return None


def _base_of(env: EnvBase) -> EnvBase:
    return env.base_env if isinstance(env, TransformedEnv) else env


def restore_env_state(env: EnvBase, state: EnvState) -> None:
    """Put an env that was built in the same way, and reset, into a saved state.

    Raises:
        ValueError, TypeError: The state is of another env.
    """
    workers = _base_of(env).row_states
    if workers is not None:
        rows: list[EnvState] = [{} for _ in range(env.batch_size[0])]
        for name, part in state.items():
            _, row, rest = name.split("/", 2)
            rows[int(row)][f"env/{rest}"] = part
        workers.restore_row_states(rows)
        return
    parts = dict(_parts(env))
    if parts.keys() != state.keys():
        raise ValueError("the env has other parts")
    for name in parts:
        _restore(parts[name], state[name])


def _parts(env: EnvBase, name: str = "env") -> Iterator[tuple[str, object]]:
    """Yield every part with a state, by a name that is the same in every copy of the env."""
    if isinstance(env, TransformedEnv):
        yield from _parts(env.base_env, name)
    elif type(env) is SerialEnv:
        for index, member in enumerate(env._envs):
            yield from _parts(member, f"{name}/{index}")
    elif isinstance(env, GymWrapper) and type(env) in (GymEnv, GymWrapper):
        yield f"{name}/seed", env._seed
        if isinstance(env._stepper, VectorEnvRows):
            yield f"{name}/rows", env._stepper
        yield from _gym_parts(env._env, f"{name}/gym")
    elif type(env) in (PendulumEnv, CartPoleEnv):
        yield f"{name}/native", env
    else:
        raise _UnknownStateError


def _gym_parts(env: AnyEnv | AnyVectorEnv, name: str) -> Iterator[tuple[str, object]]:
    if isinstance(env, gymnasium.vector.VectorEnv):
        sync = gymnasium.vector.SyncVectorEnv
        if not isinstance(env, sync) or type(env) not in (sync, SyncRows):
            raise _UnknownStateError
        for index, member in enumerate(env.envs):
            yield from _gym_parts(member, f"{name}/{index}")
    else:
        while isinstance(env, gymnasium.Wrapper):
            yield name, env
            env, name = env.env, f"{name}/env"
    yield name, env
    for space in ("action_space", "observation_space"):
        yield f"{name}/{space}", getattr(env, space)


def _attributes(part: Any) -> dict[str, object]:
    """Return the attributes of a part that may change while it runs."""
    if isinstance(part, gymnasium.Space):
        return {SPACE_GENERATOR: getattr(part, SPACE_GENERATOR)}
    if isinstance(part, VectorEnvRows):
        names = ("_ended", "_over", "_last")
        return {name: getattr(part, name) for name in names}
    if isinstance(part, EnvBase):
        return {name: value for name, value in vars(part).items() if isinstance(value, Tensor)}
    if not hasattr(part, "__dict__"):
        return {"value": part.value}
    return dict(vars(part))


def _save(part: object) -> dict[str, object]:
    attributes = _attributes(part)
    return {name: _encode(value) for name, value in attributes.items() if not _is_shared(value)}


def _is_shared(value: object) -> bool:
    """Return True if every copy of the env has this value, or saves it as another part."""
    if isinstance(value, (list, tuple)) and value:
        return all(_is_shared(item) for item in value)
    parts = (gymnasium.Env, gymnasium.vector.VectorEnv, gymnasium.Space, *_CONSTANT_TYPES)
    pygame = sys.modules.get("pygame")
    # Every frame is rendered from scratch.
    drawing = () if pygame is None else (pygame.Surface, pygame.time.Clock, pygame.Rect)
    return isinstance(value, (*parts, *drawing))


def _encode(value: object) -> object:
    if value is None or isinstance(value, (bool, int, float, str, np.generic)):
        return value
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject and not value.dtype.names:
        return value.copy()
    if isinstance(value, np.random.Generator):
        return {"$generator": _encode(value.bit_generator.state)}
    if isinstance(value, random.Random):
        return {"$random": value.getstate()}
    if isinstance(value, TensorDictBase):
        entries = [(str(key), _encode(value.get(key))) for key in value.keys()]
        return {"$entries": (entries, list(value.batch_size))}
    if isinstance(value, (list, tuple, deque, set)):
        if type(value) not in (list, tuple, deque, set):
            raise _UnknownStateError
        return {"$" + type(value).__name__: [_encode(item) for item in value]}
    if isinstance(value, dict):
        return {
            "$dict": [
                (_encode(key), {"$same": None} if _is_shared(item) else _encode(item))
                for key, item in value.items()
            ]
        }
    raise _UnknownStateError


def _restore(part: object, state: dict[str, object]) -> None:
    now = _attributes(part)
    if isinstance(part, EnvBase) and not state.keys() <= vars(part).keys():
        raise ValueError("it is of another version of the env")
    for name, value in state.items():
        if callable(getattr(type(part), str(name), None)):
            raise TypeError(f"{name!r} is not an attribute that holds state")
        restored = _decode(value, now.get(name))
        if isinstance(part, EnvBase):
            is_tensor = isinstance(restored, Tensor)
            part.__dict__[name] = restored.to(part.device) if is_tensor else restored
        else:
            setattr(part, name, restored)


def _decode(value: object, now: Any) -> Any:
    """Return the value that :func:`_encode` encoded; ``now`` replaces what cannot be encoded."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "$same":
        return now
    if kind == "$generator":
        generator = now if isinstance(now, np.random.Generator) else np.random.default_rng()
        generator.bit_generator.state = _decode(content, None)
        return generator
    if kind == "$random":
        now = now if isinstance(now, random.Random) else random.Random()
        now.setstate(content)
        return now
    if kind == "$entries":
        entries, batch = content
        return TensorDict({key: _decode(item, None) for key, item in entries}, batch)
    if kind == "$dict":
        known = now if isinstance(now, dict) else {}
        pairs = ((_decode(key, None), item) for key, item in content)
        return {key: _decode(item, known.get(key)) for key, item in pairs}
    makers = {"$list": list, "$tuple": tuple, "$deque": deque, "$set": set}
    before = list(now) if isinstance(now, (list, tuple)) else []
    rows = [*before, *[None] * (len(content) - len(before))]
    return makers[kind](_decode(item, row) for item, row in zip(content, rows, strict=False))
