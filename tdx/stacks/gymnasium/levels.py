"""The levels of a Gymnasium stack: the env inside, and each wrapper around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from traceback import walk_tb
from typing import Any, Literal

import gymnasium
from gymnasium.vector import SyncVectorEnv, VectorEnv, VectorWrapper

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
MAX_LEVELS = 1_000
"""Largest number of wrappers around an env; a longer chain is a loop."""


@dataclass(frozen=True, slots=True)
class Level:
    """The env inside a stack, or one wrapper around it.

    Args:
        index: Index of the stage; -1 for the env inside.
        owners: The object; in a vector env those of all sub-envs.
        num_envs: Number of sub-envs; ``None`` for a single env.
        in_rows: True if ``owners`` are parts of sub-envs, one per row.
    """

    index: int
    owners: tuple[Any, ...]
    num_envs: int | None
    in_rows: bool = False

    @property
    def owner(self) -> Any:
        """The object, or that of the first sub-env."""
        return self.owners[0]

    @property
    def name(self) -> str:
        """Class name."""
        return type(self.owner).__name__

    @property
    def in_workers(self) -> bool:
        """True if ``owners`` describe objects in worker processes."""
        return False

    @property
    def env_name(self) -> str:
        """Id of the env inside, or the class name."""
        spec = getattr(self.owner, "spec", None)
        return str(spec.id) if spec is not None else self.name

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """Space of the observations of one env."""
        if self.num_envs is None or self.in_rows:
            return self.owner.observation_space
        return self.owner.single_observation_space

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """Space of the actions of one env."""
        if self.num_envs is None or self.in_rows:
            return self.owner.action_space
        return self.owner.single_action_space

    def info(self) -> StageInfo:
        """Describe the stage."""
        kind = type(self.owner)
        return StageInfo(
            self.index,
            kind.__name__,
            arguments_of(self.owner),
            class_location(kind),
            _direction(self.owner),
            self.num_envs if self.in_rows else None,
        )


def list_levels(env: Any, in_workers: Sequence[Level] = ()) -> tuple[Level, ...]:
    """List the levels of a stack, the env inside first.

    The wrappers in the sub-envs of a ``SyncVectorEnv`` are levels, and so is the vector env, if all
    sub-envs have the same wrappers. Other vector envs are the env inside.

    Args:
        env: The outermost wrapper.
        in_workers: Levels in the worker processes of the vector env.
    """
    outer, core = list_wrappers(env), core_of(env)
    num_envs = core.num_envs if isinstance(core, VectorEnv) else None
    rows = _row_wrappers(core) if isinstance(core, SyncVectorEnv) else None
    levels: list[tuple[tuple[Any, ...], bool]] = []
    if rows is None:
        levels.append(((core,), False))
    else:
        bases = tuple(
            row[-1].env if row else each for row, each in zip(rows, core.envs, strict=True)
        )
        levels.append((bases, True))
        levels += [(each, True) for each in reversed(list(zip(*rows, strict=True)))]
        levels.append(((core,), False))
    levels += [((each,), False) for each in reversed(outer)]
    around = tuple(
        Level(index, owners, num_envs, in_rows)
        for index, (owners, in_rows) in enumerate(levels, start=len(in_workers) - 1)
    )
    return (*in_workers, *around)


def place_of_error(
    error: BaseException, levels: Sequence[Level]
) -> tuple[int, int, Literal["reset", "step"]] | None:
    """Return level, sub-env and method of the innermost wrapper whose code raised an error.

    Args:
        error: An error with its traceback.
        levels: Levels of the stack.
    """
    owners = {
        id(owner): (level.index, row)
        for level in levels
        if not level.in_workers
        for row, owner in enumerate(level.owners)
    }
    place: tuple[int, int] | None = None
    method: Literal["reset", "step"] = "step"
    for frame, _ in walk_tb(error.__traceback__):
        names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
        found = owners.get(id(frame.f_locals.get(names[0]))) if names else None
        if found is not None:
            place = found
            if frame.f_code.co_name in _METHODS:
                method = "reset" if frame.f_code.co_name == "reset" else "step"
    return None if place is None else (*place, method)


def core_of(env: Any) -> Any:
    """Return the env inside all wrappers."""
    outer = list_wrappers(env)
    return outer[-1].env if outer else env


def list_wrappers(env: Any) -> list[Any]:
    """List the wrappers around an env, outermost first."""
    found: list[Any] = []
    while isinstance(env, _KINDS) and len(found) < MAX_LEVELS:
        found.append(env)
        env = env.env
    return found


def _row_wrappers(env: SyncVectorEnv) -> list[list[Any]] | None:
    """Return the wrappers of each sub-env; ``None`` if they differ."""
    rows = [list_wrappers(each) for each in env.envs]
    kinds = {tuple(type(each) for each in row) for row in rows}
    return rows if len(kinds) == 1 else None


def has_different_rows(core: Any) -> bool:
    """Return True for a ``SyncVectorEnv`` whose sub-envs have different wrappers."""
    return isinstance(core, SyncVectorEnv) and _row_wrappers(core) is None


def arguments_of(owner: Any) -> dict[str, object]:
    """Return the constructor arguments of a wrapper or env.

    Example:
        >>> import gymnasium
        >>> arguments_of(gymnasium.make("Pendulum-v1"))
        {'max_episode_steps': 200}
    """
    recorded = attributes_of(owner).get("_saved_kwargs")
    return constructor_arguments(owner, recorded if isinstance(recorded, Mapping) else None)


_FORWARD = (
    gymnasium.ObservationWrapper,
    gymnasium.RewardWrapper,
    gymnasium.vector.VectorObservationWrapper,
    gymnasium.vector.VectorRewardWrapper,
)
_INVERSE = (gymnasium.ActionWrapper, gymnasium.vector.VectorActionWrapper)


def _direction(owner: Any) -> Direction:
    is_forward, is_inverse = isinstance(owner, _FORWARD), isinstance(owner, _INVERSE)
    if is_forward == is_inverse:
        return "both"
    return "forward" if is_forward else "inverse"


def env_name(levels: Sequence[Level]) -> str:
    """Return the id of the env inside, or its class name."""
    return levels[0].env_name
