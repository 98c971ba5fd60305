"""The levels of a Stable-Baselines3 stack: sub-envs, their wrappers, VecEnv, VecEnv wrappers.

Stable-Baselines3 is imported only where its objects exist, and so is this module.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space, spaces

from tdx.stacks.gymnasium.levels import (
    MAX_LEVELS,
    Level,
    list_owners,
)
from tdx.stacks.sources import attributes_of, class_location, constructor_arguments
from tdx.stacks.stack import StageInfo

_MAX_WAIT, _INTERVAL = 20.0, 0.05
"""Seconds in which the workers have to answer or to end, and seconds between two looks."""
_FRAME_STACK = ("n_stack", "channels_first")


@dataclass(frozen=True, slots=True)
class VecLevel(Level):
    """A level of a Stable-Baselines3 stack."""

    inside: VecLevel | None = None  # Of a VecEnv wrapper.

    @property
    def observation_space(self) -> gymnasium.Space[object]:
        space: gymnasium.Space[object] = self.owner.observation_space
        if self.inside is None:
            return space
        return returned_space(
            self.owner, self.inside.owner.observation_space, self.inside.observation_space
        )

    @property
    def action_space(self) -> gymnasium.Space[object]:
        return self.owner.action_space

    @property
    def is_core(self) -> bool:
        """True for the VecEnv that steps the sub-envs."""
        return not self.in_rows and "venv" not in attributes_of(self.owner)

    def info(self) -> StageInfo:
        if self.in_rows:
            return Level(self.index, self.owners, self.num_envs, True).info()
        kind = type(self.owner)
        return StageInfo(
            self.index,
            kind.__name__,
            arguments_of(self.owner),
            class_location(kind),
            "both" if self.is_core or not passes_actions_on(self.owner) else "forward",
        )


def list_levels(env: Any) -> tuple[VecLevel, ...]:
    """List the levels of a stack, the env inside first.

    The wrappers in the sub-envs of a ``DummyVecEnv`` are levels if all sub-envs have the same
    wrappers, and so is the ``DummyVecEnv``. Other VecEnvs are the env inside.
    """
    core = core_of(env)
    owners = list_owners(sub_envs(core), core, list_vec_wrappers(env))
    levels: list[VecLevel] = []
    for index, (parts, in_rows) in enumerate(owners, start=-1):
        is_wrapper = not in_rows and "venv" in attributes_of(parts[0])
        inside = levels[-1] if is_wrapper else None
        levels.append(VecLevel(index, parts, env.num_envs, in_rows, inside))
    return tuple(levels)


def core_of(env: object) -> Any:
    """Return the VecEnv inside all wrappers."""
    outer = list_vec_wrappers(env)
    return attributes_of(outer[-1])["venv"] if outer else env


def close_vec_env(env: Any) -> None:
    """Close a VecEnv, also if a worker process has ended.

    ``SubprocVecEnv`` waits forever for the other workers if one of them failed in a step.
    """
    core = core_of(env)
    attributes = attributes_of(core)
    processes = attributes.get("processes", ())
    if processes and not attributes.get("closed") and _has_ended_worker(attributes):
        for process in processes:
            process.terminate()
            process.join()
        core.closed = True
    env.close()


def _has_ended_worker(attributes: Mapping[str, Any]) -> bool:
    """Return True if a worker process of a VecEnv has ended, or its answer is missing."""
    sentinels = [process.sentinel for process in attributes["processes"]]
    if not attributes.get("waiting"):
        return bool(wait(sentinels, 0))
    # A worker ends some time after its connection. Without an error, all of them answer.
    end = time.monotonic() + _MAX_WAIT
    while not wait(sentinels, _INTERVAL):
        if all(remote.poll(0) for remote in attributes["remotes"]):
            return bool(wait(sentinels, 10 * _INTERVAL))
        if time.monotonic() > end:
            return True
    return True


def list_vec_wrappers(env: object) -> list[Any]:
    """List the wrappers around a VecEnv, outermost first."""
    wrappers: list[object] = []
    while "venv" in attributes_of(env) and len(wrappers) < MAX_LEVELS:
        wrappers.append(env)
        env = attributes_of(env)["venv"]
    return wrappers


def sub_envs(core: object) -> list[object]:
    """Return the sub-envs of a VecEnv that are in this process; empty if they are not."""
    envs = attributes_of(core).get("envs")
    if not isinstance(envs, list | tuple):
        return []
    return list(envs) if all(isinstance(sub_env, gymnasium.Env) for sub_env in envs) else []


def list_notes(levels: tuple[Level, ...]) -> tuple[str, ...]:
    """Return what a stack shows otherwise than expected, each a sentence."""
    notes: list[str] = []
    names = [
        level.name
        for level in levels
        if not level.in_rows and level.observation_space != level.owner.observation_space
    ]
    if names:
        is_one = len(names) == 1
        subject = f"{' and '.join(names)} return{'s' * is_one} other observations"
        declared = "its space declares" if is_one else "their spaces declare"
        notes.append(f"{subject} than {declared}; the specs show what is returned")
    return tuple(notes)


def arguments_of(owner: object) -> dict[str, object]:
    """Return the constructor arguments of a VecEnv or wrapper, with their current values."""
    attributes = attributes_of(owner)
    arguments = constructor_arguments(owner, None)
    stacked = attributes.get("stacked_obs")
    if stacked is not None:
        inner = attributes_of(stacked)
        arguments.pop("n_stack", None)
        arguments |= {name: inner[name] for name in _FRAME_STACK if name in inner}
    if "venv" not in attributes:
        arguments["num_envs"] = attributes["num_envs"]
    return arguments


def passes_actions_on(owner: Any) -> bool:
    """Return True if ``step_async`` of a VecEnv does nothing but pass the actions on."""
    from stable_baselines3.common.vec_env import DummyVecEnv, VecEnvWrapper

    return type(owner).step_async in (DummyVecEnv.step_async, VecEnvWrapper.step_async)


def vec_methods(owner: Any) -> tuple[str, ...]:
    """Return the names of the methods of a VecEnv that reset and step it.

    ``step`` is one of them if the class has its own, which need not call the other two.
    """
    from stable_baselines3.common.vec_env import VecEnv

    names = ("reset", "step_async", "step_wait")
    return names if type(owner).step is VecEnv.step else (*names, "step")


def returned_space(
    owner: Any, declared_inside: Space[object], inside: Space[object]
) -> Space[object]:
    """Return the space of the observations that a VecEnv wrapper returns.

    ``declared_inside`` is the ``observation_space`` of the VecEnv inside, and ``inside`` the space
    of what it returns.
    """
    declared: Space[object] = owner.observation_space
    attributes = attributes_of(owner)
    stacked = attributes.get("stacked_obs")
    if stacked is not None and hasattr(stacked, "n_stack"):
        return _stacked(stacked, inside, declared)
    if "obs_rms" in attributes and attributes.get("norm_obs") and "clip_obs" in attributes:
        return _normalized(inside, float(attributes["clip_obs"]), attributes.get("norm_obs_keys"))
    key = attributes.get("key")
    if isinstance(key, str) and isinstance(inside, spaces.Dict) and key in inside.spaces:
        return inside[key]
    return _inherited(declared, declared_inside, inside)


def _stacked(stacked: Any, inside: Space[object], declared: Space[object]) -> Space[object]:
    parts = attributes_of(stacked).get("sub_stacked_observations")
    if parts is not None and isinstance(inside, spaces.Dict) and isinstance(declared, spaces.Dict):
        return spaces.Dict(
            {name: _stacked(part, inside[name], declared[name]) for name, part in parts.items()}
        )
    if not isinstance(inside, spaces.Box) or parts is not None:
        return declared
    count, axis = stacked.n_stack, stacked.repeat_axis
    low, high = (np.concatenate([part] * count, axis) for part in (inside.low, inside.high))
    # The first frames of an episode are filled up with zeros.
    return spaces.Box(np.minimum(low, 0), np.maximum(high, 0), dtype=inside.dtype.type)


def _normalized(
    inside: Space[object], clip: float, keys: Any, name: str | None = None
) -> Space[object]:
    if isinstance(inside, spaces.Dict):
        return spaces.Dict(
            {part: _normalized(part_space, clip, keys, part) for part, part_space in inside.items()}
        )
    if not isinstance(inside, spaces.Box) or (keys is not None and name not in keys):
        return inside
    return spaces.Box(-clip, clip, inside.shape, np.float32)


def _inherited(
    declared: Space[object], declared_inside: Space[object], inside: Space[object]
) -> Space[object]:
    """Return the space inside where a wrapper declares that it does not change it."""
    if declared == declared_inside:
        return inside
    parts = (declared, declared_inside, inside)
    if not all(isinstance(space, spaces.Dict) for space in parts):
        return declared
    mine, before, now = (dict(space.items()) for space in parts)  # type: ignore[attr-defined]
    known = before.keys() & now.keys()
    return spaces.Dict(
        {
            name: _inherited(space, before[name], now[name]) if name in known else space
            for name, space in mine.items()
        }
    )
