"""Places of a dump's entries in a Minari dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from tdx.data.saved_manifest import DTYPES
from tdx.errors import ArgumentError
from tdx.keys import format_key, normalize_key
from tdx.rollouts.dump.entries import Parts
from tdx.rollouts.dump.folder import DATA
from tdx.rollouts.formats.arrays import Array, array_format
from tdx.rollouts.formats.interface import ExportColumn
from tdx.rollouts.formats.stored import ExportSource, name_columns

ROOT, NEXT = "[:-1]", "[1:]"
"""Slices of the T+1 observations: before and after each step."""
REWARD, TERMINATED, TRUNCATED, DONE = (
    ("next", name) for name in ("reward", "terminated", "truncated", "done")
)
INFOS = "infos/"
ONE_HOT = "one_hot"
"""Key in the note for actions that are exported as indices."""


@dataclass(slots=True)
class MinariLayout:
    """Places of a dump's entries in a Minari dataset; other entries become infos.

    Args:
        observations: Spaces of the observations by key.
        actions: Spaces of the actions by key.
        columns: Every entry, with its place in an episode.
        one_hot: Number of categories of one-hot actions, by place.
        notes: Remarks for the user.
    """

    observations: dict[Parts, spaces.Space[Any]] = field(default_factory=dict)
    actions: dict[Parts, spaces.Space[Any]] = field(default_factory=dict)
    columns: list[ExportColumn] = field(default_factory=list)
    one_hot: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, source: ExportSource) -> MinariLayout:
        """Return the layout for a dump.

        Raises:
            ArgumentError: The dump lacks an entry that every Minari dataset has.
        """
        layout, leaves = cls(), source.data.leaves
        specs = _specs(source)
        places: dict[Parts, str] = {}
        for path in leaves:
            spec = specs.get(path)
            if spec is None:
                continue
            if spec["part"] == "action":
                layout.actions[path] = layout._action_space(source, path, spec)
            elif spec["part"] == "observation" and ("next", *path) in leaves:
                if _is_continuous(source, path):
                    layout.observations[path] = _space(source, path, spec)
                else:
                    key = format_key(normalize_key(path))
                    layout.notes.append(
                        f"{key!r} is in the infos: its next value differs from the following step"
                    )
        layout._check(leaves)
        for path in layout.observations:
            place = _place("observations", path, layout.observations)
            places[path], places["next", *path] = place + ROOT, place + NEXT
        for path in layout.actions:
            places[path] = _place("actions", path, layout.actions)
        places |= _signals(source)
        layout.one_hot = {places[path]: count for path, count in _counts(layout.actions, leaves)}
        for each in name_columns(source.manifest):
            name = places.get(each.path) or INFOS + each.name
            layout.columns.append(ExportColumn(DATA, each.path, name))
        if TRUNCATED not in leaves:
            layout.notes.append("no next.truncated: every end counts as a termination")
        return layout

    def _check(self, leaves: Mapping[Parts, Any]) -> None:
        missing = [] if self.observations else ["an observation with its next"]
        missing += [] if self.actions else ["action"]
        missing += [] if REWARD in leaves else ["next.reward"]
        missing += [] if TERMINATED in leaves or DONE in leaves else ["next.terminated"]
        if missing:
            raise ArgumentError(
                f"a Minari dataset needs {' and '.join(missing)}, which the dump does not have",
                hint="roll out with --keys observation,action,reward,done,terminated,truncated",
            )

    def _action_space(
        self, source: ExportSource, path: Parts, spec: Mapping[str, Any]
    ) -> spaces.Space[Any]:
        flat_choice = len(spec["shape"]) == len(source.batch_size) + 1
        if spec["kind"] == "OneHot" and flat_choice and _is_one_hot(source, path):
            return spaces.Discrete(spec["shape"][-1])
        return _space(source, path, spec)


def _specs(source: ExportSource) -> dict[Parts, dict[str, Any]]:
    """Return the specs of actions and observations.

    Entries that a step reads back, such as counts and sums, are not observations, unless there
    are no others.
    """
    listed = source.manifest.specs
    state = {tuple(each["key"]) for each in listed if each["part"] == "state"}
    found = {
        tuple(each["key"]): each for each in listed if each["part"] in ("action", "observation")
    }
    plain = {path: each for path, each in found.items() if path not in state}
    has_observation = any(each["part"] == "observation" for each in plain.values())
    return plain if has_observation else found


def nest(values: Mapping[Parts, Any]) -> Any:
    """Nest values by their keys in dicts; a single value is returned unchanged."""
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
    """Nest spaces by their keys in one space."""

    def convert(value: Any) -> spaces.Space[Any]:
        if isinstance(value, dict):
            return spaces.Dict({name: convert(each) for name, each in value.items()})
        space: spaces.Space[Any] = value
        return space

    return convert(nest(values))


def _place(name: str, path: Parts, all_paths: Mapping[Parts, Any]) -> str:
    return name if len(all_paths) == 1 else "/".join((name, *path))


def _signals(source: ExportSource) -> dict[Parts, str]:
    """Return the places of rewards and flags that have one number per step."""
    dims = len(source.batch_size)
    names = {REWARD: "rewards", TERMINATED: "terminations", TRUNCATED: "truncations"}
    return {
        path: name
        for path, name in names.items()
        if path in source.data.leaves
        and torch.Size(source.data.leaves[path][1][dims:]).numel() == 1
    }


def _counts(actions: Mapping[Parts, spaces.Space[Any]], leaves: Mapping[Parts, Any]) -> Any:
    for path, space in actions.items():
        if isinstance(space, spaces.Discrete):
            yield path, int(space.n)


def _is_one_hot(source: ExportSource, path: Parts) -> bool:
    return all(
        bool(
            ((leaves[path] == 0) | (leaves[path] == 1)).all() and (leaves[path].sum(-1) == 1).all()
        )
        for _, leaves in source.blocks(DATA, [path])
    )


def _is_continuous(source: ExportSource, path: Parts) -> bool:
    """Return True if the next value of each step is the value of the following step."""
    source.check([path, ("next", *path)])
    for each in source.episodes:
        stop = each.start + each.length
        before = source.span(path, each.row, each.start + 1, stop)
        after = source.span(("next", *path), each.row, each.start, stop - 1)
        if not torch.equal(_bits(before), _bits(after)):
            return False
    return True


def _bits(values: Tensor) -> Tensor:
    return values.contiguous().reshape(-1).view(torch.uint8)


def _space(source: ExportSource, path: Parts, spec: Mapping[str, Any]) -> spaces.Space[Any]:
    dims = len(source.batch_size)
    dtype, more = array_format(DTYPES[spec["dtype"]], splits_complex=True)
    shape = (*spec["shape"][dims:], *more)
    if dtype == np.bool_:
        return spaces.MultiBinary(shape)
    low, high = _range(dtype)
    if not more and not spec["dtype"].startswith("float8"):
        low, high = _bound(spec["low"], low, dims, dtype), _bound(spec["high"], high, dims, dtype)
    bounds = [np.broadcast_to(np.asarray(bound, dtype), shape).copy() for bound in (low, high)]
    return spaces.Box(bounds[0], bounds[1], shape, dtype.type)


def _range(dtype: Any) -> tuple[Any, Any]:
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return info.min, info.max
    return -np.inf, np.inf


def _bound(value: Any, default: Any, dims: int, dtype: Any) -> Any:
    """Return one bound of a spec; if it differs by env, that of the first env."""
    if value is None:
        return default
    for _ in range(dims if isinstance(value, list) else 0):
        value = value[0]
    return _numbers(value, dtype)


def _numbers(value: Any, dtype: Any) -> Any:
    if isinstance(value, list):
        return [_numbers(each, dtype) for each in value]
    return float(value) if dtype.kind == "f" else int(value)


def flatten_arrays(values: Any, name: str, path: Sequence[str] = ()) -> dict[str, Array]:
    """Flatten arrays in dicts to places such as ``observations/agent/position``."""
    if isinstance(values, dict):
        found: dict[str, Array] = {}
        for each, inner in values.items():
            found |= flatten_arrays(inner, name, (*path, each))
        return found
    return {"/".join((name, *path)): np.asarray(values)}
