"""Places of a dump's entries in a Minari dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from tdx.data.saved import DTYPES
from tdx.errors import ArgumentError
from tdx.keys import format_key, normal_key
from tdx.rollouts.dump.entries import Parts
from tdx.rollouts.dump.folder import DATA
from tdx.rollouts.formats.arrays import Array, array_format
from tdx.rollouts.formats.interface import ExportColumn
from tdx.rollouts.formats.stored import ExportSource, name_columns

ROOT, NEXT = "[:-1]", "[1:]"
"""Which of the T+1 observations stand before a step, and which after it."""
REWARD, TERMINATED, TRUNCATED, DONE = (
    ("next", name) for name in ("reward", "terminated", "truncated", "done")
)
INFOS = "infos/"
ONE_HOT = "one_hot"
"""What the note says of actions that became numbers."""


@dataclass(slots=True)
class MinariLayout:
    """Which entry of a dump is what in a Minari dataset; what has no place goes into the infos.

    Args:
        observations: those that are there before and after each step, by their key.
        actions: by their key.
        columns: every entry, with its place in an episode.
        one_hot: how many choices an action has that becomes a number, by its place.
        notes: what is worth knowing.
    """

    observations: dict[Parts, spaces.Space[Any]] = field(default_factory=dict)
    actions: dict[Parts, spaces.Space[Any]] = field(default_factory=dict)
    columns: list[ExportColumn] = field(default_factory=list)
    one_hot: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, stored: ExportSource) -> MinariLayout:
        """The layout for a dump.

        Raises:
            ArgumentError: something is missing that every Minari dataset has.
        """
        made, leaves = cls(), stored.data.leaves
        specs = _specs(stored)
        places: dict[Parts, str] = {}
        for path in leaves:
            spec = specs.get(path)
            if spec is None:
                continue
            if spec["part"] == "action":
                made.actions[path] = made._action_space(stored, path, spec)
            elif spec["part"] == "observation" and ("next", *path) in leaves:
                if _goes_on(stored, path):
                    made.observations[path] = _space(stored, path, spec)
                else:
                    key = format_key(normal_key(path))
                    made.notes.append(f"{key!r} is in the infos: its steps do not follow on")
        made._check(leaves)
        for path in made.observations:
            place = _place("observations", path, made.observations)
            places[path], places["next", *path] = place + ROOT, place + NEXT
        for path in made.actions:
            places[path] = _place("actions", path, made.actions)
        places |= _signals(stored)
        made.one_hot = {places[path]: count for path, count in _counts(made.actions, leaves)}
        for each in name_columns(stored.manifest):
            name = places.get(each.path) or INFOS + each.name
            made.columns.append(ExportColumn(DATA, each.path, name))
        if TRUNCATED not in leaves:
            made.notes.append("no next.truncated: every end counts as terminated")
        return made

    def _check(self, leaves: Mapping[Parts, Any]) -> None:
        missing = [] if self.observations else ["an observation with its next"]
        missing += [] if self.actions else ["action"]
        missing += [] if REWARD in leaves else ["next.reward"]
        missing += [] if TERMINATED in leaves or DONE in leaves else ["next.terminated"]
        if missing:
            raise ArgumentError(
                f"a Minari dataset needs {' and '.join(missing)}, which the dump does not hold",
                hint="roll out with --keys observation,action,reward,done,terminated,truncated",
            )

    def _action_space(
        self, stored: ExportSource, path: Parts, spec: Mapping[str, Any]
    ) -> spaces.Space[Any]:
        flat_choice = len(spec["shape"]) == len(stored.batch_size) + 1
        if spec["kind"] == "OneHot" and flat_choice and _is_one_hot(stored, path):
            return spaces.Discrete(spec["shape"][-1])
        return _space(stored, path, spec)


def _specs(stored: ExportSource) -> dict[Parts, dict[str, Any]]:
    """What the env says of its actions and observations.

    What a step takes back from the step before it, such as counts and sums, is no observation,
    unless there is no other.
    """
    listed = stored.manifest.specs
    back = {tuple(each["key"]) for each in listed if each["part"] == "state"}
    found = {
        tuple(each["key"]): each for each in listed if each["part"] in ("action", "observation")
    }
    plain = {path: each for path, each in found.items() if path not in back}
    has_observation = any(each["part"] == "observation" for each in plain.values())
    return plain if has_observation else found


def nest(values: Mapping[Parts, Any]) -> Any:
    """Values by their keys as dicts in dicts; one alone as it is."""
    if len(values) == 1:
        return next(iter(values.values()))
    found: dict[str, Any] = {}
    for path, value in values.items():
        place = found
        for part in path[:-1]:
            place = place.setdefault(part, {})
        place[path[-1]] = value
    return found


def nest_space(values: Mapping[Parts, spaces.Space[Any]]) -> spaces.Space[Any]:
    """Spaces by their keys as one."""

    def made(value: Any) -> spaces.Space[Any]:
        if isinstance(value, dict):
            return spaces.Dict({name: made(each) for name, each in value.items()})
        space: spaces.Space[Any] = value
        return space

    return made(nest(values))


def _place(name: str, path: Parts, all_paths: Mapping[Parts, Any]) -> str:
    return name if len(all_paths) == 1 else "/".join((name, *path))


def _signals(stored: ExportSource) -> dict[Parts, str]:
    """Rewards and flags that are one number a step, as Minari wants them."""
    dims = len(stored.batch_size)
    names = {REWARD: "rewards", TERMINATED: "terminations", TRUNCATED: "truncations"}
    return {
        path: name
        for path, name in names.items()
        if path in stored.data.leaves
        and torch.Size(stored.data.leaves[path][1][dims:]).numel() == 1
    }


def _counts(actions: Mapping[Parts, spaces.Space[Any]], leaves: Mapping[Parts, Any]) -> Any:
    for path, space in actions.items():
        if isinstance(space, spaces.Discrete):
            yield path, int(space.n)


def _is_one_hot(stored: ExportSource, path: Parts) -> bool:
    return all(
        bool(
            ((leaves[path] == 0) | (leaves[path] == 1)).all() and (leaves[path].sum(-1) == 1).all()
        )
        for _, leaves in stored.blocks(DATA, [path])
    )


def _goes_on(stored: ExportSource, path: Parts) -> bool:
    """Whether each step begins where the one before it led to, in every episode."""
    stored.check([path, ("next", *path)])
    for each in stored.episodes:
        stop = each.start + each.length
        before = stored.span(path, each.row, each.start + 1, stop)
        after = stored.span(("next", *path), each.row, each.start, stop - 1)
        if not torch.equal(_bits(before), _bits(after)):
            return False
    return True


def _bits(values: Tensor) -> Tensor:
    return values.contiguous().reshape(-1).view(torch.uint8)


def _space(stored: ExportSource, path: Parts, spec: Mapping[str, Any]) -> spaces.Space[Any]:
    dims = len(stored.batch_size)
    dtype, more = array_format(DTYPES[spec["dtype"]], splits_complex=True)
    shape = (*spec["shape"][dims:], *more)
    if dtype == np.bool_:
        return spaces.MultiBinary(shape)
    low, high = _range(dtype)
    if not more and not spec["dtype"].startswith("float8"):
        low, high = _end(spec["low"], low, dims, dtype), _end(spec["high"], high, dims, dtype)
    filled = [np.broadcast_to(np.asarray(end, dtype), shape).copy() for end in (low, high)]
    return spaces.Box(filled[0], filled[1], shape, dtype.type)


def _range(dtype: Any) -> tuple[Any, Any]:
    if dtype.kind in "iu":
        ends = np.iinfo(dtype)
        return ends.min, ends.max
    return -np.inf, np.inf


def _end(value: Any, otherwise: Any, dims: int, dtype: Any) -> Any:
    """One end of a spec; where it differs by env, that of the first."""
    if value is None:
        return otherwise
    for _ in range(dims if isinstance(value, list) else 0):
        value = value[0]
    return _numbers(value, dtype)


def _numbers(value: Any, dtype: Any) -> Any:
    if isinstance(value, list):
        return [_numbers(each, dtype) for each in value]
    return float(value) if dtype.kind == "f" else int(value)


def flatten_arrays(values: Any, name: str, path: Sequence[str] = ()) -> dict[str, Array]:
    """Arrays in dicts by their place: ``observations/agent/position``."""
    if isinstance(values, dict):
        found: dict[str, Array] = {}
        for each, inner in values.items():
            found |= flatten_arrays(inner, name, (*path, each))
        return found
    return {"/".join((name, *path)): np.asarray(values)}
