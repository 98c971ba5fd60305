"""Save and restore the state of an env as plain values, without pickle.

Known are Gymnasium envs written in Python (their attributes are numbers, arrays and random number
generators), alone, in ``SyncVectorEnv`` or in ``SerialEnv``, and tdx's native envs. An env that
keeps anything else, such as a simulator in C or a process, is unknown: a rollout of it is resumed
by running it again.
"""

from __future__ import annotations

import functools
import logging
import random
import re
import types
from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from tdx.core import TransformedEnv
from tdx.envs import CartPoleEnv, EnvBase, GymEnv, GymWrapper, PendulumEnv, SerialEnv
from tdx.envs.gym.vector import VectorEnvRows
from tdx.envs.gym.vector_making import SyncRows
from tdx.rollouts.recording.raw_envs import RecordingEnv

_SAME_IN_EVERY_COPY = (
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


_DRAWING = ("pygame",)
"""What an env draws with; every frame is drawn anew."""


class _UnknownError(Exception):
    pass


def env_state(env: EnvBase) -> dict[str, Any] | None:
    """The state of an env, or ``None`` where it holds more than plain values.

    Args:
        env: the env, with its chain or without.
    """
    try:
        return {name: _state(part) for name, part in _parts(env)}
    except _UnknownError:
        return None


def restore_env(env: EnvBase, state: dict[str, Any]) -> None:
    """Put an env into a state that :func:`env_state` gave.

    Args:
        env: made like that one, and reset.
        state: its state.

    Raises:
        ValueError, TypeError: The state is that of another env.
    """
    parts = dict(_parts(env))
    if parts.keys() != state.keys():
        raise ValueError("the env is made of other parts")
    for name, part in parts.items():
        _restore(part, state[name])


def _parts(env: EnvBase, name: str = "env") -> Iterator[tuple[str, Any]]:
    """All that holds a state, by a name that is the same in every copy of the env."""
    if isinstance(env, TransformedEnv):
        yield from _parts(env.base_env, name)
    elif isinstance(env, RecordingEnv):
        yield from _parts(env.inner, name)
    elif type(env) is SerialEnv:
        for index, each in enumerate(env._envs):
            yield from _parts(each, f"{name}/{index}")
    elif type(env) in (GymEnv, GymWrapper):
        yield f"{name}/seed", env._seed
        if isinstance(env._program, VectorEnvRows):
            yield f"{name}/rows", env._program
        yield from _gym_parts(env._env, f"{name}/gym")
    elif type(env) in (PendulumEnv, CartPoleEnv):
        yield f"{name}/native", env
    else:
        raise _UnknownError


def _gym_parts(env: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(env, gymnasium.vector.VectorEnv):
        sync = gymnasium.vector.SyncVectorEnv
        if not isinstance(env, sync) or type(env) not in (sync, SyncRows):
            raise _UnknownError
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
    """The attributes of a part that may change while it runs."""
    if isinstance(part, gymnasium.Space):
        return {"_np_random": part._np_random}
    if isinstance(part, VectorEnvRows):
        names = ("_ended", "_over", "_last")
        return {name: getattr(part, name) for name in names}
    if isinstance(part, EnvBase):
        held = vars(part).items()
        return {name: each for name, each in held if isinstance(each, (Tensor, torch.Generator))}
    if not hasattr(part, "__dict__"):
        return {"value": part.value}
    return dict(vars(part))


def _state(part: Any) -> dict[str, Any]:
    found = {}
    for name, value in _attributes(part).items():
        if not _stays(value):
            found[name] = _plain(value)
    return found


def _stays(value: Any) -> bool:
    """Whether a copy of the env holds this as well, in the same state."""
    if isinstance(value, (list, tuple)) and value:
        return all(_stays(each) for each in value)
    parts = (gymnasium.Env, gymnasium.vector.VectorEnv, gymnasium.Space, *_SAME_IN_EVERY_COPY)
    return isinstance(value, parts) or type(value).__module__.partition(".")[0] in _DRAWING


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str, np.generic)):
        return value
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject and not value.dtype.names:
        return value.copy()
    if isinstance(value, np.random.Generator):
        return {"$generator": _plain(value.bit_generator.state)}
    if isinstance(value, torch.Generator):
        return {"$torch": value.get_state()}
    if isinstance(value, random.Random):
        return {"$random": value.getstate()}
    if isinstance(value, TensorDictBase):
        entries = [(str(key), _plain(value.get(key))) for key in value.keys()]
        return {"$entries": (entries, list(value.batch_size))}
    if type(value) in (list, tuple, deque, set):
        kind = type(value).__name__
        return {"$" + kind: [_plain(each) for each in value]}
    if isinstance(value, dict):
        return {"$dict": [(_plain(key), _kept(each)) for key, each in value.items()]}
    raise _UnknownError


def _kept(value: Any) -> Any:
    return {"$same": None} if _stays(value) else _plain(value)


def _restore(part: Any, state: dict[str, Any]) -> None:
    now = _attributes(part)
    for name, value in state.items():
        if callable(getattr(type(part), str(name), None)):
            raise TypeError(f"{name!r} is not an attribute that holds state")
        restored = _restored(value, now.get(name))
        if isinstance(part, EnvBase):
            moved = isinstance(restored, Tensor)
            part.__dict__[name] = restored.to(part.device) if moved else restored
        else:
            setattr(part, name, restored)


def _restored(value: Any, now: Any) -> Any:
    """The value that :func:`_plain` took down; what cannot be made anew is taken from ``now``."""
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    if kind == "$same":
        return now
    if kind == "$generator":
        made: Any = now if isinstance(now, np.random.Generator) else np.random.default_rng()
        made.bit_generator.state = _restored(held, None)
        return made
    if kind == "$torch":
        now.set_state(held)
        return now
    if kind == "$random":
        now = now if isinstance(now, random.Random) else random.Random()
        now.setstate(held)
        return now
    if kind == "$entries":
        entries, batch = held
        return TensorDict({key: _restored(each, None) for key, each in entries}, batch)
    if kind == "$dict":
        known = now if isinstance(now, dict) else {}
        pairs = ((_restored(key, None), each) for key, each in held)
        return {key: _restored(each, known.get(key)) for key, each in pairs}
    makers = {"$list": list, "$tuple": tuple, "$deque": deque, "$set": set}
    before = list(now) if isinstance(now, (list, tuple)) else []
    rows = [*before, *[None] * (len(held) - len(before))]
    return makers[kind](_restored(each, row) for each, row in zip(held, rows, strict=False))
