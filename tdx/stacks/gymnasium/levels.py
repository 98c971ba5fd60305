"""The levels of a Gymnasium stack: the env inside, and each wrapper around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from traceback import walk_tb
from types import ModuleType
from typing import Any, Literal

import gymnasium
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv, VectorWrapper

from tdx.envs.gym.vector import SyncRows
from tdx.foundation.gymnasium_internals import recorded_arguments
from tdx.stacks.sources import attributes_of, class_location, constructor_arguments
from tdx.stacks.stack import Direction, StageInfo

_METHODS = ("reset", "step", "step_wait", "step_async")
_KINDS = (gymnasium.Wrapper, VectorWrapper)
THIN_WRAPPERS = (
    gymnasium.wrappers.OrderEnforcing,
    gymnasium.wrappers.TimeLimit,
    gymnasium.wrappers.PassiveEnvChecker,
)
"""Wrappers added by ``gymnasium.make``; reading the clock around them takes longer than they do."""
_INNER_NAMES = ("env", "_env")
"""Attributes of the env that a holder of several envs steps."""
_MAX_HELD = 4
"""Largest number of envs of a holder that are compared: envs may refer to each other."""
_ACTION_SPACES = ("action_space", "action_spaces", "single_action_space", "action_spec")
MAX_LEVELS = 1_000
"""Largest number of wrappers around an env; a longer chain is a loop."""


@dataclass(frozen=True, slots=True)
class Level:
    """The env inside a stack, or one wrapper around it."""

    index: int  # -1 for the env inside.
    owners: tuple[Any, ...]  # The object; in a vector env those of all sub-envs.
    num_envs: int | None  # None for a single env.
    in_rows: bool = False  # True if the owners are parts of sub-envs, one per row.

    @property
    def owner(self) -> Any:
        """The object, or that of the first sub-env."""
        return self.owners[0]

    @property
    def name(self) -> str:
        kind = type(self.owner)
        # What users know it as.
        return "SyncVectorEnv" if kind is SyncRows else kind.__name__

    @property
    def env_name(self) -> str:
        """Id of the env inside, or the class name."""
        name = getattr(getattr(self.owner, "spec", None), "id", None)
        return self.name if name is None else str(name)

    @property
    def observation_space(self) -> gymnasium.Space[object]:
        """Space of the observations of one env."""
        if self.num_envs is None or self.in_rows:
            return self.owner.observation_space
        return self.owner.single_observation_space

    @property
    def action_space(self) -> gymnasium.Space[object]:
        """Space of the actions of one env."""
        if self.num_envs is None or self.in_rows:
            return self.owner.action_space
        return self.owner.single_action_space

    def info(self) -> StageInfo:
        kind = type(self.owner)
        return StageInfo(
            self.index,
            kind.__name__,
            arguments_of(self.owner),
            class_location(kind),
            _direction(self.owner),
            self.num_envs if self.in_rows else None,
        )


def list_levels(env: object) -> tuple[Level, ...]:
    """List the levels of a stack, the env inside first.

    An env that holds another one without being a wrapper is a level around it. The wrappers in the
    sub-envs of a ``SyncVectorEnv`` are levels, and so is the vector env, if all sub-envs have the
    same wrappers. Other vector envs are the env inside.
    """
    core = core_of(env)
    num_envs = core.num_envs if isinstance(core, VectorEnv) else None
    sub_envs = core.envs if isinstance(core, SyncVectorEnv) else ()
    owners = list_owners(sub_envs, core, list_wrappers(env))
    return tuple(
        Level(index, parts, num_envs, in_rows)
        for index, (parts, in_rows) in enumerate(owners, start=-1)
    )


def list_owners(
    sub_envs: Sequence[object], core: object, outer: Sequence[object]
) -> list[tuple[tuple[object, ...], bool]]:
    """Return the objects of each level, the env inside first, and whether they are in sub-envs."""
    owners: list[tuple[tuple[Any, ...], bool]] = []
    rows = [list_wrappers(sub_env) for sub_env in sub_envs]
    # Wrappers are levels only if all sub-envs have the same classes of them.
    if len({tuple(map(type, row)) for row in rows}) == 1:
        owners.append((tuple(core_of(sub_env) for sub_env in sub_envs), True))
        owners += [(row, True) for row in reversed(list(zip(*rows, strict=True)))]
    return owners + [((owner,), False) for owner in (core, *reversed(outer))]


def place_of_error(
    error: BaseException, levels: Sequence[Level]
) -> tuple[int, int, Literal["reset", "step"]] | None:
    """Return level, sub-env and method of the innermost wrapper whose code raised an error."""
    owners = {
        id(owner): (level.index, row) for level in levels for row, owner in enumerate(level.owners)
    }
    place: tuple[int, int] | None = None
    method: Literal["reset", "step"] = "step"
    for frame, _ in walk_tb(error.__traceback__):
        names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
        owner = owners.get(id(frame.f_locals.get(names[0]))) if names else None
        if owner is not None:
            place = owner
            if frame.f_code.co_name in _METHODS:
                method = "reset" if frame.f_code.co_name == "reset" else "step"
    return None if place is None else (*place, method)


def core_of(env: object) -> object:
    """Return the env inside all wrappers and holders."""
    return _nested_envs(env)[-1]


def list_wrappers(env: object) -> list[object]:
    """List the wrappers around an env, and the envs that hold it, outermost first.

    Example:
        >>> [type(wrapper).__name__ for wrapper in list_wrappers(gymnasium.make("Pendulum-v1"))]
        ['TimeLimit', 'OrderEnforcing', 'PassiveEnvChecker']
    """
    return _nested_envs(env)[:-1]


def _nested_envs(env: object, around: Sequence[object] = ()) -> list[object]:
    """Return an env and the envs inside, outermost first.

    ``around`` are the envs around it, which it may refer to.
    """
    nested = [*around, env]
    while len(nested) <= MAX_LEVELS and (inner := _inner_env(nested[-1], nested)) is not None:
        nested.append(inner)
    return nested[len(around) :]


def _inner_env(owner: object, around: Sequence[object]) -> object:
    """Return the env that a wrapper or holder steps; ``None`` for the env inside."""
    if isinstance(owner, _KINDS):
        return owner.env
    held = {name: env for name, env in _held_envs(owner, around).items() if _fits(owner, env)}
    parts: set[int] = set()
    if 1 < len(held) <= _MAX_HELD:
        # A holder may also keep a part of the env, such as its `unwrapped`.
        parts = {id(part) for env in held.values() for part in _nested_envs(env, around)[1:]}
    outer = {name: env for name, env in held.items() if id(env) not in parts}
    if len({id(env) for env in outer.values()}) == 1:
        return next(iter(outer.values()))
    return next((outer[name] for name in _INNER_NAMES if name in outer), None)


def _held_envs(owner: object, around: Sequence[object]) -> dict[str, object]:
    """Return the envs among the attributes of an env that is no wrapper."""
    if isinstance(owner, SyncVectorEnv | AsyncVectorEnv):
        # Its sub-envs are listed, or in other processes.
        return {}
    known = {id(env) for env in (*around, owner)}
    return {
        name: value
        for name, value in attributes_of(owner).items()
        if id(value) not in known and _is_env(value)
    }


def _is_env(value: object) -> bool:
    """Return True for an env of any library: it can be reset, stepped, and declares its actions."""
    kind = type(value)
    if isinstance(value, type | ModuleType):
        return False
    if isinstance(value, gymnasium.Env | VectorEnv):
        return True
    if not all(callable(getattr(kind, name, None)) for name in ("reset", "step")):
        return False
    return any(hasattr(kind, name) or name in attributes_of(value) for name in _ACTION_SPACES)


def _fits(owner: object, env: Any) -> bool:
    """Return True if an env that an owner holds can be a level: both are single, or vector envs."""
    if isinstance(owner, VectorEnv) or isinstance(env, VectorEnv):
        return isinstance(owner, VectorEnv) and isinstance(env, VectorEnv)
    if isinstance(env, gymnasium.Env):
        return True
    if hasattr(type(env), "step_async"):
        # A VecEnv of Stable-Baselines3 has the spaces of one env, and steps many.
        return False
    try:
        declared = env.observation_space, env.action_space
    except Exception:
        return False
    return all(isinstance(space, gymnasium.Space) for space in declared)


def hidden_envs(levels: Sequence[Level]) -> tuple[str, ...]:
    """Return the envs that a stack holds and that are not its levels, each as a sentence."""
    owners = [level.owner for level in levels]
    return tuple(sentence for owner in owners for sentence in _hidden_envs(owner, owners))


def _hidden_envs(owner: object, levels: Sequence[object]) -> Iterator[str]:
    if isinstance(owner, _KINDS):
        return
    shown = {id(part) for level in levels for part in (level, *_nested_envs(level))}
    name = type(owner).__name__
    for attribute, env in _held_envs(owner, ()).items():
        if id(env) not in shown:
            yield f"{name} holds {_describe(env)} in .{attribute}, whose stages are not shown"
    for attribute, value in attributes_of(owner).items():
        envs = value.values() if isinstance(value, dict) else value
        if not isinstance(value, dict | list | tuple) or isinstance(owner, SyncVectorEnv):
            continue
        count = sum(_is_env(env) for env in list(envs)[:MAX_LEVELS])
        if count and not any(id(env) in shown for env in envs):
            noun = "an env" if count == 1 else f"{count} envs"
            yield f"{name} holds {noun} in .{attribute}, whose stages are not shown"


def _describe(env: object) -> str:
    if isinstance(env, gymnasium.Env | VectorEnv):
        return f"the env {type(env).__name__}"
    return f"an env of another library, {type(env).__name__},"


def inner_name(owner: object, inner: object) -> str:
    """Return the attribute in which a wrapper or holder keeps the env inside."""
    if isinstance(owner, _KINDS):
        return "env"
    return next(name for name, value in attributes_of(owner).items() if value is inner)


def worker_sentence(core: object, local: str) -> str:
    """Say that a vector env has its sub-envs in worker processes, and how to look inside.

    ``local`` is the class of its library that has the sub-envs in one process.
    """
    return (
        f"the sub-envs of {type(core).__name__} run in worker processes, so their stages are not "
        f"shown: pass the factory of one env, or {local}, to look inside"
    )


def arguments_of(owner: object) -> dict[str, object]:
    """Return the constructor arguments of a wrapper or env.

    Example:
        >>> import gymnasium
        >>> arguments_of(gymnasium.make("Pendulum-v1"))
        {'max_episode_steps': 200}
    """
    arguments = constructor_arguments(owner, recorded_arguments(attributes_of(owner)))
    return {name: value for name, value in arguments.items() if not _is_env(value)}


_FORWARD = (
    gymnasium.ObservationWrapper,
    gymnasium.RewardWrapper,
    gymnasium.vector.VectorObservationWrapper,
    gymnasium.vector.VectorRewardWrapper,
)
_INVERSE = (gymnasium.ActionWrapper, gymnasium.vector.VectorActionWrapper)


def _direction(owner: object) -> Direction:
    is_forward, is_inverse = isinstance(owner, _FORWARD), isinstance(owner, _INVERSE)
    if is_forward == is_inverse:
        return "both"
    return "forward" if is_forward else "inverse"


def env_name(levels: Sequence[Level]) -> str:
    """Return the id of the env, or the class name of the env inside.

    An env that was created by an id and holds another one gives the name.
    """
    return next(filter(is_registered, reversed(levels)), levels[0]).env_name


def is_registered(level: Level) -> bool:
    """Return True for an env that an id creates and that is no wrapper."""
    owner = level.owner
    is_env = isinstance(owner, gymnasium.Env) and not isinstance(owner, gymnasium.Wrapper)
    return is_env and hasattr(owner.spec, "id")
